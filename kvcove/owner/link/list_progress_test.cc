// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/list_progress.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

TEST(ListRoundsTest, ARoundAtShardsEndsWhenAllThatWasQueuedIsAnswered) {
  ShardLanes lanes;
  auto map = std::make_shared<wire::ShardMap>();
  map->addresses = {""};
  lanes.SetMap(map);
  lanes.Add({.reported = {.item = {.hash = {.high = 1, .low = 1}, .gone = true}}});
  ListRounds rounds;
  rounds.Begin(lanes);
  lanes.Add({.reported = {.item = {.hash = {.high = 1, .low = 2}, .gone = true}}});
  rounds.Begin(lanes);  // is under way
  rounds.Check(lanes);
  EXPECT_EQ(rounds.ended(), 0U);
  (void)lanes.Take(lanes.lane(0), 1);
  (void)lanes.Answer(lanes.lane(0), {Code::kOk});
  rounds.Check(lanes);
  EXPECT_EQ(rounds.ended(), 1U) << "the second entry was queued later";
  rounds.Check(lanes);
  EXPECT_EQ(rounds.ended(), 1U);
}

TEST(ListRoundsTest, ARoundOfAnotherMapNeverEnds) {
  ShardLanes lanes;
  auto map = std::make_shared<wire::ShardMap>();
  map->addresses = {""};
  lanes.SetMap(map);
  ListRounds rounds;
  rounds.Begin(lanes);
  rounds.Abandon();
  rounds.Check(lanes);
  EXPECT_EQ(rounds.ended(), 0U);
  rounds.End();
  EXPECT_EQ(rounds.ended(), 1U);
}

TEST(AnsweredBatchesTest, ABatchCountsUntilTheOwnerHasActedOnIt) {
  AnsweredBatches batches;
  EXPECT_TRUE(batches.EndedBefore(batches.next()));
  const std::uint64_t first = batches.Begin(0);
  const std::uint64_t second = batches.Begin(0);
  EXPECT_FALSE(batches.EndedBefore(second));
  EXPECT_TRUE(batches.EndedBefore(first));
  batches.End(first);
  EXPECT_TRUE(batches.EndedBefore(second));
  EXPECT_FALSE(batches.EndedBefore(batches.next()));
  batches.End(second);
  EXPECT_TRUE(batches.EndedBefore(batches.next()));
}

TEST(AnsweredBatchesTest, NoWalkPassesPutsThatWereAnsweredUnderAnEarlierMap) {
  AnsweredBatches batches;
  const std::uint64_t early = batches.Begin(4);
  EXPECT_TRUE(batches.MayWalk(4));
  EXPECT_FALSE(batches.MayWalk(5));
  (void)batches.Begin(5);
  EXPECT_FALSE(batches.MayWalk(5));
  batches.End(early);
  EXPECT_TRUE(batches.MayWalk(5));
}

}  // namespace
}  // namespace kvcove::owner
