// SPDX-License-Identifier: Apache-2.0
// Which of a host's owners a put goes to, where there are several. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcove::requester {

struct PutCandidate {
  std::size_t owner = 0;
  int node = -1;  // NUMA; -1: bound to none
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;  // a hint; 0: not known, or full
  bool has_predecessor = false;  // of the put's first chunk
};

struct PutQuestion {
  int node = -1;  // of the thread that puts
  std::uint64_t bytes = 0;
  std::uint64_t turn = 0;  // spreads puts over owners that are as good
};

// The owners, best first:
// 1. one with room for the put, and for a little more, before one that must evict for it: memory
//    that is free elsewhere on this host is a better cache than none;
// 2. one on the thread's node before the others: the copy, and mostly the gets, stay on that node;
// 3. the one that has the chunk before: eviction knows a chain only where it lies together;
// 4. by turns.
std::vector<std::size_t> OrderForPut(std::vector<PutCandidate> candidates,
                                     const PutQuestion& question);

}  // namespace kvcove::requester
