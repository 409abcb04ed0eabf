// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/cluster_session.h"

#include <algorithm>
#include <map>

#include "kvcove/base/interrupt.h"
#include "kvcove/requester/cluster/remote_read.h"
#include "kvcove/rpc/busy.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kClusterPrefixChunk = 256;

}  // namespace

ClusterSession::ClusterSession(std::shared_ptr<ClusterHost> host, SessionOptions options,
                               const Clock& clock)
    : host_(std::move(host)),
      options_(std::move(options)),
      preferred_(PreferredOwners(options_.preferred_segment)),
      placement_(options_.placement.value_or(host_->options().placement)),
      clock_(clock),
      locator_(*host_, options_, clock),
      resets_(
          options_.name,
          [this](const wire::ResetRequest& request, std::int64_t deadline_ns) {
            return TryReset(request, deadline_ns);
          },
          clock, [this](const wire::ResetOutcome& outcome) { ForgetBindings(outcome); }) {
  host_->OpenEngine(options_.name, options_.engine);
}

// The keeper's thread uses this session, so it ends before the members do.
ClusterSession::~ClusterSession() {
  resets_.Stop();
  host_->CloseEngine(options_.name, options_.engine);
}

HostSession* ClusterSession::Local() {
  // Acquire: pairs with the release below, so the session is complete.
  HostSession* local = local_now_.load(std::memory_order_acquire);
  if (local != nullptr || host_->locals().count() == 0) return local;
  // Made before the lock, because its constructor takes the locks of owners. If two threads make
  // one each, the second one's ends after the lock.
  auto made = std::make_unique<HostSession>(host_, host_->locals(), options_, clock_);
  const MutexLock lock(local_mutex_);
  if (local_ == nullptr) {
    local_ = std::move(made);
    local_now_.store(local_.get(), std::memory_order_release);
  }
  return local_.get();
}

// ---- binding

Result<Token> ClusterSession::Capture(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  if (closed()) return NotProven();
  if (HostSession* local = Local(); local != nullptr) {
    // The owner's table in shared memory has the current generation, so a known binding is checked
    // without a call.
    Result<Token> token = local->Capture(options);
    if (token || token.error().code != Code::kUnavailable) return token;
  }
  // Fresh: a token must have the generation of now, and without the owner's table only the master
  // knows it.
  KVCOVE_ASSIGN(const Locator::Binding binding, locator_.Bind(options.version, /*fresh=*/true,
                                                              DeadlineOf(clock_, options.timeout)));
  if (!binding.open) return MustReset();
  return binding.token;
}

Status ClusterSession::Announce(const Token& token, std::span<const std::string_view> keys,
                                SaveNotice notice, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  if (closed()) return NotProven();
  return locator_.Announce(token, keys, notice, DeadlineOf(clock_, options.timeout));
}

// ---- look-ups

Status ClusterSession::Exists(std::span<const std::string_view> keys, std::span<ItemResult> results,
                              const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  if (closed()) {
    std::fill_n(results.begin(), keys.size(), Miss(MissReason::kClosed));
    return {};
  }
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  HostSession* local = Local();
  if (local != nullptr) KVCOVE_TRY(local->Exists(keys, results, options));
  FindElsewhere(local, keys, results, options, deadline_ns);
  return {};
}

void ClusterSession::FindElsewhere(const HostSession* local, std::span<const std::string_view> keys,
                                   std::span<ItemResult> results, const CallOptions& options,
                                   std::int64_t deadline_ns) {
  std::vector<std::size_t> which = MissedHere(local, keys, results);
  if (which.empty()) return;
  const Locator::Found found =
      locator_.Locate(keys, std::move(which), results, options.version, deadline_ns);
  if (options.hold > std::chrono::milliseconds(0)) ReadAhead(found, keys, options.hold);
  CountMisses(keys, results, options.version);
}

