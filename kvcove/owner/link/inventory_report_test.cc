// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/inventory_report.h"

#include <gtest/gtest.h>

#include <memory>

namespace kvcove::owner {
namespace {

class InventoryReportTest : public testing::Test {
 protected:
  using Ended = InventoryReport::Ended;
  static constexpr std::int64_t kAgainNs = 1000;
  static constexpr wire::SliceNumber kFreshSlice = 3000;

  // Two shards; `fresh`: the revision in which kFreshSlice began without entries.
  static std::shared_ptr<wire::ShardMap> Map(std::uint64_t revision, std::uint64_t fresh = 0) {
    auto map = std::make_shared<wire::ShardMap>();
    map->revision = revision;
    map->addresses = {"", "shard:1"};
    map->fresh[kFreshSlice] = fresh;
    return map;
  }
  static InventoryItem ItemIn(wire::SliceNumber slice) {
    return {.item = {.hash = {.high = std::uint64_t{slice} << 52, .low = 1}}};
  }
  void Use(const std::shared_ptr<wire::ShardMap>& map) {
    const bool first = !lanes_.active();
    lanes_.SetMap(map);
    report_.UseMap(*map, first);
  }
  // All of the inventory is queued at the shards, and answered.
  Ended PassAndEnd() {
    report_.Advance(Core::kWalkDone);
    report_.NotePassed(lanes_);
    return report_.EndAtShards(lanes_, batches_, kAgainNs);
  }
  void ReportAll() {
    report_.Advance(Core::kWalkDone);
    ASSERT_TRUE(report_.End());
  }

