// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/stats.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace kvcove {
namespace {

// Gives each figure another value.
DiskStat Numbered() {
  DiskStat disk;
  std::uint64_t number = 0;
  ForEachFigure(disk, [&](const auto&, std::uint64_t& value) { value = ++number; });
  return disk;
}

TEST(DiskStatTest, EachFigureIsInTheSumOfDisks) {
  DiskStat sum = Numbered();
  sum += Numbered();
  std::uint64_t number = 0;
  ForEachFigure(std::as_const(sum), [&](const auto& figure, std::uint64_t value) {
    EXPECT_EQ(value, 2 * ++number) << figure.key;
  });
  EXPECT_GT(number, 40U);
}

TEST(DiskStatTest, EachRowHasItsOwnKeyAndItsOwnSeries) {
  std::set<std::string_view> keys;
  std::set<std::string> series;
  const DiskStat disk;
  ForEachFigure(disk, [&](const auto& figure, std::uint64_t) {
    EXPECT_TRUE(figure.key.empty() || keys.insert(figure.key).second) << figure.key;
    for (const DiskMetric& metric : {figure.metric, figure.second}) {
      if (metric.name.empty()) continue;
      const std::string name = std::string(metric.name) + " " + std::string(metric.label_value);
      EXPECT_TRUE(series.insert(name).second) << name;
      EXPECT_FALSE(metric.help.empty()) << name;
    }
  });
}

constexpr std::uint64_t kHourMs = 3'600'000;

TEST(DiskStatTest, FiguresOfADisk) {
  const DiskStat disk{.path = "/a",
                      .space = {.total_bytes = 1000, .tombstone_bytes = 5},
                      .log = {.written_bytes = 120, .read_bytes = 90},
                      .demoted_bytes = 100,
                      .promoted_bytes = 60,
                      .counted_ms = 2 * kHourMs};
  EXPECT_DOUBLE_EQ(disk.write_amplification().value(), 1.2);
  EXPECT_DOUBLE_EQ(disk.read_amplification().value(), 1.5);
  EXPECT_DOUBLE_EQ(disk.served_per_written().value(), 0.5);
  EXPECT_DOUBLE_EQ(disk.tombstone_share().value(), 0.005);
  EXPECT_DOUBLE_EQ(disk.written_bytes_per_day().value(), 1440);
}

// As after a start, after an upgrade of the process, and while a disk has never been opened.
TEST(DiskStatTest, ADiskWithoutCountsHasNoFigures) {
  const DiskStat disk;
  EXPECT_FALSE(disk.write_amplification());
  EXPECT_FALSE(disk.read_amplification());
  EXPECT_FALSE(disk.served_per_written());
  EXPECT_FALSE(disk.tombstone_share());
  EXPECT_FALSE(disk.written_bytes_per_day());
}

TEST(DiskStatTest, BytesPerDayAreKnownAfterAnHour) {
  DiskStat disk{.path = {}, .space = {}, .log = {.written_bytes = 1}, .counted_ms = kHourMs - 1};
  EXPECT_FALSE(disk.written_bytes_per_day());
  disk.counted_ms = kHourMs;
  EXPECT_DOUBLE_EQ(disk.written_bytes_per_day().value(), 24);
}

TEST(DiskStatTest, ADiskThatServesNextToNothingOfWhatItWritesWearsForNothing) {
  const DiskStat wears{.path = "/a",
                       .space = {.total_bytes = 1000},
                       .log = {.written_bytes = 1000},
                       .promoted_bytes = 49,
                       .counted_ms = kHourMs};
  EXPECT_TRUE(wears.wears_for_nothing());
  DiskStat disk = wears;
  disk.promoted_bytes = 50;
  EXPECT_FALSE(disk.wears_for_nothing());
  disk = wears;
  disk.counted_ms = kHourMs - 1;
  EXPECT_FALSE(disk.wears_for_nothing()) << "the first hour";
  disk = wears;
  disk.log.written_bytes = 999;
  EXPECT_FALSE(disk.wears_for_nothing()) << "it still fills";
  EXPECT_FALSE(DiskStat().wears_for_nothing()) << "it was never opened";
}

TEST(PoolStatTest, ExpectedHitsAreRatiosOfWhatWasAskedFor) {
  PoolStat stat;
  EXPECT_FALSE(stat.expected_ratio(&PoolStat::double_hits));
  EXPECT_FALSE(stat.most_ratio());
  stat.asked = 200;
  stat.double_hits = 50;
  stat.distinct = 80;
  EXPECT_DOUBLE_EQ(*stat.expected_ratio(&PoolStat::double_hits), 0.25);
  EXPECT_DOUBLE_EQ(*stat.most_ratio(), 0.6);
  stat.distinct = 201;  // it is an estimate
  EXPECT_DOUBLE_EQ(*stat.most_ratio(), 0);
}

TEST(PoolStatTest, EachRowHasItsOwnKeyAndItsOwnSeries) {
  std::set<std::string_view> keys;
  std::set<std::string> series;
  for (const PoolFigure& figure : kPoolFigures) {
    EXPECT_TRUE(keys.insert(figure.key()).second) << figure.key();
    const std::string one = fmt::format("{} {} {}", figure.metric, figure.tier, figure.size);
    EXPECT_TRUE(series.insert(one).second) << one;
  }
}

// The disks of an owner share their time: their sum must not be divided by the sum of their times.
TEST(DiskStatTest, SeveralDisksAreCountedTogether) {
  DiskStat sum;
  sum += {.path = {}, .space = {}, .log = {.written_bytes = 10}, .counted_ms = 24 * kHourMs};
  sum += {.path = {}, .space = {}, .log = {.written_bytes = 20}, .counted_ms = 24 * kHourMs};
  EXPECT_EQ(sum.counted_ms, 24 * kHourMs);
  EXPECT_DOUBLE_EQ(sum.written_bytes_per_day().value(), 30);
}

TEST(PoolStatTest, ADiskIsAddedToTheSums) {
  PoolStat stat;
  stat.AddDisk({.path = "/a",
                .space = {.total_bytes = 10},
                .log = {.write_errors = 1, .read_errors = 2},
                .demoted = 3,
                .aside = 1});
  stat.AddDisk({.path = "/b", .space = {.total_bytes = 5}, .log = {}, .demoted = 4});
  EXPECT_EQ(stat.disk_capacity_bytes, 15U);
  EXPECT_EQ(stat.disk_errors, 3U);
  EXPECT_EQ(stat.disk_puts, 7U);
  EXPECT_EQ(stat.disk_aside, 1U);
  ASSERT_EQ(stat.disks.size(), 2U);
  EXPECT_EQ(stat.disks[1].path, "/b");
}

}  // namespace
}  // namespace kvcove