// The load that follows then finds these values in their owners' memory.
void ClusterSession::ReadAhead(const Locator::Found& found, std::span<const std::string_view> keys,
                               std::chrono::milliseconds hold) {
  std::map<wire::OwnerNumber, std::vector<std::string>> by_owner;
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    if (found.places[k].tier != Tier::kDisk) continue;
    by_owner[found.places[k].owner].emplace_back(keys[found.which[k]]);
  }
  for (auto& [owner, mine] : by_owner) host_->ReadAhead(found.token, owner, std::move(mine), hold);
}

std::vector<std::size_t> ClusterSession::MissedHere(const HostSession* local,
                                                    std::span<const std::string_view> keys,
                                                    std::span<ItemResult> results) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    // Other codes of this host are final; it has checked the key, too.
    if (local != nullptr && results[i].code != Code::kMiss) continue;
    if (local == nullptr && !CheckKey(keys[i])) {
      results[i] = {.code = Code::kInvalid};
      continue;
    }
    if (local == nullptr) results[i] = {};  // the caller may have used it before
    which.push_back(i);
  }
  return which;
}

void ClusterSession::CountMisses(std::span<const std::string_view> keys,
                                 std::span<const ItemResult> results, std::string_view version) {
  results = results.first(keys.size());
  if (std::ranges::find(results, Code::kMiss, &ItemResult::code) == results.end()) return;
  const std::optional<SlotId> slot = locator_.SlotOf(version);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (results[i].code == Code::kMiss) host_->CountMiss(slot, keys[i], results[i].reason);
  }
}

Result<std::size_t> ClusterSession::LongestPrefix(std::span<const std::string_view> keys,
                                                  const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  std::vector<ItemResult> results(std::min(keys.size(), kClusterPrefixChunk));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::size_t length = 0;
  while (length < keys.size()) {
    const auto part = keys.subspan(length, std::min(kClusterPrefixChunk, keys.size() - length));
    // One deadline for all chunks.
    CallOptions left = options;
    left.timeout = std::chrono::milliseconds(
        std::max<std::int64_t>(0, LeftNs(deadline_ns, clock_) / kMillisecond));
    KVCOVE_TRY(Exists(part, results, left));
    for (std::size_t i = 0; i < part.size(); ++i, ++length) {
      if (!results[i].ok()) return length;
    }
  }
  return length;
}

// ---- gets

Status ClusterSession::Get(std::span<const GetItem> items, std::span<ItemResult> results,
                           const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  if (closed()) {
    std::fill_n(results.begin(), items.size(), Miss(MissReason::kClosed));
    return {};
  }
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  HostSession* local = Local();
  if (local != nullptr) KVCOVE_TRY(local->Get(items, results, options));
  std::vector<std::string_view> keys(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) keys[i] = items[i].key;
  std::vector<std::size_t> which = MissedHere(local, keys, results);
  if (which.empty()) return {};
  // Hints first, which save the master's round trip. A wrong hint costs a call to an owner, and the
  // key is then looked up like those without a hint.
  const Locator::Found hinted = locator_.Recall(keys, which, results, options.version);
  GetRemote(hinted, items, results, deadline_ns);
  for (const std::size_t i : hinted.which) {
    // An owner that is slow or busy does not become faster by another call.
    if (results[i].code == Code::kMiss && results[i].reason != MissReason::kTimeout &&
        results[i].reason != MissReason::kLimited) {
      which.push_back(i);
    }
  }
  if (!which.empty() && LeftNs(deadline_ns, clock_) > 0) {
    const Locator::Found found =
        locator_.Locate(keys, std::move(which), results, options.version, deadline_ns);
    GetRemote(found, items, results, deadline_ns);
  }
  CountMisses(keys, results, options.version);
  return {};
}

