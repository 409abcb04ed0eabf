// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/data/data_service.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/base/mutex.h"
#include "kvcove/owner/core/pieces.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::owner {
namespace {

using transport::Step;

// How often a put that waits for its listing checks that the master is still reachable.
constexpr std::int64_t kListedTurnNs = 50 * kMillisecond;
// How often a put under a generation that this owner does not know yet looks for it.
constexpr std::int64_t kGenerationTurnNs = 2 * kMillisecond;
// Longest wait of a get for a disk, whatever deadline its caller has.
constexpr std::int64_t kLongestBringNs = 30 * kSecond;

void Count(std::atomic<std::uint64_t>& counter, std::uint64_t by) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

std::uint64_t BytesOf(const wire::DataPut& request) {
  std::uint64_t bytes = 0;
  for (const wire::DataPutItem& item : request.items) bytes += item.size_bytes;
  return bytes;
}

}  // namespace

// ---- gets

class DataService::Get final : public transport::Served {
 public:
  // When the peer gives up (0: unknown), and how to wake the transport when the disk has answered.
  struct Waits {
    std::int64_t deadline_ns = 0;
    transport::Visit::Wake wake;
  };

  Get(DataService& service, Session& session, const rpc::Caller& caller,
      const wire::DataGet& request, Waits waits)
      : service_(service),
        visit_(session),
        began_ns_(service.clock_.NowNs()),
        values_(request.keys.size()) {
    MissReason refused = MissReason::kNone;
    if (!service.May(caller, request.token.slot, rpc::Scope::kRead)) {
      refused = MissReason::kDenied;
    } else if (!service.store_.LeaseHolds()) {
      refused = MissReason::kLease;
    } else {
      loans_ = service.store_.Lend(request.token, request.keys);
      Choose(request);
      BringUp(session, request, std::move(waits));
    }
    if (refused == MissReason::kNone) return;
    for (wire::DataValue& value : values_) value.reason = refused;
  }
  // The transport destroys an exchange only when nothing reads its pieces any more, so the memory
  // of the loans may be evicted from here on.
  ~Get() override {
    if (brought_ != nullptr) service_.store_.GiveUp(brought_);
    if (!loans_.empty()) service_.store_.Return(loans_);
    service_.counters_.get_time.Add(service_.clock_.NowNs() - began_ns_);
  }

