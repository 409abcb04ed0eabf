// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/listed_waits.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

TEST(ListedWaitsTest, AWaitIsAnsweredOnceByTheMasterOrByItsEnd) {
  ListedWaits waits;
  std::vector<std::vector<Code>> answers;
  const auto note = [&](std::vector<Code> codes) { answers.push_back(std::move(codes)); };
  const auto first = waits.Add(1, /*deadline_ns=*/100, note);
  const auto second = waits.Add(2, /*deadline_ns=*/200, note);
  const auto third = waits.Add(1, /*deadline_ns=*/300, note);
  waits.End(99, /*all=*/false);
  EXPECT_TRUE(answers.empty());
  first(std::vector<Code>{Code::kExists});
  waits.End(200, /*all=*/false);
  EXPECT_EQ(answers, (std::vector<std::vector<Code>>{{Code::kExists},
                                                     {Code::kNotListed, Code::kNotListed}}));
  second(std::vector<Code>{Code::kOk, Code::kOk});
  waits.End(0, /*all=*/true);
  third(std::vector<Code>{Code::kOk});
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers.back(), std::vector<Code>{Code::kNotListed});
}

// A caller that stores again when it is answered.
TEST(ListedWaitsTest, AnAnswerMayAddAWait) {
  ListedWaits waits;
  int answers = 0;
  (void)waits.Add(1, 100, [&](const std::vector<Code>&) {
    ++answers;
    (void)waits.Add(1, 200, [&](const std::vector<Code>&) { ++answers; });
  });
  waits.End(150, /*all=*/false);
  EXPECT_EQ(answers, 1);
  waits.End(0, /*all=*/true);
  EXPECT_EQ(answers, 2);
}

}  // namespace
}  // namespace kvcove::owner
