// SPDX-License-Identifier: Apache-2.0
// Allocates the payload in granules. The bookkeeping is outside the payload, because requesters may
// write there. Best fit over coalesced free ranges; an object that fits no single range gets up to
// kMaxExtents. O(log n) a call, n = free ranges. Needs the owner's lock.
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
  // Adds a free range; a new allocator has none. Add ranges in the order in which they are
  // populated: extents are chosen by fit, not by age, and memory that was never added is never
  // allocated.
  void Add(Extent range);

  // Returns extents of `granules` together: one if a single range is large enough, otherwise the
  // largest ranges. Empty if kMaxExtents of them are not enough.
  std::vector<Extent> Allocate(std::uint32_t granules);
  // Frees extents of earlier calls of Allocate.
  void Free(std::span<const Extent> extents);

  // Writes the state for a successor process, or reads a predecessor's.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, by_start_, free_granules_);
    if constexpr (Ar::kReads) {
      std::vector<std::pair<std::uint32_t, std::uint32_t>> sorted;
      for (const auto& [start, count] : by_start_) sorted.emplace_back(count, start);
      std::ranges::sort(sorted);
      by_count_ = {sorted.begin(), sorted.end()};  // linear, because it is sorted
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
