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
  // Memory that nobody maps any more, but that the kernel still frees: it is waited for as long as
  // the room has grown within so much time, and `most_ns` in all.
  std::int64_t settle_ns = 3 * kSecond;
  std::int64_t most_ns = 60 * kSecond;
  std::function<MemoryRoom()> available = [] { return AvailableMemory(); };
  std::function<std::vector<segment::Leftover>()> leftovers = [] {
    return segment::FindLeftovers();
  };
  std::function<void(std::int64_t ns)> rest;  // none: sleeps
};

// Returns when `bytes` fit, with a warning when they are more than nine tenths of what there is, or
// when memory.high sets that. Waits only for what can ever fit: less than each limit is in all.
// Errors: kInvalid, with the numbers, the limit, and the processes that hold memory of an ended
// owner.
Status AwaitMemory(std::uint64_t bytes, const MemoryBudget& budget = {});

}  // namespace kvcove::owner
