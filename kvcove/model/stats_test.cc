// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/stats.h"

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
