// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/step_budget.h"

#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

using std::chrono::milliseconds;

TEST(StepBudgetTest, LookupsShareAStepsBudget) {
  StepBudget budget(milliseconds(5));
  EXPECT_EQ(budget.ForLookups(), 5 * kMillisecond);
  budget.AddLookup(3 * kMillisecond);
  EXPECT_EQ(budget.ForLookups(), 2 * kMillisecond);
  budget.AddLookup(3 * kMillisecond);
  EXPECT_EQ(budget.ForLookups(), 0);
  budget.BeginStep();
  EXPECT_EQ(budget.ForLookups(), 5 * kMillisecond);
}

TEST(StepBudgetTest, ABindingGetsAShareOfItAlone) {
  StepBudget budget(milliseconds(5));
  EXPECT_EQ(budget.ForBinding(), kMillisecond);
  budget.AddLookup(2 * kMillisecond);
  EXPECT_LE(budget.ForBinding(), 0);
}

TEST(StepBudgetTest, CapturesGetWhatLookupsLeaveButNotNothing) {
  StepBudget budget(milliseconds(5));
  EXPECT_EQ(budget.ForCapture(), milliseconds(5));
  budget.AddLookup(2 * kMillisecond);
  EXPECT_EQ(budget.ForCapture(), milliseconds(3));
  budget.AddLookup(9 * kMillisecond);
  EXPECT_EQ(budget.ForCapture(), milliseconds(1)) << "look-ups starve none";
  budget.AddCapture(kMillisecond);
  EXPECT_EQ(budget.ForCapture(), milliseconds(0));
  budget.BeginStep();
  EXPECT_EQ(budget.ForCapture(), milliseconds(5));
}

}  // namespace
}  // namespace kvcove::connector