  Step Next() override {
    if (brought_ != nullptr && !TakeBrought()) {
      return {.kind = Step::Kind::kWait, .until_ns = until_ns_};
    }
    if (!HashSlice()) return {.kind = Step::Kind::kAgain};
    Step reply = transport::ReplyStep(Code::kOk, {});
    // Checks the lease again after the loans were taken: as every reader does, it looks at the
    // deadline last. A thread that was stopped between the first check and Lend() may have lent
    // values of a generation that a reset has voided: the end of the lease proves such a reset.
    const bool holds = service_.store_.LeaseHolds();
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < loans_.size(); ++i) {
      if (!holds) {
        values_[i] = {.reason = MissReason::kLease};
      } else if (values_[i].code == Code::kOk) {
        bytes += loans_[i].size_bytes;
        ForEachPiece(service_.store_.payload(), loans_[i].extents, loans_[i].size_bytes,
                     [&](std::byte* data, std::uint64_t size) {
                       reply.out.push_back({.data = data, .size = size});
                     });
      }
    }
    // Counted here and not at the request: only now is it known how many bytes will move.
    if (bytes > 0) {
      const Status may = visit_.MayMove(bytes);
      if (!may) return transport::ReplyStep(may.error().code, may.error().detail);
    }
    for (const wire::DataValue& value : values_) {
      if (value.code != Code::kMiss) continue;
      Count(service_.counters_.misses[static_cast<std::size_t>(value.reason)], 1);
    }
    Count(service_.counters_.sent_bytes, bytes);
    reply.head = wire::Encode(std::span<const wire::DataValue>(values_));
    return reply;
  }
  void Received(std::uint64_t /*bytes*/) override {}

 private:
  // The disk's answer. Shared with the callback, which may run while this exchange is destroyed.
  struct Brought {
    Mutex mutex;
    bool done KVCOVE_GUARDED_BY(mutex) = false;
    std::vector<wire::LoadResult> results KVCOVE_GUARDED_BY(mutex);
  };

  // Chooses the loans that are sent. The others get a code and send no bytes.
  void Choose(const wire::DataGet& request) {
    checksum_wanted_ = service_.options_.checksum && !request.no_checksum;
    for (std::size_t i = 0; i < loans_.size(); ++i) ChooseOne(i, request.room[i]);
  }

  void ChooseOne(std::size_t i, std::uint64_t room) {
    const Loan& loan = loans_[i];
    wire::DataValue& value = values_[i];
    value = {.code = loan.code, .reason = loan.reason, .size_bytes = loan.size_bytes};
    if (loan.code != Code::kOk) return;
    if (loan.size_bytes > room) {
      value.code = Code::kBufferTooSmall;
      return;
    }
    // The first value passes, whatever its size: a value above the limit could never be read else.
    const bool first = chosen_bytes_ == 0;
    chosen_bytes_ += loan.size_bytes;
    if (!first && chosen_bytes_ > service_.MaxBatchBytes()) {
      value.code = Code::kLimit;
      return;
    }
    if (!checksum_wanted_) return;
    if (loan.has_checksum) {
      value.checksum = loan.checksum;
    } else {
      to_hash_.push_back(i);
    }
  }

  // Asks the disks for the keys that memory does not hold. The reply waits for them, because one
  // reply has the results of all keys.
  void BringUp(Session& session, const wire::DataGet& request, Waits waits) {
    for (std::size_t i = 0; i < loans_.size(); ++i) {
      if (loans_[i].code != Code::kMiss) continue;
      missing_.push_back(i);
      keys_.emplace_back(request.keys[i]);
      room_.push_back(request.room[i]);
    }
    if (missing_.empty()) return;
    token_ = request.token;
    const std::int64_t left =
        waits.deadline_ns == 0 ? kLongestBringNs : waits.deadline_ns - began_ns_;
    // A quarter of the time is left for the transfer of the values.
    const std::int64_t wait = std::clamp(left - (left / 4), kMillisecond, kLongestBringNs);
    until_ns_ = began_ns_ + wait;
    const auto answer = std::make_shared<Brought>();
    brought_ = service_.store_.BringUp(
        token_, Keys(),
        {.session = [&session] { return session.Number(); },
         .deadline_ns = until_ns_,
         .done =
             [answer, wake = std::move(waits.wake)](std::vector<wire::LoadResult> results) {
               {
                 const MutexLock lock(answer->mutex);
                 answer->results = std::move(results);
                 answer->done = true;
               }
               wake();
             }});
    answer_ = answer;
  }

  std::vector<std::string_view> Keys() const { return {keys_.begin(), keys_.end()}; }

  // Takes the disk's answer, or gives up at the deadline. False: it is neither.
  bool TakeBrought() {
    std::vector<wire::LoadResult> results;
    {
      const MutexLock lock(answer_->mutex);
      if (!answer_->done && service_.clock_.NowNs() < until_ns_) return false;
      results.swap(answer_->results);
    }
    service_.store_.GiveUp(brought_);
    brought_ = nullptr;
    // The disk's answer says nothing about memory at this moment: a promoted value may have been
    // removed or replaced since. So the keys are lent again, and only a loan is a hit.
    results.resize(missing_.size(), {.code = Code::kMiss, .reason = MissReason::kTimeout});
    std::vector<Loan> loans = service_.store_.Lend(token_, Keys());
    for (std::size_t k = 0; k < missing_.size(); ++k) {
      const std::size_t i = missing_[k];
      loans_[i] = std::move(loans[k]);
      ChooseOne(i, room_[k]);
      if (values_[i].code == Code::kOk) {
        values_[i].tier = kvcove::Tier::kDisk;
      } else if (values_[i].code == Code::kMiss && results[k].code != Code::kOk) {
        values_[i].code = results[k].code;
        values_[i].reason = results[k].reason;
      }
    }
    return true;
  }

  // Hashes up to kSliceBytes of the values that have no checksum: an object that this host stored
  // gets one when another host reads it for the first time. False: more is left to hash.
  bool HashSlice() {
    for (std::uint64_t left = kSliceBytes; at_ < to_hash_.size();) {
      Loan& loan = loans_[to_hash_[at_]];
      if (!hashing_) {
        checksum_.Begin(service_.store_.payload(), loan.extents, loan.size_bytes);
        hashing_ = true;
      }
      const std::uint64_t hashed = checksum_.Add(left);
      Count(service_.counters_.hashed_bytes, hashed);
      left -= hashed;
      if (!checksum_.done()) return false;
      hashing_ = false;
      values_[to_hash_[at_++]].checksum = checksum_.Value();
      service_.store_.SetChecksum(loan, checksum_.Value());
    }
    return true;
  }

  DataService& service_;
  const Session& visit_;
  const std::int64_t began_ns_;
  std::vector<wire::DataValue> values_;
  std::vector<Loan> loans_;
  std::vector<std::size_t> to_hash_;
  std::size_t at_ = 0;
  bool hashing_ = false;
  bool checksum_wanted_ = false;
  std::uint64_t chosen_bytes_ = 0;
  SlicedChecksum checksum_;
  // ---- values that the disks may have
  Token token_;
  std::vector<std::size_t> missing_;  // indices into values_
  std::vector<std::string> keys_;     // of these
  std::vector<std::uint64_t> room_;   // of these, bytes
  std::int64_t until_ns_ = 0;
  std::shared_ptr<void> brought_;  // null: no answer is awaited
  std::shared_ptr<Brought> answer_;
};

