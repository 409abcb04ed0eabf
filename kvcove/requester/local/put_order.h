// SPDX-License-Identifier: Apache-2.0
// The order in which a put asks the owners of a host, if there are several. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcove::requester {

struct PutCandidate {
  std::size_t owner = 0;
  int node = -1;  // NUMA node; -1: bound to none
  std::uint64_t capacity_bytes = 0;
  std::uint64_t free_bytes = 0;  // a hint; 0: not known, or full
  bool has_predecessor = false;  // it has the chunk before the put's first one
};

struct PutQuestion {
  int node = -1;  // NUMA node of the thread that puts
  std::uint64_t bytes = 0;
  std::uint64_t turn = 0;  // spreads puts over owners that are equally good
};

// Returns the owners, best first:
// 1. an owner with room for the put, and for a little more, before one that must evict for it: free
//    memory elsewhere on this host is a better cache than none;
// 2. an owner on the thread's node before others: the copy, and mostly the gets, stay on that node;
// 3. the owner that has the previous chunk: eviction knows only chains that one owner has whole;
// 4. by turns.
std::vector<std::size_t> OrderForPut(std::vector<PutCandidate> candidates,
                                     const PutQuestion& question);

}  // namespace kvcove::requester
