// SPDX-License-Identifier: Apache-2.0
// Gives out the payload in granules. Pure bookkeeping outside the payload itself, since requesters
// may write there. Best fit over coalesced free ranges; an object that finds no single range gets
// up to kMaxExtents. O(log n) a call, n = free ranges. Needs a lock.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/segment/layout.h"

namespace kvcove::segment {

class Allocator {
 public:
  // Makes a range free; at first nothing is. Add ranges in the order in which they are populated:
  // extents are chosen by fit, not by age, and memory that was never added is never allocated.
  void Add(Extent range);

  // Extents of `granules` together; empty when they cannot be found. A single piece wherever one is
  // free, else the fewest and largest.
  std::vector<Extent> Allocate(std::uint32_t granules);
  void Free(std::span<const Extent> extents);

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, by_start_, free_granules_);
    if constexpr (Ar::kReads) {
      std::vector<std::pair<std::uint32_t, std::uint32_t>> sorted;
      for (const auto& [start, count] : by_start_) sorted.emplace_back(count, start);
      std::ranges::sort(sorted);
      by_count_ = {sorted.begin(), sorted.end()};  // linear, since it is sorted
    }
  }

  std::uint64_t free_granules() const { return free_granules_; }
  std::size_t free_ranges() const { return by_start_.size(); }

 private:
  void Insert(std::uint32_t start, std::uint32_t count);
  void Take(std::uint32_t start, std::uint32_t count, std::uint32_t wanted);

  std::map<std::uint32_t, std::uint32_t> by_start_;             // start -> count
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_count_;  // (count, start)
  std::uint64_t free_granules_ = 0;
};

}  // namespace kvcove::segment