// ---- puts

class DataService::Put final : public transport::Served {
 public:
  Put(DataService& service, Session& session, const rpc::Caller& caller,
      std::span<const std::byte> head, const wire::DataPut& request, transport::Visit::Wake wake)
      : service_(service),
        visit_(session),
        caller_(caller),
        began_ns_(service.clock_.NowNs()),
        until_ns_(began_ns_ +
                  (std::clamp<std::uint32_t>(request.budget_ms, 1, 60000) * kMillisecond)),
        checks_(service.options_.checksum && !request.no_checksum),
        wake_(std::move(wake)) {
    // An owner of one tenant never learns another tenant's generations: such a put must not wait
    // for one until its budget ends, but be denied at once.
    const bool own = service.options_.own_tag == 0 || caller.MayTouch(service.options_.own_tag);
    if (own && service.store_.Awaits(request.token)) {
      token_ = request.token;
      head_.assign(head.begin(), head.end());
    } else {
      Reserve(request);
    }
  }

  ~Put() override { service_.counters_.put_time.Add(service_.clock_.NowNs() - began_ns_); }

  Step Next() override {
    switch (state_) {
      case State::kAwaiting:
        return AwaitGeneration();
      case State::kReserved:
        state_ = State::kReceiving;
        return Receive();
      case State::kReceiving:
        HashSlice();
        if (at_ < places_.size()) return {.kind = Step::Kind::kAgain};
        Count(service_.counters_.received_bytes, bytes_);
        state_ = State::kCommitted;
        Commit();
        return AwaitListed();
      case State::kCommitted:
        return AwaitListed();
    }
    return {};
  }

  void Received(std::uint64_t bytes) override {
    arrived_ = bytes;
    HashSlice();
  }

 private:
  enum class State : std::uint8_t { kAwaiting, kReserved, kReceiving, kCommitted };
  // The listing's outcome. Shared with the callback, which may run after this exchange has ended.
  struct Listed {
    Mutex mutex;
    bool done KVCOVE_GUARDED_BY(mutex) = false;
    std::vector<Code> codes KVCOVE_GUARDED_BY(mutex);
  };

  // Waits until this owner knows the generation of the put's token. The master informs requester
  // and owners at the same time, so a put may overtake the generation by some milliseconds. The
  // slot's tenant comes with the generation, so the permission is checked afterwards, too.
  Step AwaitGeneration() {
    const std::int64_t now_ns = service_.clock_.NowNs();
    if (now_ns < until_ns_ && service_.store_.MasterReachable() && service_.store_.Awaits(token_)) {
      return {.kind = Step::Kind::kWait,
              .until_ns = std::min(until_ns_, now_ns + kGenerationTurnNs)};
    }
    // Decoded again from the copy, because the caller's head was valid only within Begin.
    const Result<wire::DataPut> request = wire::DecodeDataPut(head_);
    if (!request) return {};
    Reserve(*request);
    return Next();
  }

