// SPDX-License-Identifier: Apache-2.0
// Whether a pool is well, in one line for a person who has never seen kvcove. Pure.
#pragma once

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

struct PageFacts {
  AdminPool::Readiness ready;
  std::vector<wire::OwnerStat> owners;
  std::vector<PageHistory::Point> points;  // of the last hour, the oldest first
  std::vector<TaskStat> tasks;             // the newest first
};

Verdict VerdictOf(const PageFacts& facts);

// Returns whether an operator should look at misses with this reason: something is broken, not
// merely evicted or new. The same as `kvcove top` shows in red.
bool IsAlarming(MissReason reason);
// Returns what the reason means, as a sentence.
std::string_view MeaningOf(MissReason reason);

}  // namespace kvcove::master
