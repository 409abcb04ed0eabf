// SPDX-License-Identifier: Apache-2.0
// Puts of a cluster's session: to this host's owners first, then to other owners the items for
// which this host is not the choice, or has no room.
#include <algorithm>
#include <iterator>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/requester/cluster/cluster_session.h"
#include "kvcove/requester/cluster/remote_read.h"
#include "kvcove/requester/cluster/remote_write.h"
#include "kvcove/rpc/busy.h"

namespace kvcove::requester {

// Not with several replicas: all copies of a value need one group number, which PutRemote draws.
bool ClusterSession::PutsHere(HostSession* local, std::optional<std::size_t>& owner) {
  if (local == nullptr || options_.replicas > 1) return false;
  if (preferred_.empty()) {
    return placement_ == Placement::kLocalFirst && host_->locals().AnyUsable();
  }
  owner = host_->LocalAt(preferred_.front());
  return owner.has_value();
}

bool ClusterSession::PutHere(const Token& token, std::span<const PutItem> items,
                             std::span<ItemResult> results, const CallOptions& options,
                             Status& stored) {
  HostSession* local = Local();
  std::optional<std::size_t> owner;
  if (!PutsHere(local, owner)) return false;
  stored = owner ? local->PutOn(*owner, token, items, results, options)
                 : local->Put(token, items, results, options);
  return true;
}

bool ClusterSession::ReserveHere(Reservation& reservation, const Token& token,
                                 std::span<const ReserveKey> items, std::span<ItemResult> results,
                                 const CallOptions& options, Status& reserved) {
  HostSession* local = Local();
  std::optional<std::size_t> owner;
  if (!PutsHere(local, owner)) return false;
  reserved = owner ? local->ReserveOn(*owner, reservation, token, items, results, options)
                   : local->ReserveInto(reservation, token, items, results, options);
  return true;
}

Result<Reserved> ClusterSession::Reserve(const Token& token, std::span<const ReserveItem> items,
                                         const CallOptions& options) {
  KVCOVE_TRY(CheckBatch(items.size(), items.size()));
  if (token.slot >= kMaxSlots) return Fail(Code::kInvalid, "the token does not come from Capture");
  auto reservation =
      std::make_unique<Reservation>(items.size(), clock_, host_, resets_.closed_flag());
  const auto ask = [&](Reservation& made, std::span<const ReserveKey> wanted,
                       std::span<ItemResult> results) -> Status {
    // Checked after the reservation has taken the flag: Commit notices a reset that fails later.
    std::ranges::fill(results, ItemResult{.code = Code::kClosed});
    if (closed()) return {};
    Status reserved;
    const bool here = ReserveHere(made, token, wanted, results, options, reserved);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!here) results[i] = {.code = Code::kUnavailable, .bytes = items[i].size_bytes};
      results[i].elsewhere =
          results[i].code == Code::kUnavailable || results[i].code == Code::kNoSpace;
    }
    return reserved;
  };
  return ReserveBy(std::move(reservation), items, options, ask);
}

void ClusterSession::FallBack(std::string_view why) {
  host_->CountFallback();
  if (!logged_fallback_.exchange(true)) {
    LogWarn("the preferred segment '{}' {}; others are used", options_.preferred_segment, why);
  }
}