void ClusterSession::GetRemote(const Locator::Found& found, std::span<const GetItem> items,
                               std::span<ItemResult> results, std::int64_t deadline_ns) {
  const std::vector<std::size_t>& which = found.which;
  if (which.empty()) return;
  std::vector<wire::OwnerNumber> owners;
  for (const wire::Place& place : found.places) owners.push_back(place.owner);
  const std::uint32_t busy_ms = GetFrom(found.token, which, owners, items, results, deadline_ns);
  GetTheRest(found, items, results, busy_ms, deadline_ns);
  // Values that the first owner did not give may have a second one.
  std::vector<std::size_t> again;
  owners.clear();
  for (std::size_t k = 0; k < which.size(); ++k) {
    const Code code = results[which[k]].code;
    if (found.places[k].second == wire::kNoOwner || code == Code::kOk ||
        code == Code::kBufferTooSmall || code == Code::kInvalid || code == Code::kBufferBusy) {
      continue;  // the first owner may still write into a busy buffer: no other owner may
    }
    again.push_back(which[k]);
    owners.push_back(found.places[k].second);
  }
  if (!again.empty() && LeftNs(deadline_ns, clock_) > 0) {
    (void)GetFrom(found.token, again, owners, items, results, deadline_ns);
    for (const std::size_t i : again) {
      if (results[i].code == Code::kLimit) results[i] = Miss(MissReason::kLimited);
    }
  }
}

// An owner promotes as many values from its disk in one call as its memory has room for, and
// answers kLimit for the rest. A busy owner answers kLimit for all, and names the time to ask
// again.
void ClusterSession::GetTheRest(const Locator::Found& found, std::span<const GetItem> items,
                                std::span<ItemResult> results, std::uint32_t busy_ms,
                                std::int64_t deadline_ns) {
  std::size_t left_before = found.which.size();
  while (LeftNs(deadline_ns, clock_) > 0) {
    std::vector<std::size_t> which;
    std::vector<wire::OwnerNumber> owners;
    for (std::size_t k = 0; k < found.which.size(); ++k) {
      if (results[found.which[k]].code != Code::kLimit) continue;
      which.push_back(found.which[k]);
      owners.push_back(found.places[k].owner);
    }
    if (which.empty()) return;
    if (busy_ms != 0) {
      if (!rpc::WaitWhileBusy(busy_ms, deadline_ns, clock_)) break;
    } else if (which.size() >= left_before) {
      break;  // no value was promoted by that call, so another one would not help either
    }
    left_before = which.size();
    busy_ms = GetFrom(found.token, which, owners, items, results, deadline_ns);
  }
  for (const std::size_t i : found.which) {
    if (results[i].code != Code::kLimit) continue;
    results[i] = Miss(busy_ms != 0 ? MissReason::kLimited : MissReason::kTimeout);
  }
}

std::uint32_t ClusterSession::GetFrom(const Token& token, std::span<const std::size_t> which,
                                      std::span<const wire::OwnerNumber> owners,
                                      std::span<const GetItem> items, std::span<ItemResult> results,
                                      std::int64_t deadline_ns) {
  // One Get for each owner, because an unknown number costs a call to the master. The map also
  // keeps the peers until the exchanges have ended.
  std::map<wire::OwnerNumber, std::shared_ptr<transport::Peer>> peers;
  RemoteRead read(token, host_->options().checksum, items, results);
  for (std::size_t k = 0; k < which.size(); ++k) {
    const auto [at, fresh] = peers.try_emplace(owners[k]);
    auto& peer = at->second;
    if (fresh) peer = host_->peers().Get(owners[k], deadline_ns);
    if (peer == nullptr) {
      results[which[k]] = Miss(MissReason::kOwnerGone);
    } else {
      read.Add(which[k], *peer, peer->address().ToString());
    }
  }
  transport::Run(read.Exchanges(), deadline_ns, clock_);
  read.Finish();
  return read.retry_after_ms();
}

// ---- in place

