// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page_verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/base/size.h"

namespace kvcove::master {
namespace {

wire::OwnerStat LiveOwner() {
  return {.address = "a",
          .socket = {},
          .host = {},
          .capacity_bytes = 4 * kGiB,
          .free_bytes = 3 * kGiB,
          .live = true,
          .tenant = {}};
}

PageFacts WellFacts() {
  return {.ready = {.ready = true, .text = "ok"},
          .owners = {LiveOwner(), LiveOwner()},
          .points = {},
          .tasks = {}};
}

PageHistory::Point MissedAt(std::int64_t time_s, MissReason reason, std::uint32_t keys) {
  PageHistory::Point point{.time_s = time_s};
  point.misses[static_cast<std::size_t>(reason)] = keys;
  return point;
}

TEST(VerdictTest, AWellPoolIsSaidToBeWell) {
  const Verdict verdict = VerdictOf(WellFacts());
  EXPECT_EQ(verdict.health, Health::kGood);
  EXPECT_EQ(verdict.text, "The pool is well: 2 owners, 25 % of 8GiB of memory in use.");
}

TEST(VerdictTest, OwnersThatAreGoneAndDisksThatFailedAreNamed) {
  PageFacts facts = WellFacts();
  facts.owners[0].live = false;
  facts.owners[0].disks_aside = 5;  // of an owner that is gone nobody knows
  facts.owners[0].disks = 5;
  facts.owners[1].disks = 2;
  facts.owners[1].disks_aside = 1;
  const Verdict verdict = VerdictOf(facts);
  EXPECT_EQ(verdict.health, Health::kBad);
  EXPECT_EQ(verdict.text,
            "The pool needs attention: 1 of 2 owners is gone, and what they hold is missed; 1 of 2 "
            "disks is set aside, because it failed.");
}

TEST(VerdictTest, WithoutAnOwnerNothingCanBeStored) {
  PageFacts facts = WellFacts();
  facts.owners.clear();
  EXPECT_EQ(VerdictOf(facts).health, Health::kWarn);
  EXPECT_THAT(VerdictOf(facts).text, testing::HasSubstr("no owner gives memory"));
}

TEST(VerdictTest, AnEndpointThatIsNotReadySaysWhy) {
  PageFacts facts = WellFacts();
  facts.ready = {.ready = false, .text = "leader, cut off from etcd"};
  EXPECT_EQ(VerdictOf(facts).health, Health::kBad);
  EXPECT_THAT(VerdictOf(facts).text, testing::HasSubstr("leader, cut off from etcd"));
}

TEST(VerdictTest, AlarmingMissesCountForAMinute) {
  PageFacts facts = WellFacts();
  facts.points = {MissedAt(1000, MissReason::kLease, 7), MissedAt(1060, MissReason::kEvicted, 9)};
  EXPECT_EQ(VerdictOf(facts).health, Health::kGood);
  facts.points.push_back(MissedAt(1070, MissReason::kOwnerGone, 2));
  facts.points.push_back(MissedAt(1080, MissReason::kTimeout, 1));
  EXPECT_EQ(VerdictOf(facts).health, Health::kBad);
  EXPECT_EQ(VerdictOf(facts).text,
            "The pool needs attention: 3 keys were missed in the last minute because of: owner "
            "gone, timeout.");
}

TEST(VerdictTest, ResetsWithoutAProofAndAFailedTaskAreWarnings) {
  PageFacts facts = WellFacts();
  facts.points = {{.time_s = 1, .resets_not_proven = 1}, {.time_s = 2000, .resets_not_proven = 1}};
  facts.tasks = {{.id = 7,
                  .request = {.kind = TaskKind::kDrain, .from = {}, .to = {}, .prefix = {}},
                  .state = TaskState::kFailed,
                  .message = {}}};
  EXPECT_EQ(VerdictOf(facts).health, Health::kWarn);
  EXPECT_EQ(VerdictOf(facts).text,
            "The pool needs attention: 2 resets were not proven in the last hour; task 7 (drain) "
            "has failed.");
  // Later ones have not ended.
  for (const TaskState state : {TaskState::kRunning, TaskState::kQueued}) {
    facts.tasks.insert(facts.tasks.begin(),
                       {.id = 9, .request = {}, .state = state, .message = {}});
  }
  EXPECT_THAT(VerdictOf(facts).text, testing::HasSubstr("task 7 (drain) has failed"));
  // A later one has succeeded.
  facts.tasks.insert(facts.tasks.begin(),
                     {.id = 8, .request = {}, .state = TaskState::kDone, .message = {}});
  facts.points.clear();
  EXPECT_EQ(VerdictOf(facts).health, Health::kGood);
}

TEST(VerdictTest, EachReasonHasAMeaning) {
  for (std::size_t i = 0; i < kMissReasons; ++i) {
    EXPECT_FALSE(MeaningOf(static_cast<MissReason>(i)).empty()) << i;
  }
}

}  // namespace
}  // namespace kvcove::master
