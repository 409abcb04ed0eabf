// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page_verdict.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kvcove/base/size.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kLatelyS = 60;

std::string Counted(std::uint64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

// Collects what is wrong, and how bad the worst is.
class Findings {
 public:
  void Add(Health health, std::string text) {
    worst_ = std::max(worst_, health);
    texts_.push_back(std::move(text));
  }
  bool none() const { return texts_.empty(); }
  Verdict Take() const {
    return {.health = worst_,
            .text = fmt::format("The pool needs attention: {}.", fmt::join(texts_, "; "))};
  }

 private:
  Health worst_ = Health::kGood;
  std::vector<std::string> texts_;
};

void AddOwnerFindings(const std::vector<wire::OwnerStat>& owners, Findings& findings) {
  if (owners.empty()) {
    findings.Add(Health::kWarn, "no owner gives memory to it, so nothing can be stored");
    return;
  }
  std::uint64_t gone = 0;
  std::uint64_t disks = 0;
  std::uint64_t aside = 0;
  for (const wire::OwnerStat& owner : owners) {
    // Nobody knows about the disks of an owner that is gone.
    gone += owner.live ? 0 : 1;
    disks += owner.live ? owner.disks : 0;
    aside += owner.live ? owner.disks_aside : 0;
  }
  if (gone > 0) {
    findings.Add(Health::kBad,
                 fmt::format("{} of {} {} gone, and what they hold is missed", gone,
                             Counted(owners.size(), "owner", "owners"), gone == 1 ? "is" : "are"));
  }
  if (aside > 0) {
    findings.Add(Health::kBad,
                 fmt::format("{} of {} {} set aside, because it failed", aside,
                             Counted(disks, "disk", "disks"), aside == 1 ? "is" : "are"));
  }
}

void AddHistoryFindings(const std::vector<PageHistory::Point>& points, Findings& findings) {
  if (points.empty()) return;
  std::array<std::uint64_t, kMissReasons> misses{};
  std::uint64_t not_proven = 0;
  for (const PageHistory::Point& point : points) {
    not_proven += point.resets_not_proven;
    if (point.time_s <= points.back().time_s - kLatelyS) continue;
    for (std::size_t i = 0; i < kMissReasons; ++i) misses[i] += point.misses[i];
  }
  std::uint64_t sum = 0;
  std::vector<std::string_view> reasons;
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    if (misses[i] == 0 || !IsAlarming(reason)) continue;
    sum += misses[i];
    reasons.push_back(MissReasonName(reason));
  }
  if (sum > 0) {
    findings.Add(Health::kBad,
                 fmt::format("{} missed in the last minute because of: {}",
                             Counted(sum, "key was", "keys were"), fmt::join(reasons, ", ")));
  }
  if (not_proven > 0) {
    findings.Add(Health::kWarn, fmt::format("{} not proven in the last hour",
                                            Counted(not_proven, "reset was", "resets were")));
  }
}

Verdict Well(const std::vector<wire::OwnerStat>& owners) {
  std::uint64_t capacity = 0;
  std::uint64_t free = 0;
  for (const wire::OwnerStat& owner : owners) {
    capacity += owner.capacity_bytes;
    free += owner.free_bytes;
  }
  const double used = capacity == 0
                          ? 0
                          : 100 * static_cast<double>(capacity - std::min(capacity, free)) /
                                static_cast<double>(capacity);
  return {
      .health = Health::kGood,
      .text = fmt::format("The pool is well: {}, {:.0f} % of {} of memory in use.",
                          Counted(owners.size(), "owner", "owners"), used, FormatSize(capacity))};
}

}  // namespace

std::string_view HealthName(Health health) {
  switch (health) {
    case Health::kGood:
      return "good";
    case Health::kWarn:
      return "warn";
    case Health::kBad:
      break;
  }
  return "bad";
}

Verdict VerdictOf(const PageFacts& facts) {
  Findings findings;
  if (!facts.ready.ready) findings.Add(Health::kBad, "it is not ready: " + facts.ready.text);
  AddOwnerFindings(facts.owners, findings);
  AddHistoryFindings(facts.points, findings);
  // Tasks that wait or run say nothing yet.
  const auto ended = std::ranges::find_if(
      facts.tasks, [](const TaskStat& task) { return task.state > TaskState::kRunning; });
  if (ended != facts.tasks.end() && ended->state == TaskState::kFailed) {
    findings.Add(Health::kWarn, fmt::format("task {} ({}) has failed", ended->id,
                                            TaskKindName(ended->request.kind)));
  }
  return findings.none() ? Well(facts.owners) : findings.Take();
}

bool IsAlarming(MissReason reason) {
  switch (reason) {
    case MissReason::kLease:
    case MissReason::kUnavailable:
    case MissReason::kOwnerGone:
    case MissReason::kTimeout:
    case MissReason::kDiskDamaged:
    case MissReason::kDiskFailed:
    case MissReason::kDiskTimeout:
    case MissReason::kShardAway:
      return true;
    default:
      return false;
  }
}

std::string_view MeaningOf(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "found";
    case MissReason::kNeverPut:
      return "nobody has stored this key, or so long ago that nothing is known of it";
    case MissReason::kEvicted:
      return "it made room for newer values; more memory or disk would have kept it";
    case MissReason::kRemoved:
      return "somebody removed it";
    case MissReason::kReset:
      return "it was computed before a reset, with older weights";
    case MissReason::kLease:
      return "its owner is stopped, starved, or has just come back; look at that host";
    case MissReason::kClosed:
      return "another engine has reset, and this one must reset, too";
    case MissReason::kUnavailable:
      return "the engine has no connection to the pool; is the owner of its host running?";
    case MissReason::kRaced:
      return "it was evicted between the look-up and the read";
    case MissReason::kLimited:
      return "a limit of calls or bytes refused the request";
    case MissReason::kOwnerGone:
      return "the owner that held it is dead or cut off; look at that host";
    case MissReason::kWarmingUp:
      return "the master has just started and does not know all values yet; it passes in seconds";
    case MissReason::kTimeout:
      return "its owner did not answer in time; look at that host and the network";
    case MissReason::kDenied:
      return "the engine's token may not read it";
    case MissReason::kDiskDamaged:
      return "its record on a disk is damaged";
    case MissReason::kDiskFailed:
      return "a disk could not read it, or is set aside";
    case MissReason::kDiskTimeout:
      return "a disk did not answer in time";
    case MissReason::kNoRoom:
      return "memory had no room to bring it up from a disk";
    case MissReason::kShardAway:
      return "the master that knows where it is does not answer";
  }
  return "";
}

}  // namespace kvcove::master