Result<Borrowed> ClusterSession::Borrow(std::span<const std::string_view> keys,
                                        const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  auto loan = std::make_unique<Loan>(keys.size(), clock_, host_, resets_.closed_flag());
  const auto ask = [&](Loan& made, std::span<const BorrowKey> wanted,
                       std::span<ItemResult> results) -> Status {
    // A loan is memory of this host, so only its owners are asked.
    HostSession* const local = closed() ? nullptr : Local();
    if (local != nullptr) {
      KVCOVE_TRY(local->BorrowInto(made, wanted, results, options));
    } else {
      (void)MissedHere(nullptr, keys, results);
      for (ItemResult& result : results) {
        if (result.code == Code::kInvalid) continue;
        result = Miss(closed() ? MissReason::kClosed : MissReason::kUnavailable);
      }
    }
    // Another host may have a key that this one misses, unless the session is closed.
    for (ItemResult& result : results) {
      result.elsewhere = result.code == Code::kMiss && result.reason != MissReason::kClosed;
    }
    return {};
  };
  return BorrowBy(std::move(loan), keys, ask);
}

Result<std::vector<SegmentRange>> ClusterSession::Segments(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  HostSession* const local = Local();
  if (local == nullptr) return std::vector<SegmentRange>();
  return local->Segments(options);
}

// ---- the rest

namespace {

// Joins the answers of two replicas. One that is pinned keeps the value, so one success is enough.
// An unpin must reach each replica that still exists.
Code OfBoth(Code one, Code other, bool pins) {
  const auto rank = [&](Code code) {
    if (code == Code::kMiss) return 2;
    return (code == Code::kOk) == pins ? 0 : 1;
  };
  return rank(other) < rank(one) ? other : one;
}

}  // namespace

Status ClusterSession::CodesCall(std::span<const std::string_view> keys,
                                 std::span<ItemResult> results, const CallOptions& options,
                                 std::optional<PinKind> kind, std::int64_t duration_ns) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    results[i] = {};
    if (CheckKey(keys[i])) {
      which.push_back(i);
    } else {
      results[i].code = Code::kInvalid;
    }
  }
  const Locator::Found found =
      locator_.Locate(keys, std::move(which), results, options.version, deadline_ns);
  std::map<wire::OwnerNumber, std::vector<std::size_t>> by_owner;
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    by_owner[found.places[k].owner].push_back(found.which[k]);
    // Both replicas: eviction decides at each owner by itself.
    if (found.places[k].second != wire::kNoOwner) {
      by_owner[found.places[k].second].push_back(found.which[k]);
    }
  }
  std::vector<std::optional<Code>> answers(keys.size());
  for (const auto& [owner, mine] : by_owner) {
    std::vector<std::string_view> part;
    for (const std::size_t i : mine) part.push_back(keys[i]);
    const auto peer = host_->peers().Get(owner, deadline_ns);
    Result<std::vector<Code>> codes = Fail(Code::kUnavailable, "the owner is gone");
    if (peer != nullptr && !peer->broken()) {
      codes = wire::MakeObjectStub(peer->channel())
                  ->Pin(found.token, part, kind, duration_ns, deadline_ns);
    }
    for (std::size_t k = 0; k < mine.size(); ++k) {
      std::optional<Code>& answer = answers[mine[k]];
      const Code code = codes ? (*codes)[k] : codes.error().code;
      answer = answer ? OfBoth(*answer, code, kind.has_value()) : code;
      results[mine[k]] = {.code = *answer};
    }
  }
  return {};
}

Status ClusterSession::Pin(std::span<const std::string_view> keys, PinKind kind,
                           std::chrono::milliseconds duration, std::span<ItemResult> results,
                           const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  KVCOVE_TRY(CheckPin(kind, duration, results.first(keys.size())));
  return CodesCall(keys, results, options, kind, PinNs(duration));
}

Status ClusterSession::Unpin(std::span<const std::string_view> keys, std::span<ItemResult> results,
                             const CallOptions& options) {
  return CodesCall(keys, results, options, std::nullopt, 0);
}

Status ClusterSession::Remove(std::span<const std::string_view> keys, std::span<ItemResult> results,
                              const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  Result<std::vector<Code>> codes = locator_.WithToken<std::vector<Code>>(
      options.version, deadline_ns,
      [&](const Token& token) { return host_->master().Remove(token, keys, deadline_ns); });
  for (std::size_t i = 0; i < keys.size(); ++i) {
    results[i] = {.code = codes ? (*codes)[i] : codes.error().code};
    if (results[i].code == Code::kMiss) results[i].reason = MissReason::kNeverPut;
  }
  if (!codes) return std::unexpected(codes.error());
  return {};
}

