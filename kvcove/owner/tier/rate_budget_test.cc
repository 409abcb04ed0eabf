// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/rate_budget.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::owner {
namespace {

// Returns the bytes of values of `bytes` each that pass in `seconds`, with one attempt a
// millisecond.
std::uint64_t Passed(RateBudget& budget, std::int64_t& now_ns, std::int64_t seconds,
                     std::uint64_t bytes) {
  std::uint64_t passed = 0;
  for (const std::int64_t end = now_ns + (seconds * kSecond); now_ns < end;
       now_ns += kMillisecond) {
    if (!budget.MaySpend(now_ns)) continue;
    budget.Spend(bytes);
    passed += bytes;
  }
  return passed;
}

TEST(RateBudgetTest, ABurstThenTheRate) {
  std::int64_t now_ns = 5;
  RateBudget budget(1000, 10, now_ns);
  EXPECT_EQ(Passed(budget, now_ns, 1, 100), 11'000U) << "ten seconds' worth, and one second";
  const std::uint64_t later = Passed(budget, now_ns, 100, 100);
  EXPECT_NEAR(static_cast<double>(later), 100'000, 200);
  now_ns += 3600 * kSecond;
  EXPECT_NEAR(static_cast<double>(Passed(budget, now_ns, 1, 100)), 11'000, 100)
      << "an idle hour earns no more than a burst";
}

// A value that is larger than the burst passes, and is paid off.
TEST(RateBudgetTest, ALargeValueIsPaidOff) {
  std::int64_t now_ns = 0;
  RateBudget budget(10, 10, now_ns);
  ASSERT_TRUE(budget.MaySpend(now_ns));
  budget.Spend(100'000);
  EXPECT_LT(budget.left_bytes(), -99'000);
  EXPECT_FALSE(budget.MaySpend(9'000 * kSecond));
  EXPECT_TRUE(budget.MaySpend(10'001 * kSecond));
}

TEST(RateBudgetTest, ARateOfZeroIsAnyRate) {
  std::int64_t now_ns = 0;
  RateBudget budget(0, 10, now_ns);
  EXPECT_EQ(Passed(budget, now_ns, 1, 1 << 20), 1000U << 20);
}

}  // namespace
}  // namespace kvcove::owner
