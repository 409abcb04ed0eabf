// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory/memory_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

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
                                    .limit = "control group '/a' (memory.max 8GiB, 7GiB in use)",
                                    .most_bytes = most_bytes_};
                },
            .leftovers = [held]() -> std::vector<segment::Leftover> {
              if (!held) return {};
              return {{.segment = "5e", .bytes = 7 * kGiB, .holders = {{71, "python3"}}}};
            },
            .rest = [this](std::int64_t) { ++rests_; }};
  }
  // The kernel frees `each` with each rest, and stops at `until`.
  MemoryBudget Growing(std::uint64_t each, std::uint64_t until) {
    MemoryBudget budget = Budget(0, /*held=*/false);
    budget.available = [this, each, until] {
      return MemoryRoom{.bytes = std::min(static_cast<std::uint64_t>(rests_) * each, until),
                        .limit = "control group '/a' (memory.max 8GiB, 8GiB in use)",
                        .most_bytes = most_bytes_};
    };
    return budget;
  }
  int rests_ = 0;
  std::uint64_t most_bytes_ = 8 * kGiB;
};

TEST_F(MemoryBudgetTest, WhatFitsIsNotWaitedFor) {
  EXPECT_TRUE(AwaitMemory(kGiB, Budget(100, true)));
  EXPECT_EQ(rests_, 0);
}

TEST_F(MemoryBudgetTest, WhatCanNeverFitIsRefusedAtOnceWithNumbers) {
  most_bytes_ = 3 * kGiB;
  const Status refused = AwaitMemory(4 * kGiB, Budget(100, false));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().detail.find("4GiB, but control group '/a' (memory.max 8GiB, 7GiB in "
                                        "use) can give 1GiB"),
            std::string::npos)
      << refused.error().detail;
  EXPECT_EQ(rests_, 0);
}

// A killed owner that nobody maps any more: the kernel needs seconds for many gigabytes.
TEST_F(MemoryBudgetTest, MemoryThatTheKernelStillFreesIsWaitedForWhileItGrows) {
  EXPECT_TRUE(AwaitMemory(7 * kGiB, Growing(10 * kMiB, 8 * kGiB)));
  EXPECT_EQ(rests_, 717) << "36 s, in steps of 50 ms";
}

TEST_F(MemoryBudgetTest, ARoomThatDoesNotGrowIsWaitedForForAMoment) {
  const Status refused = AwaitMemory(4 * kGiB, Budget(1000, false));
  ASSERT_FALSE(refused);
  EXPECT_EQ(rests_, 60) << "3 s, in steps of 50 ms";
  rests_ = 0;
  EXPECT_FALSE(AwaitMemory(4 * kGiB, Growing(kGiB, 2 * kGiB)));
  EXPECT_EQ(rests_, 62) << "3 s after it grew last";
  rests_ = 0;
  EXPECT_FALSE(AwaitMemory(7 * kGiB, Growing(2 * kMiB, 8 * kGiB)));
  EXPECT_EQ(rests_, 1200) << "a minute at most";
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
  EXPECT_EQ(rests_, 60) << "as without one";
  MemoryBudget patient = Budget(1000, true);
  patient.patience_ns = 10 * kSecond;
  rests_ = 0;
  EXPECT_FALSE(AwaitMemory(4 * kGiB, patient));
  EXPECT_EQ(rests_, 200) << "10 s, in steps of 50 ms";
}

}  // namespace
}  // namespace kvcove::owner
