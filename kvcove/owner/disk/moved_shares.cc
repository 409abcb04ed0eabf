// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/moved_shares.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/owner/tier/disk_shared.h"

namespace kvcove::owner {
namespace {

constexpr std::int64_t kWaitNs = 10 * kMillisecond;

using Moved = std::map<std::pair<SlotId, Generation>, std::vector<std::string>>;

// The outcome of a call, set by its `done`. Shared, because `done` may run after the sweep has
// ended.
using Outcome = std::shared_ptr<std::optional<Status>>;

Status Await(disklog::Log& log, const Outcome& outcome, const Sweep& sweep) {
  while (!*outcome) {
    if (sweep.gives_up()) return Fail(Code::kUnavailable, "it does not answer");
    log.Flush();
    log.Poll(kWaitNs);
  }
  return **outcome;
}

Result<Moved> FindMoved(disklog::Log& log, std::uint32_t zone, const Sweep& sweep) {
  while (true) {
    const auto moved = std::make_shared<Moved>();
    const auto outcome = std::make_shared<std::optional<Status>>();
    log.Walk(
        zone,
        [moved, goes = sweep.goes](const disklog::LiveObject& object) {
          if (goes(object)) (*moved)[{object.slot, object.generation}].emplace_back(object.key);
        },
        [outcome](const Status& status) { *outcome = status; });
    const Status walked = Await(log, outcome, sweep);
    if (walked) return std::move(*moved);
    // kInProgress: the zone is being sealed or freed, and is walked again.
    if (walked.error().code != Code::kInProgress) return std::unexpected(walked.error());
    if (sweep.gives_up()) return Fail(Code::kUnavailable, "it does not answer");
    log.Poll(kWaitNs);
  }
}

Status Remove(disklog::Log& log, const disklog::RemoveRequest& request, const Sweep& sweep) {
  while (true) {
    const auto outcome = std::make_shared<std::optional<Status>>();
    Status begun = log.Remove(request, [outcome](const Status& status) { *outcome = status; });
    if (begun) return Await(log, outcome, sweep);
    // The log has no room for the tombstones now: flushes, polls, and repeats the call.
    if (begun.error().code != Code::kLimit && begun.error().code != Code::kNoSpace) return begun;
    if (sweep.gives_up()) return Fail(Code::kUnavailable, "it does not answer");
    log.Flush();
    log.Poll(kWaitNs);
  }
}

}  // namespace

Result<std::uint64_t> RemoveMoved(disklog::Log& log, const Sweep& sweep) {
  std::uint64_t removed = 0;
  for (std::uint32_t zone = 0; zone < log.space().zones; ++zone) {
    KVCOVE_ASSIGN(const Moved moved, FindMoved(log, zone, sweep));
    for (const auto& [scope, keys] : moved) {
      const std::string name = sweep.name_of(scope.first);
      const std::vector<std::string_view> all(keys.begin(), keys.end());
      for (std::span<const std::string_view> left = all; !left.empty();) {
        const auto part = left.first(std::min(kRemovedAtOnce, left.size()));
        KVCOVE_TRY(Remove(
            log, {.slot = scope.first, .generation = scope.second, .name = name, .keys = part},
            sweep));
        left = left.subspan(part.size());
        removed += part.size();
      }
    }
  }
  // An object that the log forgot earlier, such as an evicted one, could return after a crash until
  // its tombstone is synced.
  const auto synced = std::make_shared<std::optional<Status>>();
  log.Sync([synced](const Status& status) { *synced = status; });
  KVCOVE_TRY(Await(log, synced, sweep));
  return removed;
}

}  // namespace kvcove::owner
