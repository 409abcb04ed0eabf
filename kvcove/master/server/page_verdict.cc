// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page_verdict.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "kvcove/base/size.h"
#include "kvcove/base/text.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kLatelyS = 60;
constexpr std::size_t kNamed = 3;  // owners in one finding
// The working set counts as too large when so many keys of the last minute were evicted ones, and
// so great a share of all. Any full cache evicts a few that are asked for again.
constexpr std::uint64_t kManyEvicted = 100;
constexpr double kLargeShare = 0.2;
constexpr std::size_t kFingerprintDigits = 32;  // connector/shape.cc: MODEL@FINGERPRINT

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

// Returns "a, b, c and 5 more".
std::string Listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += i == 0 ? "" : ", ";
    text += names[i];
  }
  if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
  return text;
}

// Returns a difference of two hit ratios in words.
std::string Points(double difference) {
  const auto points = std::llround(100 * difference);
  return points <= 0 ? "nothing" : Counted(static_cast<std::uint64_t>(points), "point", "points");
}

void AddOwnerFindings(const std::vector<wire::OwnerStat>& owners, Findings& findings) {
  if (owners.empty()) {
    findings.Add(Health::kWarn, "no owner gives memory to it, so nothing can be stored");
    return;
  }
  std::vector<std::string_view> gone;
  std::vector<std::string_view> failing;
  std::uint64_t disks = 0;
  std::uint64_t aside = 0;
  for (const wire::OwnerStat& owner : owners) {
    if (!owner.live) {
      gone.emplace_back(owner.address);
      continue;  // nobody knows about its disks
    }
    disks += owner.disks;
    aside += owner.disks_aside;
    if (owner.disks_aside > 0) failing.emplace_back(owner.address);
  }
  if (!gone.empty()) {
    const bool one = gone.size() == 1;
    findings.Add(Health::kBad,
                 fmt::format("{} of {} {} gone ({}): stopped, frozen or cut off, and what {} is "
                             "missed",
                             gone.size(), Counted(owners.size(), "owner", "owners"),
                             one ? "is" : "are", Listed(gone), one ? "it holds" : "they hold"));
  }
  if (aside > 0) {
    findings.Add(Health::kBad,
                 fmt::format("{} of {} {} set aside, because {} failed (owner {})", aside,
                             Counted(disks, "disk", "disks"), aside == 1 ? "is" : "are",
                             aside == 1 ? "it" : "they", Listed(failing)));
  }
}

// Returns the model of a namespace "MODEL@FINGERPRINT"; empty: it has another form.
std::string_view ModelOf(std::string_view name) {
  const std::size_t at = name.rfind('@');
  if (at == std::string_view::npos || name.size() - at - 1 != kFingerprintDigits) return {};
  return name.substr(0, at);
}

// Returns whether a shell takes the name for one word and nothing else: engines choose their names.
bool IsWord(std::string_view name) {
  return !name.empty() && name[0] != '-' && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-_.:/@").find(c) != std::string_view::npos;
  });
}

// Adds engines of one model that have different namespaces: neither finds what the other stores.
void AddEngineFindings(const std::vector<EngineDescription>& engines, Findings& findings) {
  // By model, one engine of each namespace.
  std::map<std::string_view, std::map<std::string_view, std::string_view>> models;
  for (const EngineDescription& engine : engines) {
    const std::string_view model = ModelOf(engine.name);
    if (!model.empty()) models[model].emplace(engine.name, engine.engine);
  }
  std::erase_if(models, [](const auto& model) { return model.second.size() < 2; });
  if (models.empty()) return;
  const auto& [model, spaces] = *models.begin();
  const std::string_view one = spaces.begin()->second;
  const std::string_view other = std::next(spaces.begin())->second;
  const bool words = IsWord(one) && IsWord(other);
  std::string text = fmt::format(
      "engines of {} do not share, because they have {} namespaces: 'kvcove why-not {} {}' says "
      "what differs",
      ReadableName(model), spaces.size(), words ? one : "ENGINE", words ? other : "ENGINE");
  if (models.size() > 1) {
    text += fmt::format(" (the same holds for {})",
                        Counted(models.size() - 1, "other model", "other models"));
  }
  findings.Add(Health::kWarn, std::move(text));
}

// `asked`: keys in the last minute; `evicted`: those of them that had been evicted.
void AddWorkingSet(const PageFacts& facts, std::uint64_t asked, std::uint64_t evicted,
                   Findings& findings) {
  const double share = asked == 0 ? 0 : static_cast<double>(evicted) / static_cast<double>(asked);
  if (evicted < kManyEvicted || share < kLargeShare) return;
  std::string text = fmt::format(
      "the working set is larger than the pool: {:.0f} % of the keys that engines asked "
      "for in the last minute had been evicted for newer ones",
      100 * share);
  if (facts.memory.same && facts.memory.twice) {
    text += fmt::format(", and twice the memory would bring {}",
                        Points(*facts.memory.twice - *facts.memory.same));
  }
  findings.Add(Health::kWarn, std::move(text));
}

void AddHistoryFindings(const PageFacts& facts, Findings& findings) {
  const std::vector<PageHistory::Point>& points = facts.points;
  if (points.empty()) return;
  std::array<std::uint64_t, kMissReasons> misses{};
  std::uint64_t not_proven = 0;
  std::uint64_t asked = 0;
  std::uint64_t refused = 0;
  for (const PageHistory::Point& point : points) {
    not_proven += point.resets_not_proven;
    if (point.time_s <= points.back().time_s - kLatelyS) continue;
    for (std::size_t i = 0; i < kMissReasons; ++i) misses[i] += point.misses[i];
    asked += point.hits + point.missed();
    if (facts.refused_hello) refused += point.calls[*facts.refused_hello].count;
  }
  if (refused > 0) {
    findings.Add(Health::kBad,
                 fmt::format("{} refused in the last minute, because the credentials file has no "
                             "such token: it was struck off, has expired or is another pool's, "
                             "and the log names its tenant; or because they showed none",
                             Counted(refused, "connection was", "connections were")));
  }
  AddWorkingSet(facts, asked, misses[static_cast<std::size_t>(MissReason::kEvicted)], findings);
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
  AddHistoryFindings(facts, findings);
  AddEngineFindings(facts.engines, findings);
  // Tasks that wait or run say nothing yet.
  const auto ended = std::ranges::find_if(
      facts.tasks, [](const TaskStat& task) { return task.state > TaskState::kRunning; });
  if (ended != facts.tasks.end() && ended->state == TaskState::kFailed) {
    findings.Add(Health::kWarn, fmt::format("task {} ({}) has failed", ended->id,
                                            TaskKindName(ended->request.kind)));
  }
  return findings.none() ? Well(facts.owners) : findings.Take();
}

std::vector<std::string> AdviceOf(const PageFacts& facts) {
  std::vector<std::string> advice;
  const auto add = [&](std::string_view tier, const ExpectedRatios& of) {
    if (!of.half || !of.same || !of.twice || !of.quadruple) return;
    std::string text = fmt::format(
        "Twice the {0} would bring {1} of hit ratio, four times the {0} {2}; half of it would cost "
        "{3}. As it is, {4:.0f} of 100 values are found (estimated).",
        tier, Points(*of.twice - *of.same), Points(*of.quadruple - *of.same),
        Points(*of.same - *of.half), 100 * *of.same);
    if (of.any) {
      text += fmt::format(" No size finds more than {:.0f}, because the others are asked for once.",
                          100 * *of.any);
    }
    advice.push_back(std::move(text));
  };
  add("memory", facts.memory);
  add("disk", facts.disk);
  return advice;
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
