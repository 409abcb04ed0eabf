// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/requester/remote_read.h"
#include "kvcove/requester/remote_write.h"

namespace kvcove::requester {
namespace {

constexpr std::size_t kPrefixChunk = 256;

}  // namespace

ClusterSession::ClusterSession(std::shared_ptr<ClusterHost> host, SessionOptions options,
                               const Clock& clock)
    : host_(std::move(host)),
      options_(std::move(options)),
      preferred_(options_.preferred_segment),
      placement_(options_.placement.value_or(host_->options().placement)),
      clock_(clock),
      locator_(*host_, options_, clock),
      resets_(
          options_.name,
          [this](const wire::ResetRequest& request, std::int64_t deadline_ns) {
            return TryReset(request, deadline_ns);
          },
          clock) {
  host_->OpenEngine(options_.name, options_.engine);
}

ClusterSession::~ClusterSession() {
  resets_.Stop();
  host_->CloseEngine(options_.name, options_.engine);
}

HostSession* ClusterSession::Local() {
  HostSession* local = local_now_.load(std::memory_order_acquire);
  if (local != nullptr || host_->local() == nullptr) return local;
  // Made before the lock: its constructor takes locks of the host. The cluster's host owns the
  // local one and lives as long as this session. One that came second ends after the lock.
  auto made =
      std::make_unique<HostSession>(std::shared_ptr<Host>(host_, host_->local()), options_, clock_);
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
  if (closed()) return Fail(Code::kClosed, "a reset of this session has not been proven yet");
  if (HostSession* local = Local(); local != nullptr) {
    // The owner's table says at once whether what is known is current.
    Result<Token> token = local->Capture(options);
    if (token || token.error().code != Code::kUnavailable) return token;
  }
  KVCOVE_ASSIGN(const Locator::Binding binding, locator_.Bind(options.version, /*fresh=*/true,
                                                              DeadlineOf(clock_, options.timeout)));
  if (!binding.open) {
    return Fail(Code::kClosed,
                "another engine has reset this namespace: nothing says that this "
                "engine has the new weights until it resets, too");
  }
  return binding.token;
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
  (void)locator_.Locate(keys, std::move(which), results, options.version, deadline_ns);
  CountMisses(keys, results, options.version);
}

std::vector<std::size_t> ClusterSession::MissedHere(const HostSession* local,
                                                    std::span<const std::string_view> keys,
                                                    std::span<ItemResult> results) {
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (local != nullptr && results[i].code != Code::kMiss) continue;
    if (local == nullptr && !CheckKey(keys[i])) {
      results[i] = {.code = Code::kInvalid};
      continue;
    }
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
  std::vector<ItemResult> results(std::min(keys.size(), kPrefixChunk));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::size_t length = 0;
  while (length < keys.size()) {
    const auto part = keys.subspan(length, std::min(kPrefixChunk, keys.size() - length));
    CallOptions left = options;
    left.timeout = std::chrono::milliseconds(
        std::max<std::int64_t>(0, (deadline_ns - clock_.NowNs()) / kMillisecond));
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
  const Locator::Found hinted = locator_.Recall(keys, which, results, options.version);
  GetRemote(hinted, items, results, deadline_ns);
  for (const std::size_t i : hinted.which) {
    if (results[i].code == Code::kMiss && results[i].reason != MissReason::kTimeout) {
      which.push_back(i);
    }
  }
  if (!which.empty() && clock_.NowNs() < deadline_ns) {
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
  GetFrom(found.token, which, owners, items, results, deadline_ns);
  // What its first owner did not give may have another one.
  std::vector<std::size_t> again;
  owners.clear();
  for (std::size_t k = 0; k < which.size(); ++k) {
    const Code code = results[which[k]].code;
    if (found.places[k].second == wire::kNoOwner || code == Code::kOk ||
        code == Code::kBufferTooSmall || code == Code::kInvalid) {
      continue;
    }
    again.push_back(which[k]);
    owners.push_back(found.places[k].second);
  }
  if (!again.empty() && clock_.NowNs() < deadline_ns) {
    GetFrom(found.token, again, owners, items, results, deadline_ns);
  }
}

void ClusterSession::GetFrom(const Token& token, std::span<const std::size_t> which,
                             std::span<const wire::OwnerNumber> owners,
                             std::span<const GetItem> items, std::span<ItemResult> results,
                             std::int64_t deadline_ns) {
  // Once an owner: one that is not known costs a call to the master.
  std::map<wire::OwnerNumber, std::shared_ptr<transport::tcp::Peer>> peers;
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
}

// ---- puts

bool ClusterSession::PrefersLocal(const HostSession* local) {
  if (local == nullptr || options_.replicas > 1) return false;
  if (preferred_.empty()) return placement_ == Placement::kLocalFirst;
  const wire::OwnerNumber here = host_->LocalOwner();
  const std::vector<wire::OwnerStat> owners = host_->peers().Owners();
  const auto owner = std::ranges::find(owners, here, &wire::OwnerStat::number);
  return owner != owners.end() && owner->address == preferred_;
}

void ClusterSession::FallBack(std::string_view why) {
  host_->CountFallback();
  if (!said_fallback_.exchange(true)) {
    LogWarn("the preferred segment '{}' {}; others are used", preferred_, why);
  }
}

std::vector<wire::OwnerNumber> ClusterSession::Targets(std::int64_t deadline_ns) {
  std::vector<wire::OwnerStat> owners = host_->peers().Owners();
  std::erase_if(owners, [&](const wire::OwnerStat& owner) {
    const auto peer = host_->peers().Get(owner.number, deadline_ns);
    return peer == nullptr || peer->broken();
  });
  if (!preferred_.empty() &&
      std::ranges::find(owners, preferred_, &wire::OwnerStat::address) == owners.end()) {
    FallBack("is not there");
  }
  const PlacementRequest request{
      .strategy = placement_, .preferred = preferred_, .host = host_->options().host};
  const MutexLock lock(random_mutex_);
  return OrderOwners(request, std::move(owners), random_);
}

Status ClusterSession::Put(const Token& token, std::span<const PutItem> items,
                           std::span<ItemResult> results, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  if (closed()) {
    std::fill_n(results.begin(), items.size(), ItemResult{.code = Code::kClosed});
    return {};
  }
  if (token.slot >= kMaxSlots) {
    std::fill_n(results.begin(), items.size(), ItemResult{.code = Code::kInvalid});
    return Fail(Code::kInvalid, "the token does not come from Capture");
  }
  std::vector<std::size_t> which;
  wire::OwnerNumber asked = wire::kNoOwner;
  if (HostSession* local = Local(); PrefersLocal(local)) {
    asked = host_->LocalOwner();
    const Status stored = local->Put(token, items, results, options);
    if (!stored && stored.error().code == Code::kInvalid) return stored;
    // What this host has no room for, or whose owner is gone, goes elsewhere.
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (results[i].code == Code::kNoSpace || results[i].code == Code::kUnavailable) {
        which.push_back(i);
      }
    }
  } else {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::uint64_t size = SizeOf(items[i].value);
      results[i] = {.code = Code::kUnavailable, .bytes = size};
      const bool null = std::ranges::any_of(items[i].value, [](const ConstBuffer& piece) {
        return piece.data == nullptr && piece.size > 0;
      });
      if (!CheckKey(items[i].key) || !CheckObjectSize(size) || null ||
          items[i].after.size() > kMaxKeyBytes) {
        results[i].code = Code::kInvalid;
        continue;
      }
      which.push_back(i);
    }
  }
  if (which.empty()) return {};
  return PutRemote(token, items, which, asked, results, options, deadline_ns);
}

Status ClusterSession::PutRemote(const Token& token, std::span<const PutItem> items,
                                 std::span<const std::size_t> which, wire::OwnerNumber asked,
                                 std::span<ItemResult> results, const CallOptions& options,
                                 std::int64_t deadline_ns) {
  // What is there already need not travel.
  std::vector<Id128> hashes;
  hashes.reserve(which.size());
  for (const std::size_t i : which) hashes.push_back(DirectoryHash(token.slot, items[i].key));
  std::vector<std::size_t> todo;
  const auto places = host_->Lookup(token, hashes, deadline_ns);
  if (!places && places.error().code == Code::kStale) {
    for (const std::size_t i : which) results[i].code = Code::kStale;
    return {};
  }
  for (std::size_t k = 0; k < which.size(); ++k) {
    if (places && (*places)[k].owner != wire::kNoOwner) {
      results[which[k]].code = Code::kExists;
    } else {
      todo.push_back(which[k]);
    }
  }
  if (todo.empty()) return {};
  std::vector<wire::OwnerNumber> targets = Targets(deadline_ns);
  if (targets.empty() && places) {
    host_->peers().Refresh(deadline_ns);  // one may have come since the last look
    targets = Targets(deadline_ns);
  }
  std::erase(targets, asked);
  if (targets.empty()) {
    return Fail(Code::kUnavailable, "no owner of the cluster can be reached");
  }
  const std::size_t copies = std::min<std::size_t>(std::max(1U, options_.replicas), targets.size());
  std::vector<std::uint32_t> groups(items.size());
  for (const std::size_t i : todo) {
    groups[i] = static_cast<std::uint32_t>(RandomU64()) | 1;
    results[i].replicas = 0;
  }
  // Runs of neighbours, so that a chain stays together, in turn over the owners that are as good.
  std::vector<std::vector<std::size_t>> parts;
  std::uint64_t filled = 0;
  for (const std::size_t i : todo) {
    const std::uint64_t size = results[i].bytes;
    if (parts.empty() || parts.back().size() >= kPartItems || filled + size > kPartBytes) {
      parts.emplace_back();
      filled = 0;
    }
    parts.back().push_back(i);
    filled += size;
  }
  // An owner that ended before it answered may have stored the value: that another one refuses it
  // does not say that it is nowhere.
  std::vector<std::size_t> unknown;
  if (asked != wire::kNoOwner) {
    std::ranges::copy_if(todo, std::back_inserter(unknown),
                         [&](std::size_t i) { return results[i].code == Code::kUnavailable; });
  }
  const bool spread = preferred_.empty() && options_.replicas <= 1;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    std::vector<wire::OwnerNumber> owners;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      owners.push_back(targets[(copy + (spread ? p : 0)) % targets.size()]);
    }
    PutTo(token, items, parts, owners, groups, results, options, deadline_ns);
  }
  // A full or failing owner is not the end: the next one is asked, once.
  for (std::size_t next = copies; next < targets.size() && next < copies + 2; ++next) {
    std::vector<std::size_t> again;
    for (const std::size_t i : todo) {
      if (results[i].replicas == 0 &&
          (results[i].code == Code::kNoSpace || results[i].code == Code::kUnavailable)) {
        again.push_back(i);
      }
    }
    if (again.empty() || clock_.NowNs() >= deadline_ns) break;
    std::ranges::copy_if(again, std::back_inserter(unknown),
                         [&](std::size_t i) { return results[i].code == Code::kUnavailable; });
    if (!preferred_.empty() && next == copies) FallBack("is full or does not answer");
    const std::vector<std::vector<std::size_t>> rest = {again};
    const std::vector<wire::OwnerNumber> owners = {targets[next]};
    PutTo(token, items, rest, owners, groups, results, options, deadline_ns);
  }
  for (const std::size_t i : unknown) {
    if (results[i].code == Code::kStale) results[i].code = Code::kUnavailable;
  }
  return {};
}