Result<std::uint64_t> ClusterSession::RemoveMatching(std::string_view pattern,
                                                     const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  if (pattern.empty()) return Fail(Code::kInvalid, "an empty pattern; '*' stands for any key");
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  return locator_.WithToken<std::uint64_t>(options.version, deadline_ns, [&](const Token& token) {
    return host_->master().RemoveMatching(token, pattern, deadline_ns);
  });
}

namespace {

// Joins one owner's answer about a value to those of others: the value is held, or pinned, if one
// of its replicas is.
void Join(std::optional<ObjectStat>& known, const std::optional<ObjectStat>& told) {
  if (!told) return;
  if (!known) {
    known = told;
    return;
  }
  known->hard_pinned |= told->hard_pinned;
  known->soft_pinned |= told->soft_pinned;
  known->held |= told->held;
}

}  // namespace

Result<std::vector<std::optional<ObjectStat>>> ClusterSession::Stat(
    std::span<const std::string_view> keys, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::vector<ItemResult> results(keys.size());
  std::vector<std::size_t> all(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) all[i] = i;
  const Locator::Found found =
      locator_.Locate(keys, std::move(all), results, options.version, deadline_ns);
  std::vector<std::optional<ObjectStat>> stats(keys.size());
  std::map<wire::OwnerNumber, std::vector<std::size_t>> by_owner;
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    if (found.places[k].second == wire::kNoOwner) {
      by_owner[found.places[k].owner].push_back(found.which[k]);
      continue;
    }
    // A look-up names two owners at most, and any other replica may be held or pinned.
    for (const wire::OwnerStat& owner : host_->peers().Owners()) {
      if (owner.live) by_owner[owner.number].push_back(found.which[k]);
    }
  }
  for (const auto& [owner, mine] : by_owner) {
    const auto peer = host_->peers().Get(owner, deadline_ns);
    if (peer == nullptr || peer->broken()) continue;
    std::vector<std::string_view> part;
    for (const std::size_t i : mine) part.push_back(keys[i]);
    const auto answers =
        wire::MakeObjectStub(peer->channel())->StatObjects(found.token, part, deadline_ns);
    if (!answers) continue;
    for (std::size_t k = 0; k < mine.size(); ++k) Join(stats[mine[k]], (*answers)[k]);
  }
  return stats;
}

Result<std::vector<StoredObject>> ClusterSession::List(std::string_view prefix,
                                                       const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  KVCOVE_ASSIGN(const Locator::Binding binding,
                locator_.Bind(options.version, /*fresh=*/true, deadline_ns));
  // From the master, not from Peers: a list for people must not lack an owner that has just joined.
  KVCOVE_ASSIGN(const wire::OwnersReply reply, host_->master().Owners(deadline_ns));
  const std::vector<wire::OwnerStat>& owners = reply.owners;
  std::map<std::string, StoredObject> objects;
  for (const wire::OwnerStat& owner : owners) {
    if (!owner.live) continue;
    const auto peer = host_->peers().Get(owner.number, deadline_ns);
    if (peer == nullptr || peer->broken()) continue;
    const auto service = wire::MakeObjectStub(peer->channel());
    const Status listed = ListFrom(*service, binding.token.slot, prefix, deadline_ns, objects);
    // An owner that does not answer has no value that a get could return.
    if (!listed && listed.error().code == Code::kLimit) return std::unexpected(listed.error());
  }
  return ValuesOf(std::move(objects));
}

