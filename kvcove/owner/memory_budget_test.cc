// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory_budget.h"

#include <gtest/gtest.h>

#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

class MemoryBudgetTest : public testing::Test {
 protected:
  // `frees_after`: how many rests until the holder lets go.
  MemoryBudget Budget(int frees_after, bool held) {
    return {.patience_ns = kSecond,
            .available =
                [this, frees_after] {
                  return MemoryRoom{.bytes = rests_ < frees_after ? kGiB : 8 * kGiB,
                                    .limit = "control group '/a' (memory.max 8GiB, 7GiB in use)"};
                },
            .leftovers = [held]() -> std::vector<segment::Leftover> {
              if (!held) return {};
              return {{.segment = "5e", .bytes = 7 * kGiB, .holders = {{71, "python3"}}}};
            },
            .rest = [this](std::int64_t) { ++rests_; }};
  }
  int rests_ = 0;
};

TEST_F(MemoryBudgetTest, WhatFitsIsNotWaitedFor) {
  EXPECT_TRUE(AwaitMemory(kGiB, Budget(100, true)));
  EXPECT_EQ(rests_, 0);
}

TEST_F(MemoryBudgetTest, WhatDoesNotFitIsRefusedAtOnceWithNumbers) {
  const Status refused = AwaitMemory(4 * kGiB, Budget(100, false));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().detail.find("4GiB, but control group '/a' (memory.max 8GiB, 7GiB in "
                                        "use) can give 1GiB"),
            std::string::npos)
      << refused.error().detail;
  EXPECT_EQ(rests_, 0);
}

TEST_F(MemoryBudgetTest, AnEndedOwnersMemoryIsWaitedFor) {
  EXPECT_TRUE(AwaitMemory(4 * kGiB, Budget(5, true)));
  EXPECT_EQ(rests_, 5);
}

TEST_F(MemoryBudgetTest, AHolderThatDoesNotLetGoIsNamed) {
  const Status refused = AwaitMemory(4 * kGiB, Budget(100, true));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().detail.find("pid 71 (python3)"), std::string::npos)
      << refused.error().detail;
  EXPECT_EQ(rests_, 20) << "a second, in steps of 50 ms";
}

}  // namespace
}  // namespace kvcove::owner
