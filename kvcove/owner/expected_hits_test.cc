// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/expected_hits.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

TEST(WorkBudgetTest, IsExceededOnceForAPeriodOfTooMuchWork) {
  constexpr std::int64_t kPeriodNs = WorkBudget::kPeriodNs;
  std::int64_t now_ns = 1000 * kSecond;
  WorkBudget budget;
  EXPECT_FALSE(budget.Exceeded(now_ns)) << "nothing was done";
  budget.Add(kPeriodNs / 10);
  EXPECT_FALSE(budget.Exceeded(now_ns + kPeriodNs - 1)) << "the period has not ended";
  now_ns += kPeriodNs;
  EXPECT_TRUE(budget.Exceeded(now_ns));
  EXPECT_FALSE(budget.Exceeded(now_ns + kPeriodNs - 1));
  now_ns += kPeriodNs;
  EXPECT_FALSE(budget.Exceeded(now_ns)) << "work counts in its own period alone";
  budget.Add(kPeriodNs / 30);
  EXPECT_FALSE(budget.Exceeded(now_ns + kPeriodNs)) << "little work";
}

// A period that nobody asked about for long is as long as it was.
TEST(WorkBudgetTest, WorkIsAShareOfTheTimeThatPassed) {
  WorkBudget budget;
  EXPECT_FALSE(budget.Exceeded(100 * kSecond));
  budget.Add(kSecond);
  EXPECT_FALSE(budget.Exceeded(130 * kSecond)) << "a thirtieth";
}

}  // namespace
}  // namespace kvcove::owner
