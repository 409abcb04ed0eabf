// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/data/copier.h"

#include "kvcove/base/size.h"
#include "kvcove/owner/core/pieces.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kBatchBytes = 32 * kMiB;
constexpr std::size_t kBatchItems = 512;
constexpr std::size_t kMaxPeers = 1024;
// Part of the memory (1/16) that is promoted at once: a session may hold a tenth.
constexpr std::uint64_t kUpShare = 16;
constexpr std::int64_t kUpNs = 5 * kSecond;
constexpr std::int64_t kLookNs = 50 * kMillisecond;  // how often a wait looks whether it ends

}  // namespace

// Objects that are sent together: same generation, same number of copies. Destruction returns them.
class Copier::Batch {
 public:
  Batch(Copier& copier, std::uint64_t copied_at_removal)
      : copied_at(copied_at_removal), copier_(copier) {
    const MutexLock lock(copier_.mutex_);
    ++copier_.batches_;
  }
  ~Batch() {
    for (const CopyLoan& copy : loans) copier_.owner_.data_side().Return({&copy.loan, 1});
    // Notifies under the lock: as soon as the lock is free, ~Copier may end and destroy changed_.
    const MutexLock lock(copier_.mutex_);
    --copier_.batches_;
    copier_.changed_.NotifyAll();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  const std::uint64_t copied_at;
  std::uint64_t bytes = 0;
  std::vector<CopyLoan> loans;
  std::vector<std::size_t> which;  // items of the request

 private:
  Copier& copier_;
};

// A device may still read the owner's memory, which may be unmapped as soon as this returns.
Copier::~Copier() {
  {
    const MutexLock lock(mutex_);
    while (batches_ > 0) changed_.Wait(mutex_);
  }
  if (session_ != 0) owner_.data_side().EndSession(session_);
}

SessionNumber Copier::Session() {
  if (session_ == 0) {
    // Two workers may add one each: the first stays, the other's ends.
    const SessionNumber added = owner_.data_side().AddRemoteSession();
    SessionNumber none = 0;
    if (!session_.compare_exchange_strong(none, added)) owner_.data_side().EndSession(added);
  }
  return session_;
}

std::size_t Copier::BringUp(std::span<const wire::CopyRequest::Item> items, std::size_t at,
                            std::int64_t deadline_ns) {
  const wire::CopyRequest::Item& first = items[at];
  const std::uint64_t most = std::min(kBatchBytes, owner_.options().memory_bytes / kUpShare);
  std::vector<std::string_view> keys;
  for (std::uint64_t bytes = 0; at < items.size() && keys.size() < kBatchItems; ++at) {
    const wire::CopyRequest::Item& item = items[at];
    const bool together = !item.key.empty() && item.slot == first.slot &&
                          item.generation == first.generation &&
                          (keys.empty() || bytes + item.size_bytes <= most);
    if (!together) break;
    bytes += item.size_bytes;
    keys.push_back(item.key);
  }
  struct Wait {
    Mutex mutex;
    CondVar changed;
    bool done KVCOVE_GUARDED_BY(mutex) = false;
  };
  const auto wait = std::make_shared<Wait>();
  const std::int64_t until_ns = std::min(deadline_ns, clock_.NowNs() + kUpNs);
  const auto brought =
      owner_.data_side().BringUp(owner_.data_side().TokenOf(first.slot, first.generation), keys,
                                 {.session = [this] { return Session(); },
                                  .deadline_ns = until_ns,
                                  .done =
                                      [wait](const std::vector<wire::LoadResult>&) {
                                        const MutexLock lock(wait->mutex);
                                        wait->done = true;
                                        wait->changed.NotifyAll();
                                      }});
  if (brought == nullptr) return at;
  // Looks at stopping_ every kLookNs, because Stop() notifies nobody here.
  {
    const MutexLock lock(wait->mutex);
    while (!wait->done && !stopping_ && clock_.NowNs() < until_ns) {
      wait->changed.WaitFor(wait->mutex, std::chrono::nanoseconds(kLookNs));
    }
    if (wait->done) return at;
  }
  owner_.data_side().GiveUp(brought);
  return at;
}

Code Copier::NotLent(const wire::CopyRequest::Item& item) const {
  return !item.key.empty() && owner_.data_side().OnDisk(item) ? Code::kInProgress : Code::kMiss;
}

std::shared_ptr<transport::Peer> Copier::PeerAt(const rpc::Address& address,
                                                const std::string& tenant) {
  const MutexLock lock(mutex_);
  // Calls under way keep their peers; later calls connect again.
  if (peers_.size() > kMaxPeers) peers_.clear();
  std::shared_ptr<transport::Peer>& peer = peers_[address.ToString() + " " + tenant];
  if (peer == nullptr) {
    const rpc::Access& own = options_.access;
    peer = options_.transport->Connect(
        address,
        {.access = tenant.empty() ? own : rpc::TenantAccess(options_.credentials, tenant, own.tls)},
        clock_);
  }
  return peer;
}

std::shared_ptr<transport::Peer> Copier::Run(const rpc::Address& to, SlotId slot,
                                             transport::Exchange& call, std::int64_t deadline_ns) {
  std::optional<std::string> own;
  if (options_.credentials != nullptr) {
    own = options_.credentials->TenantWithOwner(owner_.data_side().TenantOfSlot(slot));
  }
  const auto with = [&](const std::string& tenant) {
    auto peer = PeerAt(to, tenant);
    call.to = peer.get();
    transport::Run({&call, 1}, deadline_ns, clock_);
    return peer;
  };
  const auto denied = [&] { return !call.status && call.status.error().code == Code::kDenied; };
  // A refusal is delayed (rpc::kRefusalDelayNs), so an owner that refused one token last time is
  // shown the other first.
  const bool refused = own && Refuses(to);
  auto peer = with(refused ? *own : std::string());
  if (!denied() || !own) return peer;
  SetRefuses(to, !refused);
  return with(refused ? std::string() : *own);
}

bool Copier::Refuses(const rpc::Address& address) const {
  const MutexLock lock(mutex_);
  return refusing_.contains(address.ToString());
}

void Copier::SetRefuses(const rpc::Address& address, bool refuses) {
  const MutexLock lock(mutex_);
  if (refusing_.size() > kMaxPeers) refusing_.clear();
  if (refuses) {
    refusing_.insert(address.ToString());
  } else {
    refusing_.erase(address.ToString());
  }
}

Result<std::vector<Code>> Copier::Copy(const wire::CopyRequest& request) {
  KVCOVE_ASSIGN(const rpc::Address to, rpc::ParseAddress(request.to, 0));
  const std::int64_t deadline_ns =
      clock_.NowNs() + std::clamp<std::int64_t>(request.budget_ms, 1, 60'000) * kMillisecond;
  const std::shared_ptr<transport::Peer> peer = PeerAt(to, {});
  if (peer->broken()) peer->Probe();
  std::vector<Code> codes(request.items.size(), Code::kTimeout);
  std::size_t at = 0;
  std::size_t up = 0;  // items before it are promoted, as far as they could be
  while (at < request.items.size() && clock_.NowNs() < deadline_ns && !stopping_) {
    // Reads the number of applied removals before it lends values: a removal up to that number can
    // hit none of them. Read afterwards, it would cover a removal that came between a value and the
    // number, and the other owner would keep a removed value.
    const auto batch = std::make_shared<Batch>(*this, owner_.link_side().applied());
    if (batch->copied_at == 0) return Fail(Code::kUnavailable, "this owner follows no master yet");
    while (at < request.items.size() && batch->loans.size() < kBatchItems &&
           Take(request, at, up, deadline_ns, *batch, codes)) {
    }
    if (!batch->loans.empty()) Send(to, batch, deadline_ns, codes);
    std::vector<wire::CopyRequest::Item> moved;
    for (std::size_t i = 0; i < batch->loans.size(); ++i) {
      const Code code = codes[batch->which[i]];
      if (request.move && (code == Code::kOk || code == Code::kExists)) {
        moved.push_back({.id = batch->loans[i].id, .version = batch->loans[i].loan.version});
      }
    }
    // Drops moved values while they are lent: a lent object is not evicted, so its id still names
    // it.
    owner_.removals().Drop(moved);
  }
  return codes;
}

bool Copier::Take(const wire::CopyRequest& request, std::size_t& at, std::size_t& up,
                  std::int64_t deadline_ns, Batch& batch, std::vector<Code>& codes) {
  const wire::CopyRequest::Item& item = request.items[at];
  if (!item.key.empty() && at >= up) {
    // A promotion may take seconds, in which lent values could not be evicted: they are sent first.
    if (!batch.loans.empty()) return false;
    up = BringUp(request.items, at, deadline_ns);
  }
  auto loan = std::move(owner_.data_side().LendForCopy({&item, 1}).front());
  if (!loan) {
    codes[at++] = NotLent(item);
    return true;
  }
  const bool fits = batch.loans.empty() || (batch.bytes + loan->loan.size_bytes <= kBatchBytes &&
                                            batch.loans.front().token == loan->token &&
                                            batch.loans.front().copies == loan->copies);
  if (!fits) {
    owner_.data_side().Return({&loan->loan, 1});
    return false;
  }
  batch.bytes += loan->loan.size_bytes;
  batch.which.push_back(at++);
  batch.loans.push_back(std::move(*loan));
  return true;
}

void Copier::Send(const rpc::Address& to, const std::shared_ptr<Batch>& lent,
                  std::int64_t deadline_ns, std::vector<Code>& codes) {
  const Batch& batch = *lent;
  const std::int64_t left_ms = (deadline_ns - clock_.NowNs()) / kMillisecond;
  wire::DataPut put{.token = batch.loans.front().token,
                    .items = {},
                    .no_checksum = !options_.checksum,
                    .budget_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(left_ms, 1)),
                    .copies = batch.loans.front().copies,
                    .no_evict = true,
                    .copied_at = batch.copied_at};
  transport::Exchange call;
  for (const CopyLoan& copy : batch.loans) {
    const Loan& loan = copy.loan;
    put.items.push_back(
        {.key = copy.key,
         .after = {},
         .size_bytes = loan.size_bytes,
         .checksum = !options_.checksum ? 0
                     : loan.has_checksum
                         ? loan.checksum
                         : ChecksumOf(owner_.memory().payload(), loan.extents, loan.size_bytes),
         .group = copy.group});
    ForEachPiece(owner_.memory().payload(), loan.extents, loan.size_bytes,
                 [&](std::byte* data, std::uint64_t bytes) {
                   call.out.push_back({.data = data, .size = bytes});
                 });
  }
  call.method = wire::Method::kDataPut;
  call.head = wire::Encode(put);
  std::vector<Code> answers;
  call.on_reply = [&](std::span<const std::byte> body) -> Result<std::vector<transport::Piece>> {
    KVCOVE_ASSIGN(answers, wire::DecodeCodes(body, batch.loans.size()));
    return std::vector<transport::Piece>();
  };
  // A transfer that could not be stopped keeps the batch, and with it the loans, until its device
  // is quiet.
  call.on_quiet = [kept = lent]() mutable { kept.reset(); };
  const auto peer = Run(to, put.token.slot, call, deadline_ns);
  // By what is left of their time to live, up to a whole second; 0: without an end.
  std::map<std::int64_t, std::vector<std::string_view>> pinned;
  for (std::size_t i = 0; i < batch.loans.size(); ++i) {
    Code code = call.status ? answers[i] : call.status.error().code;
    // The busy buffers are this owner's, so the master need not know of them.
    if (code == Code::kBufferBusy) code = Code::kTimeout;
    codes[batch.which[i]] = code;
    // The other owner may have had the value already, without a pin.
    if ((code != Code::kOk && code != Code::kExists) || !batch.loans[i].hard_pinned) continue;
    const std::int64_t left_s = (batch.loans[i].pin_left_ns + kSecond - 1) / kSecond;
    pinned[left_s * kSecond].push_back(batch.loans[i].key);
  }
  // A pin that fails leaves a copy that may be evicted: the copy was made all the same.
  for (const auto& [left_ns, keys] : pinned) {
    (void)wire::MakeObjectStub(peer->channel())
        ->Pin(put.token, keys, PinKind::kHard, left_ns, deadline_ns);
  }
}

}  // namespace kvcove::owner
