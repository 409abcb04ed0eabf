// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/step_times.h"

#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

TEST(StepTimesTest, AStepLastsUntilItsFirstReport) {
  StepTimes times;
  times.AddPrompt(/*computed=*/100, /*scheduled=*/10);
  times.AddPrompt(0, 4);
  EXPECT_EQ(times.Begin(1000), 1U);
  const auto step = times.Reported(1, 1500);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->tokens, 14U);
  EXPECT_DOUBLE_EQ(step->context_tokens, 10 * 105.0 + 4 * 2.0);
  EXPECT_EQ(step->ns, 500);
  EXPECT_FALSE(times.Reported(1, 1600)) << "another rank's report";
}

TEST(StepTimesTest, AStepWithoutAPromptIsNotTimed) {
  StepTimes times;
  EXPECT_EQ(times.Begin(1000), 0U);
  EXPECT_FALSE(times.Reported(0, 1500));
  times.AddPrompt(0, 4);
  EXPECT_EQ(times.Begin(2000), 1U) << "the next one is";
}

TEST(StepTimesTest, AStepBeginsWhenTheOneBeforeHasEnded) {
  StepTimes times;
  times.AddPrompt(0, 4);
  ASSERT_EQ(times.Begin(1000), 1U);
  times.AddPrompt(0, 4);
  ASSERT_EQ(times.Begin(1100), 2U) << "planned while the first one runs";
  EXPECT_EQ(times.Reported(1, 1500)->ns, 500);
  EXPECT_EQ(times.Reported(2, 1700)->ns, 200);
}

TEST(StepTimesTest, StepsThatNobodyReportsAreForgotten) {
  StepTimes times;
  for (int i = 0; i < 100; ++i) {
    times.AddPrompt(0, 4);
    (void)times.Begin(1000 + i);
  }
  EXPECT_FALSE(times.Reported(1, 2000)) << "64 are kept";
  EXPECT_TRUE(times.Reported(100, 2000));
  EXPECT_FALSE(times.Reported(99, 2000)) << "an older one";
  EXPECT_FALSE(times.Reported(101, 2000)) << "none that was begun";
}

}  // namespace
}  // namespace kvcove::connector
