// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/ghost.h"

#include <gtest/gtest.h>

#include <deque>
#include <unordered_map>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

TEST(GhostTest, RemembersWhatItWasTold) {
  Ghost ghost;
  EXPECT_EQ(ghost.Find(7), nullptr);
  ghost.Add(7).uses = 3;
  ghost.Add(8).segment = 5;
  ASSERT_NE(ghost.Find(7), nullptr);
  EXPECT_EQ(ghost.Find(7)->uses, 3);
  EXPECT_EQ(ghost.Add(8).segment, 5U) << "a key that is there stays as it was";
  EXPECT_EQ(ghost.size(), 2U);
}

TEST(GhostTest, TheLeastRecentlyUsedGoesFirst) {
  Ghost ghost;
  for (std::uint32_t key = 1; key <= 4; ++key) ghost.Add(key);
  ghost.Add(1);
  EXPECT_FALSE(ghost.TakeOldest(4));
  EXPECT_EQ(ghost.TakeOldest(3)->key, 2U);
  EXPECT_EQ(ghost.TakeOldest(2)->key, 3U);
  EXPECT_EQ(ghost.TakeOldest(1)->key, 4U);
  EXPECT_FALSE(ghost.TakeOldest(1));
  EXPECT_NE(ghost.Find(1), nullptr);
}

// Beside a plain map and queue, over a history in which the table grows, wraps and closes gaps.
TEST(GhostTest, AgreesWithAModel) {
  Ghost ghost;
  std::unordered_map<std::uint32_t, std::uint64_t> last_use;
  std::deque<std::pair<std::uint32_t, std::uint64_t>> uses;  // key, when
  Random random(5);
  for (std::uint64_t step = 1; step <= 200'000; ++step) {
    const auto key = static_cast<std::uint32_t>(1 + random.Below(step < 100'000 ? 3000 : 9000));
    ghost.Add(key).segment = static_cast<std::uint32_t>(step);
    last_use[key] = step;
    uses.emplace_back(key, step);
    const std::size_t keep = step < 150'000 ? 2000 : 5000;
    while (const auto taken = ghost.TakeOldest(keep)) {
      while (last_use[uses.front().first] != uses.front().second) uses.pop_front();
      ASSERT_EQ(taken->key, uses.front().first);
      ASSERT_EQ(taken->segment, uses.front().second);
      last_use.erase(taken->key);
      uses.pop_front();
    }
    ASSERT_EQ(ghost.size(), last_use.size());
  }
  for (const auto& [key, step] : last_use) {
    ASSERT_NE(ghost.Find(key), nullptr);
    EXPECT_EQ(ghost.Find(key)->segment, step);
  }
}

}  // namespace
}  // namespace kvcove::policy