Result<ObjectCount> ClusterSession::Count(const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  KVCOVE_ASSIGN(const Locator::Binding binding,
                locator_.Bind(options.version, /*fresh=*/true, deadline_ns));
  KVCOVE_ASSIGN(const wire::OwnersReply reply, host_->master().Owners(deadline_ns));
  const std::vector<wire::OwnerStat>& owners = reply.owners;
  ObjectCount sum{.generation = binding.token.generation};
  for (const wire::OwnerStat& owner : owners) {
    const auto peer = owner.live ? host_->peers().Get(owner.number, deadline_ns) : nullptr;
    if (peer == nullptr || peer->broken()) continue;
    const auto count =
        CountFrom(*wire::MakeObjectStub(peer->channel()), binding.token.slot, deadline_ns);
    // Another generation: the owner does not know of a reset yet, or a reset came since Bind.
    if (!count || count->generation != sum.generation) continue;
    sum.objects += count->objects;
    sum.voided += count->voided;
  }
  return sum;
}

Result<std::vector<std::vector<ObjectPlace>>> ClusterSession::Places(
    std::span<const std::string_view> keys, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  std::vector<ItemResult> results(keys.size());
  const std::vector<std::size_t> all = MissedHere(nullptr, keys, results);
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  const Locator::Found found = locator_.Locate(keys, all, results, options.version, deadline_ns);
  std::map<wire::OwnerNumber, std::string> addresses;
  for (const wire::OwnerStat& owner : host_->peers().Owners()) {
    addresses[owner.number] = owner.address;
  }
  std::vector<std::vector<ObjectPlace>> places(keys.size());
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    const wire::Place& place = found.places[k];
    if (place.owner == wire::kNoOwner) continue;
    std::vector<ObjectPlace>& known = places[found.which[k]];
    known.push_back(
        {.owner = addresses[place.owner], .tier = place.tier, .bytes = place.size_bytes});
    if (place.second == wire::kNoOwner) continue;
    // The answer lacks the second owner's tier: it counts as the first one's, unless the owner
    // answers below that it has the value in memory.
    known.push_back(
        {.owner = addresses[place.second], .tier = place.tier, .bytes = place.size_bytes});
  }
  FindMoreReplicas(found, keys, deadline_ns, places);
  return places;
}

// A look-up names two owners at most, and the tier of the first one. For keys with two owners every
// owner is asked, because any of them may have a further replica in its memory. An owner that does
// not answer has no value that a get could return.
void ClusterSession::FindMoreReplicas(const Locator::Found& found,
                                      std::span<const std::string_view> keys,
                                      std::int64_t deadline_ns,
                                      std::vector<std::vector<ObjectPlace>>& places) {
  std::vector<std::size_t> which;
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    if (found.places[k].second != wire::kNoOwner) which.push_back(found.which[k]);
  }
  if (which.empty()) return;
  std::vector<std::string_view> asked;
  for (const std::size_t i : which) asked.push_back(keys[i]);
  for (const wire::OwnerStat& owner : host_->peers().Owners()) {
    const auto peer = owner.live ? host_->peers().Get(owner.number, deadline_ns) : nullptr;
    if (peer == nullptr || peer->broken()) continue;
    const auto stats =
        wire::MakeObjectStub(peer->channel())->StatObjects(found.token, asked, deadline_ns);
    if (!stats) continue;
    for (std::size_t k = 0; k < which.size(); ++k) {
      if (!(*stats)[k]) continue;
      std::vector<ObjectPlace>& known = places[which[k]];
      const auto at = std::ranges::find(known, owner.address, &ObjectPlace::owner);
      if (at != known.end()) {
        at->tier = Tier::kMemory;
      } else {
        known.push_back({.owner = owner.address, .bytes = known.front().bytes});
      }
    }
  }
}