std::vector<wire::OwnerNumber> ClusterSession::Targets(std::int64_t deadline_ns) {
  const auto reachable = [&] {
    std::vector<wire::OwnerStat> owners = host_->peers().Owners();
    std::erase_if(owners, [&](const wire::OwnerStat& owner) {
      const auto peer = host_->peers().Get(owner.number, deadline_ns);
      return peer == nullptr || peer->broken();
    });
    return owners;
  };
  const auto lacks_preferred = [&](const std::vector<wire::OwnerStat>& owners) {
    if (preferred_.empty()) return false;
    return std::ranges::find_first_of(owners, preferred_, {}, &wire::OwnerStat::address) ==
           owners.end();
  };
  std::vector<wire::OwnerStat> owners = reachable();
  if (lacks_preferred(owners) && !logged_fallback_.load()) {
    // The preferred owner may have joined after the last list. Only until the first fallback was
    // logged: a segment that never joins must not cost a call to the master for each put.
    host_->peers().Refresh(deadline_ns);
    owners = reachable();
  }
  if (lacks_preferred(owners)) FallBack("is not there");
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
  std::vector<wire::OwnerNumber> asked;
  if (Status stored; PutHere(token, items, results, options, stored)) {
    asked = host_->LocalNumbers(preferred_.empty() ? std::string() : preferred_.front());
    if (!stored && stored.error().code == Code::kInvalid) return stored;
    // Items for which this host has no room, or whose owner has ended, are put to other owners.
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (results[i].code == Code::kNoSpace || results[i].code == Code::kUnavailable) {
        which.push_back(i);
      }
    }
  } else {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::uint64_t size = SizeOf(items[i].value);
      results[i] = {.code = Code::kUnavailable, .bytes = size};
      if (!CheckKey(items[i].key) || !CheckObjectSize(size) || HasNull(items[i].value) ||
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
                                 std::span<const std::size_t> which,
                                 std::span<const wire::OwnerNumber> asked,
                                 std::span<ItemResult> results, const CallOptions& options,
                                 std::int64_t deadline_ns) {
  // Values that the cluster has already need not travel. If the look-up fails, all are put: the
  // owners refuse a value that exists.
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
    host_->peers().Refresh(deadline_ns);  // an owner may have joined after the last list
    targets = Targets(deadline_ns);
  }
  std::erase_if(targets, [&](wire::OwnerNumber target) {
    return std::ranges::find(asked, target) != asked.end();
  });
  if (targets.empty()) {
    return Fail(Code::kUnavailable, "no owner of the cluster can be reached");
  }
  const std::size_t copies = std::min<std::size_t>(std::max(1U, options_.replicas), targets.size());
  std::vector<std::uint32_t> groups(items.size());
  // The directory lists entries of one key as replicas of one value if they have the same group,
  // and refuses another group. Odd, so never 0; one random number for all items saves system calls.
  std::uint32_t group = static_cast<std::uint32_t>(RandomU64()) | 1;
  for (const std::size_t i : todo) {
    groups[i] = group;
    group += 2;
    results[i].replicas = 0;
  }
  // Parts are runs of neighbours, so that a chain remains at one owner: a chunk without its prefix
  // is useless. With one replica and no preference the parts are spread over the targets.
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
  // Items of which an owner ended before it answered: that owner may have stored and listed the
  // value. If another owner then refuses the item as stale, the value may exist all the same, so
  // the result is kUnavailable, not kStale (at the end).
  std::vector<std::size_t> unknown;
  if (!asked.empty()) {
    std::ranges::copy_if(todo, std::back_inserter(unknown),
                         [&](std::size_t i) { return results[i].code == Code::kUnavailable; });
  }
  const bool spread = preferred_.empty() && options_.replicas <= 1;
  std::uint32_t busy_ms = 0;
  TriedPeers tried;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    std::vector<wire::OwnerNumber> owners;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      owners.push_back(targets[(copy + (spread ? p : 0)) % targets.size()]);
    }
    busy_ms = std::max(
        busy_ms, PutTo(token, items, parts, owners, groups, results, options, tried, deadline_ns));
  }
  const auto left = [&] {
    std::vector<std::size_t> again;
    std::ranges::copy_if(todo, std::back_inserter(again), [&](std::size_t i) {
      return results[i].replicas == 0 &&
             (results[i].code == Code::kNoSpace || results[i].code == Code::kUnavailable ||
              results[i].code == Code::kLimit);
    });
    return again;
  };
  const auto ask = [&](const std::vector<std::size_t>& again, wire::OwnerNumber owner) {
    std::ranges::copy_if(again, std::back_inserter(unknown),
                         [&](std::size_t i) { return results[i].code == Code::kUnavailable; });
    const std::vector<std::vector<std::size_t>> rest = {again};
    const std::vector<wire::OwnerNumber> owners = {owner};
    busy_ms = PutTo(token, items, rest, owners, groups, results, options, tried, deadline_ns);
  };
  // For items without any replica, two more owners are asked, once each.
  for (std::size_t next = copies; next < targets.size() && next < copies + 2; ++next) {
    const std::vector<std::size_t> again = left();
    if (again.empty() || LeftNs(deadline_ns, clock_) <= 0) break;
    if (!preferred_.empty() && next == std::max(copies, preferred_.size()))
      FallBack("is full or does not answer");
    ask(again, targets[next]);
  }
  // All owners that were asked may have ended, and others may have joined after the last list.
  std::vector<std::size_t> gone = left();
  std::erase_if(gone, [&](std::size_t i) { return results[i].code != Code::kUnavailable; });
  if (!gone.empty() && LeftNs(deadline_ns, clock_) > 0) {
    host_->peers().Refresh(deadline_ns);
    // Compared by peer: a number may belong to another owner by now.
    std::vector<wire::OwnerNumber> fresh = Targets(deadline_ns);
    std::erase_if(fresh, [&](wire::OwnerNumber target) {
      return std::ranges::find(tried, host_->peers().Get(target, deadline_ns)) != tried.end();
    });
    if (!fresh.empty()) ask(gone, fresh.front());
  }
  // If all are busy, the first one is asked again at the time that it named, until the deadline.
  while (busy_ms != 0) {
    std::vector<std::size_t> again;
    std::ranges::copy_if(todo, std::back_inserter(again), [&](std::size_t i) {
      return results[i].replicas == 0 && results[i].code == Code::kLimit;
    });
    if (again.empty() || !rpc::WaitWhileBusy(busy_ms, deadline_ns, clock_)) break;
    ask(again, targets.front());
  }
  for (const std::size_t i : unknown) {
    if (results[i].code == Code::kStale) results[i].code = Code::kUnavailable;
  }
  return {};
}

std::uint32_t ClusterSession::PutTo(const Token& token, std::span<const PutItem> items,
                                    std::span<const std::vector<std::size_t>> parts,
                                    std::span<const wire::OwnerNumber> owners,
                                    std::span<const std::uint32_t> groups,
                                    std::span<ItemResult> results, const CallOptions& options,
                                    TriedPeers& tried, std::int64_t deadline_ns) {
  const RemoteWriteOptions common{
      .token = token,
      .checksum = host_->options().checksum,
      .copies = static_cast<std::uint8_t>(std::clamp<std::uint32_t>(options_.replicas, 1, 255)),
      .after = options.after,
      .deadline_ns = deadline_ns};
  RemoteWrite write(common, items, groups, results);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    auto peer = host_->peers().Get(owners[p], deadline_ns);
    if (peer == nullptr) continue;
    write.Add(parts[p], *peer, clock_.NowNs());
    tried.push_back(std::move(peer));
  }
  transport::Run(write.Exchanges(), deadline_ns, clock_);
  write.Finish();
  return write.retry_after_ms();
}

}  // namespace kvcove::requester
