// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/distinct_count.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

TEST(DistinctCountTest, IsWithinFivePercentFromOneKeyToAMillion) {
  Random random(1);
  DistinctCount count;
  EXPECT_EQ(count.Estimate(), 0U);
  std::uint64_t added = 0;
  for (const std::uint64_t keys : {1, 10, 1000, 5000, 30'000, 1'000'000}) {
    for (; added < keys; ++added) count.Add(random.Next());
    EXPECT_NEAR(static_cast<double>(count.Estimate()), static_cast<double>(keys),
                0.05 * static_cast<double>(keys) + 0.5);
  }
}

TEST(DistinctCountTest, AKeyThatIsAddedAgainCountsOnce) {
  DistinctCount count;
  for (int round = 0; round < 100; ++round) {
    for (std::uint64_t key = 0; key < 50; ++key) count.Add(Mix64(key));
  }
  EXPECT_NEAR(static_cast<double>(count.Estimate()), 50, 1);
}

TEST(DistinctCountTest, NeverDecreases) {
  Random random(2);
  DistinctCount count;
  std::uint64_t before = 0;
  for (int i = 0; i < 20'000; ++i) {
    count.Add(random.Next());
    if (i % 50 != 0) continue;
    EXPECT_GE(count.Estimate(), before);
    before = count.Estimate();
  }
}

TEST(DistinctCountTest, TakesAHashOfZerosAndOneOfOnes) {
  DistinctCount count;
  count.Add(0);
  count.Add(~std::uint64_t{0});
  EXPECT_EQ(count.Estimate(), 2U);
}

}  // namespace
}  // namespace kvcove::policy
