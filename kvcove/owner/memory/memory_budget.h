// SPDX-License-Identifier: Apache-2.0
// Checks that a capacity fits into the memory that the host and its control groups can give, before
// it is allocated: a group that runs out of memory kills its owner.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/host/memory.h"
#include "kvcove/base/result.h"
#include "kvcove/segment/leftovers.h"

namespace kvcove::owner {

struct MemoryBudget {
  // Longest wait for memory of a killed owner that an engine still maps.
  std::int64_t patience_ns = 10 * kSecond;
  // Wait for memory that no process maps any more, while the kernel frees it: continues as long as
  // the room has grown within `settle_ns`, and ends after `most_ns`.
  std::int64_t settle_ns = 3 * kSecond;
  std::int64_t most_ns = 60 * kSecond;
  std::function<MemoryRoom()> available = [] { return AvailableMemory(); };
  std::function<std::vector<segment::Leftover>()> leftovers = [] {
    return segment::FindLeftovers();
  };
  std::function<void(std::int64_t ns)> rest;  // unset: sleeps
};

// Waits until `bytes` fit. Logs a warning when they are more than nine tenths of the room, or when
// memory.high sets the room. Does not wait for more bytes than the limits allow in all.
// Errors: kInvalid, with the numbers, the limit, and the processes that hold memory of an ended
// owner.
Status AwaitMemory(std::uint64_t bytes, const MemoryBudget& budget = {});

}  // namespace kvcove::owner
