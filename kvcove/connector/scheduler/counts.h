// SPDX-License-Identifier: Apache-2.0
// The counts of a scheduler's role by name: one list for an engine's own socket, its metrics and
// its log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/connector/scheduler/scheduler_types.h"

namespace kvcove::connector {

enum class CountKind : std::uint8_t {
  kCounter = 0,
  kGauge = 1,   // a present value
  kBucket = 2,  // of a histogram: durations of at most `le` seconds, and above the bucket below
};
std::string_view CountKindName(CountKind kind);

struct Count {
  std::string name;  // a bucket's: "<histogram>_le_<le>"
  std::uint64_t value = 0;
  CountKind kind = CountKind::kCounter;
  std::string help;
  bool operator==(const Count&) const = default;
};

// Returns all counts: always the same names in the same order.
std::vector<Count> CountsOf(const SchedulerStats& stats);

}  // namespace kvcove::connector