  ShardLanes lanes_;
  AnsweredBatches batches_;
  InventoryReport report_;
};

TEST_F(InventoryReportTest, AnEpochBeginsWithAWalkOverEverything) {
  EXPECT_TRUE(report_.walking());
  EXPECT_FALSE(report_.passed());
  ReportAll();
  EXPECT_TRUE(report_.reported());
  EXPECT_FALSE(report_.walking());
  report_.Begin();
  EXPECT_FALSE(report_.reported());
  EXPECT_EQ(report_.cursor(), 0U);
}

TEST_F(InventoryReportTest, StaleItemsMakeTheFirstWalkBeginAgain) {
  report_.Advance(Core::kWalkDone);
  report_.NoteStale();
  EXPECT_FALSE(report_.End());
  EXPECT_EQ(report_.cursor(), 0U);
  EXPECT_FALSE(report_.reported());
  ReportAll();
}

TEST_F(InventoryReportTest, ADiskThatWorksAgainIsWalkedWhileTheOwnerRemainsReported) {
  ReportAll();
  EXPECT_TRUE(report_.ReportAgain(60));
  EXPECT_EQ(report_.cursor(), 60U);
  EXPECT_TRUE(report_.reported());
  report_.Advance(70);
  EXPECT_TRUE(report_.ReportAgain(60));
  EXPECT_EQ(report_.cursor(), 70U) << "the walk continues";
  report_.NoteStale();
  EXPECT_FALSE(report_.End());
  EXPECT_EQ(report_.cursor(), 60U);
  EXPECT_FALSE(report_.ReportAgain(std::nullopt)) << "it failed again";
  EXPECT_FALSE(report_.walking());
}

TEST_F(InventoryReportTest, AWalkAtShardsEndsWhenTheyHaveAnsweredAllOfIt) {
  Use(Map(2));
  EXPECT_EQ(report_.EndAtShards(lanes_, batches_, kAgainNs), Ended::kNo) << "nothing is passed";
  lanes_.Add({.kind = ShardLanes::Kind::kInventory, .reported = ItemIn(0)});
  EXPECT_EQ(PassAndEnd(), Ended::kNo);
  (void)lanes_.Take(lanes_.lane(0), 1);
  (void)lanes_.Answer(lanes_.lane(0), {Code::kOk});
  EXPECT_EQ(report_.EndAtShards(lanes_, batches_, kAgainNs), Ended::kAll);
  EXPECT_TRUE(report_.reported());
  EXPECT_EQ(report_.reported_map(), 2U);
}

// A lane that acts on an answer may still have refused objects to drop.
TEST_F(InventoryReportTest, NorBeforeTheOwnerHasActedOnTheAnswers) {
  Use(Map(2));
  const std::uint64_t batch = batches_.Begin(lanes_.restarts());
  EXPECT_EQ(PassAndEnd(), Ended::kNo);
  const std::uint64_t later = batches_.Begin(lanes_.restarts());
  batches_.End(batch);
  EXPECT_EQ(report_.EndAtShards(lanes_, batches_, kAgainNs), Ended::kAll) << "others do not count";
  batches_.End(later);
}

TEST_F(InventoryReportTest, StaleItemsMakeAWalkAtShardsPauseAndBeginAgain) {
  Use(Map(2));
  report_.NoteStale();
  EXPECT_EQ(PassAndEnd(), Ended::kNo);
  EXPECT_EQ(report_.cursor(), 0U);
  EXPECT_FALSE(report_.Due(kAgainNs - 1));
  EXPECT_TRUE(report_.Due(kAgainNs));
  EXPECT_EQ(PassAndEnd(), Ended::kAll);
}

TEST_F(InventoryReportTest, AMapWithoutFreshSlicesKeepsAllReports) {
  ReportAll();
  Use(Map(2));
  EXPECT_FALSE(report_.walking());
  EXPECT_EQ(report_.reported_map(), 2U);
}

TEST_F(InventoryReportTest, FreshSlicesAreReportedAgainAndNoOthers) {
  ReportAll();
  Use(Map(2));
  const auto lost = Map(3, /*fresh=*/3);
  Use(lost);
  EXPECT_TRUE(report_.walking());
  EXPECT_TRUE(report_.reported());
  EXPECT_EQ(report_.cursor(), 0U);
  EXPECT_TRUE(report_.Skips(ItemIn(0), *lost));
  EXPECT_FALSE(report_.Skips(ItemIn(kFreshSlice), *lost));
  EXPECT_EQ(PassAndEnd(), Ended::kSlices);
  EXPECT_EQ(report_.reported_map(), 3U);
  EXPECT_FALSE(report_.walking());
}

// The walk was for the disk's objects, from its cursor on; fresh slices need all objects.
TEST_F(InventoryReportTest, ADiskDuringAWalkForSlicesIsReportedWithAllSlices) {
  ReportAll();
  Use(Map(2));
  const auto lost = Map(3, /*fresh=*/3);
  Use(lost);
  report_.ReportAgainToShards(60);
  EXPECT_EQ(report_.cursor(), 0U);
  EXPECT_FALSE(report_.Skips(ItemIn(0), *lost));
  report_.ReportAgainToShards(std::nullopt);
  EXPECT_TRUE(report_.walking()) << "the slices are not reported yet";
  EXPECT_TRUE(report_.Skips(ItemIn(0), *lost));
  EXPECT_EQ(PassAndEnd(), Ended::kSlices);
}

TEST_F(InventoryReportTest, AnotherMapForgetsTheEndOfAWalk) {
  Use(Map(2));
  report_.Advance(Core::kWalkDone);
  report_.NotePassed(lanes_);
  Use(Map(3));
  EXPECT_EQ(report_.EndAtShards(lanes_, batches_, kAgainNs), Ended::kNo);
  EXPECT_EQ(PassAndEnd(), Ended::kAll);
}

TEST_F(InventoryReportTest, WithoutShardsNoMapIsReported) {
  Use(Map(2));
  EXPECT_EQ(PassAndEnd(), Ended::kAll);
  report_.LeaveShards();
  EXPECT_EQ(report_.reported_map(), 0U);
  EXPECT_TRUE(report_.reported());
}

}  // namespace
}  // namespace kvcove::owner
