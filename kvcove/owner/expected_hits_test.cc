// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/expected_hits.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"
#include "kvcove/base/size.h"

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

// The thread has other work, which must not wait until a flood is estimated.
TEST(ExpectedHitsTest, AFloodIsEstimatedInPartsAndSampledLess) {
  constexpr std::uint64_t kPayload = kMiB;
  constexpr std::uint64_t kObjects = 1000;
  FakeClock clock;
  const auto memory = *Memory::Create(
      {.payload_bytes = kPayload, .max_objects = kObjects, .populate = false}, clock);
  ASSERT_TRUE(memory->OpenCore({.payload_bytes = kPayload, .max_objects = kObjects}));
  ExpectedHits expected;
  ASSERT_TRUE(expected.Open("default", kPayload, 0));
  const auto flood = [&] {
    const MutexLock lock(memory->mutex);
    for (std::uint64_t i = 0; i < 2 * Asks::kMostNoted; ++i) {
      memory->core().asks().Stored({.id = 1, .hash = Mix64(i), .bytes = 64}, kNoObject, 0);
    }
  };
  const auto asked = [&] {
    PoolStat stat;
    expected.Add(stat);
    return stat.asked;
  };
  flood();
  std::int64_t now_ns = kSecond;
  EXPECT_TRUE(expected.Update(*memory, now_ns)) << "more is left";
  EXPECT_EQ(asked(), 0U) << "65,536 accesses take more than a millisecond";
  EXPECT_TRUE(expected.Update(*memory, now_ns + kMillisecond)) << "more is left";
  EXPECT_EQ(asked(), 0U) << "it rests";
  int updates = 0;
  for (; asked() == 0 && updates < 1000; ++updates) expected.Update(*memory, now_ns += kSecond);
  EXPECT_GT(updates, 1);
  EXPECT_EQ(asked(), Asks::kMostNoted);
  EXPECT_FALSE(expected.Update(*memory, now_ns += kSecond)) << "nothing is left";
  flood();
  std::vector<policy::Access> accesses;
  const MutexLock lock(memory->mutex);
  const std::uint64_t then = memory->core().asks().Take(accesses);
  EXPECT_GT(then, accesses.size() * 19 / 10) << "every second key, if not less";
}

// HyperLogLog is off by more than a percent, and the miniatures know better here.
TEST(ExpectedHitsTest, MemoryOfAnySizeFindsNoLessThanTheLargest) {
  constexpr std::uint64_t kKeys = 900;
  FakeClock clock;
  const auto memory =
      *Memory::Create({.payload_bytes = kMiB, .max_objects = 1000, .populate = false}, clock);
  ASSERT_TRUE(memory->OpenCore({.payload_bytes = kMiB, .max_objects = 1000}));
  ExpectedHits expected;
  ASSERT_TRUE(expected.Open("lru", kMiB, 0));
  PoolStat stat;
  stat.distinct = kKeys + 20;  // as it may be estimated
  {
    const MutexLock lock(memory->mutex);
    for (std::uint64_t i = 0; i < 2 * kKeys; ++i) {
      memory->core().asks().Stored({.id = 1, .hash = Mix64(i % kKeys), .bytes = 64}, kNoObject, 0);
    }
  }
  std::int64_t now_ns = kSecond;
  for (int i = 0; i < 1000; ++i) expected.Update(*memory, now_ns += kSecond);
  expected.Add(stat);
  EXPECT_EQ(stat.asked, 2 * kKeys);
  EXPECT_EQ(stat.quadruple_hits, kKeys);
  EXPECT_DOUBLE_EQ(*stat.most_ratio(), 0.5);
}

TEST(ExpectedHitsTest, AnOwnerWithLittleMemoryFollowsFewerObjects) {
  EXPECT_EQ(ExpectedHits::MostSampled(kMiB), 1024U);
  EXPECT_EQ(ExpectedHits::MostSampled(64 * kMiB), 8192U);
  EXPECT_EQ(ExpectedHits::MostSampled(256 * kMiB), 32'768U);
  EXPECT_EQ(ExpectedHits::MostSampled(256 * kGiB), 32'768U);
}

}  // namespace
}  // namespace kvcove::owner
