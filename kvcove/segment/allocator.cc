// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/allocator.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace kvcove::segment {
namespace {

// False if the joined range would have more granules than a count of 32 bits holds. The largest
// payload has one granule more; its last two free ranges stay separate.
bool Joinable(std::uint32_t count, std::uint32_t other) {
  return std::uint64_t{count} + other <= std::numeric_limits<std::uint32_t>::max();
}

}  // namespace

void Allocator::Insert(std::uint32_t start, std::uint32_t count) {
  by_start_.emplace(start, count);
  by_count_.emplace(count, start);
}

// Removes the first `wanted` granules of the free range (start, count).
void Allocator::Take(std::uint32_t start, std::uint32_t count, std::uint32_t wanted) {
  by_start_.erase(start);
  by_count_.erase({count, start});
  if (wanted < count) Insert(start + wanted, count - wanted);
  free_granules_ -= wanted;
}

void Allocator::Add(Extent range) {
  if (range.count == 0) return;
  free_granules_ += range.count;
  auto next = by_start_.lower_bound(range.start);
  if (next != by_start_.begin()) {
    const auto previous = std::prev(next);
    if (std::uint64_t{previous->first} + previous->second == range.start &&
        Joinable(previous->second, range.count)) {
      range = {.start = previous->first, .count = previous->second + range.count};
      by_count_.erase({previous->second, previous->first});
      by_start_.erase(previous);
    }
  }
  if (next != by_start_.end() && std::uint64_t{range.start} + range.count == next->first &&
      Joinable(range.count, next->second)) {
    range.count += next->second;
    by_count_.erase({next->second, next->first});
    by_start_.erase(next);
  }
  Insert(range.start, range.count);
}

std::vector<Extent> Allocator::Allocate(std::uint32_t granules) {
  if (granules == 0 || granules > free_granules_) return {};
  if (const auto fit = by_count_.lower_bound({granules, 0}); fit != by_count_.end()) {
    const Extent extent{.start = fit->second, .count = granules};
    Take(fit->second, fit->first, granules);
    return {extent};
  }
  // Checks first whether the largest ranges are enough, so that a refusal changes nothing.
  std::uint64_t found = 0;
  std::uint32_t pieces = 0;
  for (auto largest = by_count_.rbegin();
       largest != by_count_.rend() && found < granules && pieces < kMaxExtents; ++largest) {
    found += largest->first;
    ++pieces;
  }
  if (found < granules) return {};
  std::vector<Extent> extents;
  std::uint32_t left = granules;
  while (left > 0) {
    // Takes the smallest range that holds the rest, or else the largest one.
    auto range = by_count_.lower_bound({left, 0});
    if (range == by_count_.end()) --range;
    const auto [count, start] = *range;
    const std::uint32_t taken = std::min(count, left);
    extents.push_back({.start = start, .count = taken});
    Take(start, count, taken);
    left -= taken;
  }
  return extents;
}

void Allocator::Free(std::span<const Extent> extents) {
  for (const Extent& extent : extents) Add(extent);
}

}  // namespace kvcove::segment
