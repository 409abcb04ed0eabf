// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/holds.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

Hold Of(ObjectId object, std::int64_t until_ns, std::uint64_t bytes = 10) {
  return {.object = object, .version = object + 1, .bytes = bytes, .until_ns = until_ns};
}
std::vector<ObjectId> Ended(Holds& holds, std::int64_t now_ns) {
  std::vector<ObjectId> ended;
  while (const auto hold = holds.TakeEnded(now_ns)) ended.push_back(hold->object);
  return ended;
}
using ObjectIds = std::vector<ObjectId>;

TEST(HoldsTest, TheyEndAtTheirOwnTimesInAnyOrder) {
  Holds holds(1000);
  holds.Add(1, Of(1, 300));
  holds.Add(1, Of(2, 100));
  holds.Add(2, Of(3, 200));
  EXPECT_EQ(Ended(holds, 99), ObjectIds{});
  EXPECT_EQ(Ended(holds, 200), (ObjectIds{2, 3}));
  EXPECT_EQ(holds.held_bytes(1), 10U);
  EXPECT_EQ(Ended(holds, 300), ObjectIds{1});
  EXPECT_EQ(Ended(holds, 1000), ObjectIds{});
  EXPECT_EQ(holds.held_bytes(1), 0U);
}

TEST(HoldsTest, TheOldestGivesWayWhenTheBudgetIsUsedUp) {
  Holds holds(25);
  EXPECT_TRUE(holds.Add(1, Of(1, 300)));
  EXPECT_TRUE(holds.Add(1, Of(2, 100)));
  EXPECT_TRUE(holds.Add(2, Of(3, 150))) << "a budget is a session's";
  EXPECT_TRUE(holds.Add(1, Of(4, 200)));
  EXPECT_EQ(Ended(holds, 0), ObjectIds{1});
  EXPECT_EQ(holds.held_bytes(1), 20U);
  EXPECT_FALSE(holds.Add(1, Of(5, 200, 26)));
  EXPECT_EQ(Ended(holds, 200), (ObjectIds{2, 3, 4}));
}

TEST(HoldsTest, TheyEndWithTheirSession) {
  Holds holds(1000);
  holds.Add(1, Of(1, 300));
  holds.Add(2, Of(2, 300));
  holds.Add(1, Of(3, 100));
  holds.EndSession(1);
  EXPECT_EQ(Ended(holds, 0), (ObjectIds{1, 3}));
  EXPECT_EQ(Ended(holds, 299), ObjectIds{});
  EXPECT_EQ(Ended(holds, 300), ObjectIds{2});
}

TEST(HoldsTest, ThereIsABoundOnTheirNumber) {
  Holds holds(1ULL << 40);
  for (ObjectId id = 0; id < Holds::kMaxHolds; ++id) holds.Add(1, Of(id, 300));
  EXPECT_EQ(Ended(holds, 0), ObjectIds{});
  holds.Add(1, Of(1'000'000, 300));
  EXPECT_EQ(Ended(holds, 0), ObjectIds{0});
}

}  // namespace
}  // namespace kvcove::owner