  void Reserve(const wire::DataPut& request) {
    state_ = State::kReserved;
    std::vector<PutItem> items;
    items.reserve(request.items.size());
    for (const wire::DataPutItem& item : request.items) {
      bytes_ += item.size_bytes;
      items.push_back({.key = item.key,
                       .size_bytes = item.size_bytes,
                       .value = {},
                       .after = item.after,
                       .hints = item.hints});
    }
    places_.resize(items.size(), PutResult{.code = Code::kDenied, .extents = {}});
    if (service_.May(caller_, request.token.slot, rpc::Scope::kWrite)) {
      session_ = visit_.Number();
      places_ = session_ == 0
                    ? std::vector<PutResult>(items.size(), {.code = Code::kLimit, .extents = {}})
                    : service_.store_.Reserve(session_, request.token, items, !request.no_evict);
    }
    // Only an owner may mark a value as a copy: the master trusts the number of removals that comes
    // with the mark.
    const bool copy = caller_.IsOwner() && request.copied_at != 0;
    for (std::size_t i = 0; i < items.size(); ++i) {
      sizes_.push_back(request.items[i].size_bytes);
      finishes_.push_back({.reservation = places_[i].reservation,
                           .commit = true,
                           .checksum = request.items[i].checksum,
                           .has_checksum = !request.no_checksum,
                           .group = request.items[i].group,
                           .copies = request.copies,
                           .copied_at = copy ? request.copied_at : 0});
    }
  }

  Step Receive() const {
    Step step{.kind = Step::Kind::kReceive};
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].code != Code::kOk) {
        // The peer sends these bytes all the same: unread, they would be taken for a request.
        step.into.push_back({.data = nullptr, .size = sizes_[i]});
        continue;
      }
      ForEachPiece(service_.store_.payload(), places_[i].extents, sizes_[i],
                   [&](std::byte* data, std::uint64_t size) {
                     step.into.push_back({.data = data, .size = size});
                   });
    }
    return step;
  }

  // Hashes bytes that have arrived, while they are in the processor's cache, up to kSliceBytes.
  // Skips items that have no reservation or no checksum.
  void HashSlice() {
    for (std::uint64_t left = kSliceBytes; at_ < places_.size();) {
      if (!checks_ || places_[at_].code != Code::kOk) {
        before_ += sizes_[at_++];
        continue;
      }
      if (!hashing_) {
        checksum_.Begin(service_.store_.payload(), places_[at_].extents, sizes_[at_]);
        hashing_ = true;
        hashed_ = 0;
      }
      const std::uint64_t there = arrived_ > before_ + hashed_ ? arrived_ - before_ - hashed_ : 0;
      const std::uint64_t hashed = checksum_.Add(std::min(left, there));
      Count(service_.counters_.hashed_bytes, hashed);
      hashed_ += hashed;
      left -= hashed;
      if (!checksum_.done()) return;
      hashing_ = false;
      if (checksum_.Value() != finishes_[at_].checksum) {
        finishes_[at_].commit = false;
        Count(service_.counters_.corrupt, 1);
      }
      before_ += sizes_[at_++];
    }
  }

  void Commit() {
    // With `commit` false for a wrong checksum, which returns that reservation's memory.
    std::vector<FinishItem> finishes;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].code == Code::kOk) finishes.push_back(finishes_[i]);
    }
    if (finishes.empty()) {
      const MutexLock lock(listed_->mutex);
      listed_->done = true;
      return;
    }
    service_.store_.FinishThen(session_, finishes,
                               [listed = listed_, wake = wake_](std::vector<Code> codes) {
                                 {
                                   const MutexLock lock(listed->mutex);
                                   listed->codes = std::move(codes);
                                   listed->done = true;
                                 }
                                 wake();
                               });
  }

  Step AwaitListed() {
    const std::int64_t now_ns = service_.clock_.NowNs();
    bool done = false;
    std::vector<Code> finished;
    {
      const MutexLock lock(listed_->mutex);
      done = listed_->done;
      if (done) finished.swap(listed_->codes);
    }
    if (!done && now_ns < until_ns_ && service_.store_.MasterReachable()) {
      return {.kind = Step::Kind::kWait, .until_ns = std::min(until_ns_, now_ns + kListedTurnNs)};
    }
    // The values are committed in any case: kNotListed says that the master's answer is missing.
    // `finished` has a code for each reservation, so it has its own index.
    std::vector<Code> codes(places_.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      codes[i] = places_[i].code;
      if (codes[i] != Code::kOk) continue;
      codes[i] = !finishes_[i].commit ? Code::kCorrupt : done ? finished[next] : Code::kNotListed;
      ++next;
    }
    return transport::ReplyStep(Code::kOk, wire::Encode(std::span<const Code>(codes)));
  }

  DataService& service_;
  Session& visit_;
  const rpc::Caller caller_;
  const std::int64_t began_ns_;
  const std::int64_t until_ns_;  // the end of the caller's budget
  const bool checks_;
  const transport::Visit::Wake wake_;
  State state_ = State::kAwaiting;
  Token token_;                  // kAwaiting: its generation is awaited
  std::vector<std::byte> head_;  // kAwaiting: the request
  SessionNumber session_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::uint64_t> sizes_;
  std::vector<PutResult> places_;
  std::vector<FinishItem> finishes_;  // by item; unused where the item has no reservation
  std::uint64_t arrived_ = 0;         // bytes of the whole payload
  std::size_t at_ = 0;                // item that is hashed next
  std::uint64_t before_ = 0;          // bytes of the items before at_
  std::uint64_t hashed_ = 0;          // bytes of the item at_ that are hashed
  bool hashing_ = false;
  SlicedChecksum checksum_;
  const std::shared_ptr<Listed> listed_ = std::make_shared<Listed>();
};

