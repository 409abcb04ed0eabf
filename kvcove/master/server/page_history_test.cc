// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

constexpr std::int64_t kStep = PageHistory::kIntervalNs;

AdminPool::Counts NoCounts() { return {}; }

wire::OwnerStat OwnerWith(wire::OwnerNumber number, std::uint64_t hits, std::uint32_t epoch = 1) {
  return {.number = number,
          .epoch = epoch,
          .address = {},
          .socket = {},
          .host = {},
          .live = true,
          .tenant = {},
          .hits = hits,
          .hit_bytes = 10 * hits,
          .put_bytes = 20 * hits};
}

TEST(PageHistoryTest, APointHasWhatWasCountedSinceTheSampleBefore) {
  PageHistory history;
  AdminPool::Counts counts;
  counts.misses[1] = 5;
  EXPECT_TRUE(history.Due(kStep));
  history.Add({OwnerWith(1, 100)}, counts, kStep);
  EXPECT_TRUE(history.Since(0).points.empty()) << "one sample has no rates";
  EXPECT_FALSE(history.Due(2 * kStep - 1));
  EXPECT_TRUE(history.Due(2 * kStep));
  counts.misses[1] = 25;
  counts.resets_not_proven = 1;
  history.Add({OwnerWith(1, 160)}, counts, 2 * kStep);
  const auto [first, points] = history.Since(0);
  ASSERT_EQ(points.size(), 1U);
  EXPECT_EQ(first, 0U);
  EXPECT_EQ(points[0].time_s, 20);
  EXPECT_EQ(points[0].seconds, 10);
  EXPECT_EQ(points[0].hits, 60U);
  EXPECT_EQ(points[0].down_bytes, 600U);
  EXPECT_EQ(points[0].up_bytes, 1200U);
  EXPECT_EQ(points[0].missed(), 20U);
  EXPECT_EQ(points[0].resets_not_proven, 1U);
  EXPECT_EQ(points[0].HitRatio(), 0.75);
}

// An owner that is new, has gone, or counts from zero changes nothing that others have counted.
TEST(PageHistoryTest, OwnersAreComparedOneByOne) {
  PageHistory history;
  history.Add({OwnerWith(1, 100), OwnerWith(2, 1000), OwnerWith(3, 50)}, NoCounts(), kStep);
  history.Add({OwnerWith(1, 110), OwnerWith(3, 60, 2), OwnerWith(4, 9000)}, NoCounts(), 2 * kStep);
  history.Add({OwnerWith(1, 3), OwnerWith(4, 9001)}, NoCounts(), 3 * kStep);
  const std::vector<PageHistory::Point> points = history.Since(0).points;
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].hits, 10U);
  EXPECT_EQ(points[1].hits, 1U);
}

// A new leader's owners say hello before they report, and have counted for long.
TEST(PageHistoryTest, AnOwnerWithoutALeaseHasReportedNothing) {
  PageHistory history;
  wire::OwnerStat joins = OwnerWith(1, 0);
  wire::OwnerStat away = OwnerWith(2, 500);
  joins.live = false;
  history.Add({joins, away}, NoCounts(), kStep);
  away.live = false;
  history.Add({OwnerWith(1, 1'000'000), away}, NoCounts(), 2 * kStep);
  history.Add({OwnerWith(1, 1'000'007), OwnerWith(2, 510)}, NoCounts(), 3 * kStep);
  const std::vector<PageHistory::Point> points = history.Since(0).points;
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].hits, 0U);
  EXPECT_EQ(points[1].hits, 17U) << "what was counted while its lease had ended, too";
}

TEST(PageHistoryTest, NothingAskedForHasNoRatio) { EXPECT_LT(PageHistory::Point().HitRatio(), 0); }

TEST(PageHistoryTest, TheRingHasTheLastHour) {
  PageHistory history;
  for (std::size_t i = 0; i <= PageHistory::kPoints + 5; ++i) {
    history.Add({}, NoCounts(), static_cast<std::int64_t>(i + 1) * kStep);
  }
  const PageHistory::Points all = history.Since(0);
  EXPECT_EQ(all.first, 5U);
  ASSERT_EQ(all.points.size(), PageHistory::kPoints);
  EXPECT_EQ(all.points.front().time_s, 70);
  EXPECT_EQ(all.points.back().time_s, 10 * (static_cast<std::int64_t>(PageHistory::kPoints) + 6));
}

TEST(PageHistoryTest, AReaderGetsWhatItLacks) {
  PageHistory history;
  for (int i = 0; i < 5; ++i) history.Add({}, NoCounts(), (i + 1) * kStep);
  EXPECT_EQ(history.Since(3).first, 3U);
  EXPECT_EQ(history.Since(3).points.size(), 1U);
  EXPECT_EQ(history.Since(4).points.size(), 0U);
  // The process was started anew: the reader gets all, and sees by `first` that its own are void.
  EXPECT_EQ(history.Since(77).first, 0U);
  EXPECT_EQ(history.Since(77).points.size(), 4U);
}

TEST(PageHistoryTest, CallsAreTheirIntervals) {
  PageHistory history;
  AdminPool::Counts counts{.calls = {{"lookup", {}}, {"reset", {}}}};
  counts.calls[0].second[20] = 7;  // long ago, and slow
  history.Add({}, counts, kStep);
  counts.calls[0].second[3] = 98;
  counts.calls[0].second[5] = 2;
  history.Add({}, counts, 2 * kStep);
  const PageHistory::Point point = history.Since(0).points[0];
  EXPECT_EQ(point.calls[0].count, 100U);
  EXPECT_GE(point.calls[0].p50_us, 4U);
  EXPECT_LE(point.calls[0].p50_us, 8U);
  EXPECT_GE(point.calls[0].p99_us, 16U);
  EXPECT_LE(point.calls[0].p99_us, 32U);
  EXPECT_EQ(point.calls[1].count, 0U);
}

TEST(QuantileTest, IsInterpolatedWithinABucket) {
  Histogram::Counts calls{};
  EXPECT_EQ(QuantileUs(calls, 0.5), 0U);
  calls[4] = 100;  // 8 to 16 us
  EXPECT_EQ(QuantileUs(calls, 0.5), 12U);
  EXPECT_EQ(QuantileUs(calls, 1), 16U);
  calls.fill(0);
  calls.back() = 1;  // no upper bound is known
  EXPECT_EQ(QuantileUs(calls, 0.5), 1U << (Histogram::kBuckets - 2));
}

}  // namespace
}  // namespace kvcove::master