Result<LocatedPrefix> ClusterSession::Locate(std::span<const std::string_view> keys,
                                             const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  KVCOVE_TRY(CheckKeys(keys));
  if (closed()) return LocatedPrefix{.reason = MissReason::kClosed};
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  Result<PrefixShares> shares = PrefixShares();
  for (const bool fresh : {false, true}) {
    KVCOVE_ASSIGN(const Locator::Binding binding,
                  locator_.Bind(options.version, fresh, deadline_ns));
    if (!binding.open) return LocatedPrefix{.reason = MissReason::kClosed};
    std::vector<Id128> hashes;
    hashes.reserve(keys.size());
    for (const std::string_view key : keys) {
      hashes.push_back(DirectoryHash(binding.token.slot, key));
    }
    shares = host_->Locate(binding.token, hashes, deadline_ns);
    if (shares || shares.error().code != Code::kStale) break;
  }
  if (!shares) {
    // Resets came one after the other.
    if (shares.error().code == Code::kStale) return LocatedPrefix{.reason = MissReason::kReset};
    return std::unexpected(shares.error());
  }
  KVCOVE_ASSIGN(const auto names, NamesOf(*shares, deadline_ns));
  return LocatedOf(*shares, names);
}

Result<std::map<wire::OwnerNumber, std::string>> ClusterSession::NamesOf(const PrefixShares& shares,
                                                                         std::int64_t deadline_ns) {
  std::map<wire::OwnerNumber, std::string> names;
  const auto add = [&](std::span<const wire::OwnerStat> owners) {
    for (const wire::OwnerStat& owner : owners) names[owner.number] = owner.address;
  };
  add(host_->peers().Owners());
  const bool all = std::ranges::all_of(
      shares.owners, [&](const PrefixShare& share) { return names.contains(share.owner); });
  if (all) return names;
  // An owner has just joined.
  KVCOVE_ASSIGN(const wire::OwnersReply reply, host_->master().Owners(deadline_ns));
  add(reply.owners);
  return names;
}

Status ClusterSession::NameVersions(std::span<const std::string> versions,
                                    const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  host_->engines().Named(options_.name, options_.engine, {versions.begin(), versions.end()});
  return host_->master().NameVersions(options_.name, options_.engine, versions,
                                      DeadlineOf(clock_, options.timeout));
}

// ---- reset

Result<wire::ResetOutcome> ClusterSession::TryReset(const wire::ResetRequest& request,
                                                    std::int64_t deadline_ns) {
  HostSession* const local_session = Local();
  const bool known = request.version &&
                     (locator_.KnowsVersion(*request.version) ||
                      (local_session != nullptr && local_session->KnowsVersion(*request.version)));
  const rpc::Address asked = host_->master_address();
  Result<wire::ResetOutcome> outcome =
      AttemptReset(host_->master(), options_, request, known, deadline_ns);
  if (!outcome) {
    // No master has refused the reset: a token file is being replaced.
    const bool local = outcome.error().code == Code::kInvalid && !outcome.error().answered;
    return Fail(local ? Code::kUnavailable : outcome.error().code, outcome.error().detail);
  }
  // The new leader may have got the reset alone.
  if (known && host_->master_address() != asked) {
    return Fail(Code::kUnavailable, "another master leads since the reset began");
  }
  return outcome;
}

void ClusterSession::ForgetBindings(const wire::ResetOutcome& outcome) {
  // Both, or one of them would use the former generation until it is refused. Local() again: the
  // first owner of this host may have been found during the call.
  locator_.CloseAll(outcome);
  if (HostSession* local = Local(); local != nullptr) local->ForgetBindings(outcome);
}

Status ClusterSession::Reset(const ResetOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return resets_.Reset(ResetOf(options_, options), options.timeout);
}

Result<std::uint64_t> ClusterSession::Prune(std::string_view before, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return PruneUntil(clock_, DeadlineOf(clock_, options.timeout),
                    [&](std::int64_t deadline_ns) -> Result<wire::PruneOutcome> {
                      auto outcome = host_->master().Prune(
                          {.name = options_.name, .before = std::string(before)}, deadline_ns);
                      // No master has refused it: a token file is being replaced (TryReset).
                      const bool local = !outcome && outcome.error().code == Code::kInvalid &&
                                         !outcome.error().answered;
                      if (local) return Fail(Code::kUnavailable, outcome.error().detail);
                      return outcome;
                    });
}

}  // namespace kvcove::requester
