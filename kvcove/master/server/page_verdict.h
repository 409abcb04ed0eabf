// SPDX-License-Identifier: Apache-2.0
// Whether a pool is well, in one line for a person who has never seen kvcove, and what more memory
// or disk would bring. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/master/server/page_history.h"

namespace kvcove::master {

enum class Health : std::uint8_t { kGood, kWarn, kBad };
std::string_view HealthName(Health health);

struct Verdict {
  Health health = Health::kGood;
  std::string text;
};

// The name in AdminPool::Counts of hellos that were refused for want of a known token.
inline constexpr const char* kRefusedHello = "refused hello";

// Hit ratios that one tier would have with other sizes; not set: not known.
struct ExpectedRatios {
  std::optional<double> half;
  std::optional<double> same;
  std::optional<double> twice;
  std::optional<double> quadruple;
  std::optional<double> any;  // of a tier without a limit
};

struct PageFacts {
  AdminPool::Readiness ready;
  std::vector<wire::OwnerStat> owners;
  std::vector<PageHistory::Point> points;  // of the last hour, the oldest first
  std::vector<TaskStat> tasks;             // the newest first
  std::vector<EngineDescription> engines = {};
  std::optional<std::size_t> refused_hello = {};  // among a point's calls
  ExpectedRatios memory = {};
  ExpectedRatios disk = {};  // with the memory that there is
};

Verdict VerdictOf(const PageFacts& facts);

// Returns what other sizes of memory and disk would bring, a sentence or two for each tier whose
// estimates are known.
std::vector<std::string> AdviceOf(const PageFacts& facts);

// Returns whether an operator should look at misses with this reason: something is broken, not
// merely evicted or new. The same as `kvcove top` shows in red.
bool IsAlarming(MissReason reason);
// Returns what the reason means, as a sentence.
std::string_view MeaningOf(MissReason reason);

}  // namespace kvcove::master