void ClusterSession::PutTo(const Token& token, std::span<const PutItem> items,
                           std::span<const std::vector<std::size_t>> parts,
                           std::span<const wire::OwnerNumber> owners,
                           std::span<const std::uint32_t> groups, std::span<ItemResult> results,
                           const CallOptions& options, std::int64_t deadline_ns) {
  const RemoteWriteOptions common{
      .token = token,
      .checksum = host_->options().checksum,
      .copies = static_cast<std::uint8_t>(std::clamp<std::uint32_t>(options_.replicas, 1, 255)),
      .after = options.after,
      .deadline_ns = deadline_ns};
  RemoteWrite write(common, items, groups, results);
  std::vector<std::shared_ptr<transport::tcp::Peer>> peers;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    auto peer = host_->peers().Get(owners[p], deadline_ns);
    if (peer == nullptr) continue;
    write.Add(parts[p], *peer, clock_.NowNs());
    peers.push_back(std::move(peer));
  }
  transport::Run(write.Exchanges(), deadline_ns, clock_);
  write.Finish();
}

// ---- the rest

Status ClusterSession::CodesCall(std::span<const std::string_view> keys,
                                 std::span<ItemResult> results, const CallOptions& options,
                                 std::optional<PinKind> kind, std::int64_t duration_ns) {
  KVCOVE_TRY(CheckBatch(keys.size(), results.size()));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  std::vector<std::size_t> which;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (CheckKey(keys[i])) {
      which.push_back(i);
    } else {
      results[i] = {.code = Code::kInvalid};
    }
  }
  const Locator::Found found =
      locator_.Locate(keys, std::move(which), results, options.version, deadline_ns);
  std::map<wire::OwnerNumber, std::vector<std::size_t>> by_owner;
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    by_owner[found.places[k].owner].push_back(found.which[k]);
    if (found.places[k].second != wire::kNoOwner) {
      by_owner[found.places[k].second].push_back(found.which[k]);
    }
  }
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
      results[mine[k]] = {.code = codes ? (*codes)[k] : codes.error().code};
    }
  }
  return {};
}

