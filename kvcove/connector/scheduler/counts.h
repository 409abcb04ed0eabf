// SPDX-License-Identifier: Apache-2.0
// What a scheduler's role has counted, by name: one list for an engine's own socket, its metrics
// and its log.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/connector/scheduler/scheduler_types.h"

namespace kvcove::connector {

enum class CountKind : std::uint8_t {
  kCounter = 0,
  kGauge = 1,  // as it is now
  kBucket =
      2,  // of a histogram: how many took at most `le` seconds, and more than the bucket below
};
std::string_view CountKindName(CountKind kind);

struct Count {
  std::string name;  // of a bucket: "<histogram>_le_<le>"
  std::uint64_t value = 0;
  CountKind kind = CountKind::kCounter;
  std::string help;
  bool operator==(const Count&) const = default;
};

// The same names in the same order, whatever the values are.
std::vector<Count> CountsOf(const SchedulerStats& stats);

}  // namespace kvcove::connector