// ---- both

bool DataService::May(const rpc::Caller& caller, SlotId slot, rpc::Scope scope) const {
  const std::uint64_t tenant = store_.TenantOfSlot(slot);
  return caller.MayTouch(tenant) && (options_.own_tag == 0 || options_.own_tag == tenant) &&
         (caller.Has(scope) || caller.IsOwner());
}

std::optional<std::uint64_t> DataService::PayloadOf(std::span<const std::byte> head) {
  const Result<wire::DataPut> request = wire::DecodeDataPut(head);
  if (!request || BytesOf(*request) > kMaxBatchBytes) return std::nullopt;
  return BytesOf(*request);
}

std::unique_ptr<transport::Served> DataService::Begin(Session& session, const rpc::Caller& caller,
                                                      wire::Method method,
                                                      std::span<const std::byte> head,
                                                      std::int64_t deadline_ns,
                                                      transport::Visit::Wake wake) {
  if (method == wire::Method::kDataGet) {
    const Result<wire::DataGet> request = wire::DecodeDataGet(head);
    if (!request) return nullptr;
    return std::make_unique<Get>(*this, session, caller, *request,
                                 Get::Waits{.deadline_ns = deadline_ns, .wake = std::move(wake)});
  }
  const Result<wire::DataPut> request = wire::DecodeDataPut(head);
  if (!request) return nullptr;
  const std::uint64_t bytes = BytesOf(*request);
  if (bytes > kMaxBatchBytes) return nullptr;
  // A refusal must still take the payload, or the peer could not read the answer behind it.
  if (request->items.size() > 1 && bytes > MaxBatchBytes()) {
    return std::make_unique<transport::Refused>(
        bytes, Error{.code = Code::kLimit,
                     .detail = fmt::format("a put of {} bytes; this owner takes {} at a time",
                                           bytes, MaxBatchBytes())});
  }
  if (const Status may = session.MayMove(bytes); !may) {
    return std::make_unique<transport::Refused>(bytes, may.error());
  }
  return std::make_unique<Put>(*this, session, caller, head, *request, std::move(wake));
}

}  // namespace kvcove::owner
