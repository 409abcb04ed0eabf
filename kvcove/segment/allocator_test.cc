// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kvcove/base/random.h"

namespace kvcove::segment {
namespace {

TEST(AllocatorTest, GivesNothingThatWasNotAdded) {
  Allocator allocator;
  EXPECT_TRUE(allocator.Allocate(1).empty());
  allocator.Add({.start = 10, .count = 5});
  EXPECT_TRUE(allocator.Allocate(6).empty());
  EXPECT_EQ(allocator.Allocate(5), (std::vector<Extent>{{.start = 10, .count = 5}}));
  EXPECT_EQ(allocator.free_granules(), 0U);
}

TEST(AllocatorTest, JoinsNeighboursOnBothSides) {
  Allocator allocator;
  allocator.Add({.start = 0, .count = 30});
  const auto a = allocator.Allocate(10);
  const auto b = allocator.Allocate(10);
  const auto c = allocator.Allocate(10);
  allocator.Free(a);
  allocator.Free(c);
  EXPECT_EQ(allocator.free_ranges(), 2U);
  allocator.Free(b);
  EXPECT_EQ(allocator.free_ranges(), 1U);
  EXPECT_EQ(allocator.Allocate(30).size(), 1U);
}

TEST(AllocatorTest, UsesUpToSixtyFourPieces) {
  Allocator allocator;
  for (std::uint32_t i = 0; i < 100; ++i) allocator.Add({.start = i * 10, .count = 2});
  EXPECT_TRUE(allocator.Allocate(129).empty()) << "would need 65 pieces";
  const auto extents = allocator.Allocate(128);
  EXPECT_EQ(extents.size(), 64U);
  EXPECT_EQ(allocator.free_granules(), 72U);
}

// 16 TiB in granules of 4 KiB: one more than 32 bits count.
TEST(AllocatorTest, GivesAndTakesAllThatExtentsCanName) {
  constexpr std::uint32_t kHalf = 1U << 31;
  Allocator allocator;
  allocator.Add({.start = 0, .count = kHalf});
  allocator.Add({.start = kHalf, .count = kHalf});
  EXPECT_EQ(allocator.free_granules(), 1ULL << 32);
  EXPECT_EQ(allocator.free_ranges(), 2U) << "no count says how long both are";
  const auto first = allocator.Allocate(kHalf);
  const auto second = allocator.Allocate(kHalf);
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_TRUE(allocator.Allocate(1).empty());
  allocator.Free(second);
  EXPECT_EQ(allocator.Allocate(3), (std::vector<Extent>{{.start = kHalf, .count = 3}}));
  allocator.Free(first);
  EXPECT_EQ(allocator.free_granules(), (1ULL << 32) - 3);
}

TEST(AllocatorTest, NeverGivesAGranuleTwice) {
  Random random(7);
  Allocator allocator;
  constexpr std::uint32_t kAll = 4096;
  allocator.Add({.start = 0, .count = kAll});
  std::vector<char> used(kAll, 0);
  std::vector<std::vector<Extent>> live;
  for (int step = 0; step < 20000; ++step) {
    if (random.OneIn(2) || live.empty()) {
      auto extents = allocator.Allocate(static_cast<std::uint32_t>(1 + random.Below(200)));
      if (extents.empty()) continue;
      for (const Extent& extent : extents) {
        for (std::uint32_t g = 0; g < extent.count; ++g) {
          ASSERT_EQ(used[extent.start + g], 0);
          used[extent.start + g] = 1;
        }
      }
      live.push_back(std::move(extents));
    } else {
      const std::size_t at = random.Below(live.size());
      for (const Extent& extent : live[at]) {
        std::fill_n(used.begin() + extent.start, extent.count, 0);
      }
      allocator.Free(live[at]);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
    ASSERT_EQ(allocator.free_granules(),
              static_cast<std::uint64_t>(std::count(used.begin(), used.end(), 0)));
  }
}

}  // namespace
}  // namespace kvcove::segment
