// SPDX-License-Identifier: Apache-2.0
// Whether a capacity fits into what the host and its control groups can give, before it is taken: a
// group that runs out of memory kills its owner.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/memory.h"
#include "kvcove/base/result.h"
#include "kvcove/segment/leftovers.h"

namespace kvcove::owner {

struct MemoryBudget {
  // Memory of a killed owner that an engine still maps is waited for so long.
  std::int64_t patience_ns = 10 * kSecond;
  std::function<MemoryRoom()> available = [] { return AvailableMemory(); };
  std::function<std::vector<segment::Leftover>()> leftovers = [] {
    return segment::FindLeftovers();
  };
  std::function<void(std::int64_t ns)> rest;  // none: sleeps
};

// Returns when `bytes` fit, with a warning when they are more than nine tenths of what there is.
// Errors: kInvalid, with the numbers, the limit, and the processes that hold memory of an ended
// owner.
Status AwaitMemory(std::uint64_t bytes, const MemoryBudget& budget = {});

}  // namespace kvcove::owner