Status ClusterSession::Pin(std::span<const std::string_view> keys, PinKind kind,
                           std::chrono::milliseconds duration, std::span<ItemResult> results,
                           const CallOptions& options) {
  return CodesCall(keys, results, options, kind,
                   std::clamp<std::int64_t>(duration.count(), 0, 1'000'000'000) * kMillisecond);
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
    by_owner[found.places[k].owner].push_back(found.which[k]);
  }
  for (const auto& [owner, mine] : by_owner) {
    const auto peer = host_->peers().Get(owner, deadline_ns);
    if (peer == nullptr || peer->broken()) continue;
    std::vector<std::string_view> part;
    for (const std::size_t i : mine) part.push_back(keys[i]);
    const auto answers =
        wire::MakeObjectStub(peer->channel())->StatObjects(found.token, part, deadline_ns);
    if (!answers) continue;
    for (std::size_t k = 0; k < mine.size(); ++k) stats[mine[k]] = (*answers)[k];
  }
  return stats;
}

Result<std::vector<StoredObject>> ClusterSession::List(std::string_view prefix,
                                                       const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  const std::int64_t deadline_ns = DeadlineOf(clock_, options.timeout);
  KVCOVE_ASSIGN(const Locator::Binding binding,
                locator_.Bind(options.version, /*fresh=*/true, deadline_ns));
  KVCOVE_ASSIGN(const wire::OwnersReply reply, host_->master().Owners(deadline_ns));
  const std::vector<wire::OwnerStat>& owners = reply.owners;
  std::map<std::string, StoredObject> objects;
  for (const wire::OwnerStat& owner : owners) {
    if (!owner.live) continue;
    const auto peer = host_->peers().Get(owner.number, deadline_ns);
    if (peer == nullptr || peer->broken()) continue;
    const auto service = wire::MakeObjectStub(peer->channel());
    const Status listed = ListFrom(*service, binding.token.slot, prefix, deadline_ns, objects);
    // An owner that does not answer has nothing that anybody could get.
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
    if (!count || count->generation != sum.generation) continue;
    sum.objects += count->objects;
    sum.voided += count->voided;
  }
  return sum;
}

Result<std::vector<std::vector<std::string>>> ClusterSession::Where(
    std::span<const std::string_view> keys, const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(keys.size(), keys.size()));
  std::vector<ItemResult> results(keys.size());
  const std::vector<std::size_t> all = MissedHere(nullptr, keys, results);
  const Locator::Found found =
      locator_.Locate(keys, all, results, options.version, DeadlineOf(clock_, options.timeout));
  std::map<wire::OwnerNumber, std::string> addresses;
  for (const wire::OwnerStat& owner : host_->peers().Owners()) {
    addresses[owner.number] = owner.address;
  }
  std::vector<std::vector<std::string>> owners(keys.size());
  for (std::size_t k = 0; k < found.which.size(); ++k) {
    for (const wire::OwnerNumber number : {found.places[k].owner, found.places[k].second}) {
      if (number != wire::kNoOwner) owners[found.which[k]].push_back(addresses[number]);
    }
  }
  return owners;
}

Status ClusterSession::NameVersions(std::span<const std::string> versions,
                                    const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  host_->engines().Named(options_.name, options_.engine, {versions.begin(), versions.end()});
  return host_->master().NameVersions(options_.name, options_.engine, versions,
                                      DeadlineOf(clock_, options.timeout));
}

// ---- reset

Status ClusterSession::TryReset(const wire::ResetRequest& request, std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const wire::ResetOutcome outcome, host_->master().Reset(request, deadline_ns));
  locator_.CloseAll(outcome);
  if (HostSession* local = Local(); local != nullptr) local->ForgetBindings(outcome);
  return {};
}

Status ClusterSession::Reset(const ResetOptions& options) {
  KVCOVE_TRY(CheckBatch(0, 0));
  return resets_.Reset(ResetOf(options_, options), options.timeout);
}

}  // namespace kvcove::requester
