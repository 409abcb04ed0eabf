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
            "The pool needs attention: 1 of 2 owners is gone (a): stopped, frozen or cut off, and "
            "what it holds is missed; 1 of 2 disks is set aside, because it failed (owner a).");
  facts.owners.assign(5, {.address = "b", .socket = {}, .host = {}, .tenant = {}});
  EXPECT_EQ(
      VerdictOf(facts).text,
      "The pool needs attention: 5 of 5 owners are gone (b, b, b and 2 more): stopped, frozen "
      "or cut off, and what they hold is missed.");
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

TEST(VerdictTest, RefusedTokensCountForAMinute) {
  PageFacts facts = WellFacts();
  facts.refused_hello = 2;
  PageHistory::Point point{.time_s = 1000};
  point.calls[2].count = 4;
  facts.points = {point, {.time_s = 1060}};
  EXPECT_EQ(VerdictOf(facts).health, Health::kGood);
  point.time_s = 1070;
  facts.points.push_back(point);
  EXPECT_EQ(VerdictOf(facts).health, Health::kBad);
  EXPECT_THAT(VerdictOf(facts).text,
              testing::HasSubstr("4 connections were refused in the last minute, because the "
                                 "credentials file has no such token"));
}

// Any full cache misses some evicted keys.
TEST(VerdictTest, AWorkingSetIsTooLargeWhenManyOfTheKeysWereEvicted) {
  PageFacts facts = WellFacts();
  facts.points = {MissedAt(1000, MissReason::kEvicted, 99)};
  EXPECT_EQ(VerdictOf(facts).health, Health::kGood) << "few";
  facts.points = {MissedAt(1000, MissReason::kEvicted, 300)};
  facts.points[0].hits = 1300;
  EXPECT_EQ(VerdictOf(facts).health, Health::kGood) << "a small share";
  facts.points[0].hits = 700;
  EXPECT_EQ(VerdictOf(facts).health, Health::kWarn);
  EXPECT_EQ(VerdictOf(facts).text,
            "The pool needs attention: the working set is larger than the pool: 30 % of the keys "
            "that engines asked for in the last minute had been evicted for newer ones.");
  facts.memory = {.half = 0.5, .same = 0.7, .twice = 0.81, .quadruple = 0.9, .any = 0.95};
  EXPECT_THAT(VerdictOf(facts).text,
              testing::HasSubstr("and twice the memory would bring 11 points."));
}

TEST(VerdictTest, EnginesOfOneModelWithSeveralNamespacesDoNotShare) {
  const std::string a = "llama@" + std::string(32, 'a');
  const std::string b = "llama@" + std::string(32, 'b');
  PageFacts facts = WellFacts();
  facts.engines = {{.name = a, .engine = "one", .version = {}},
                   {.name = a, .engine = "two", .version = {}},
                   {.name = "qwen@" + std::string(32, 'c'), .engine = "three", .version = {}},
                   {.name = "llama@short", .engine = "four", .version = {}}};
  EXPECT_EQ(VerdictOf(facts).health, Health::kGood);
  facts.engines.push_back({.name = b, .engine = "five", .version = {}});
  EXPECT_EQ(VerdictOf(facts).health, Health::kWarn);
  EXPECT_EQ(VerdictOf(facts).text,
            "The pool needs attention: engines of llama do not share, because they have 2 "
            "namespaces: 'kvcove why-not one five' says what differs.");
  // Somebody may paste what stands there.
  facts.engines.back().engine = "x; reboot";
  EXPECT_THAT(VerdictOf(facts).text, testing::HasSubstr("'kvcove why-not ENGINE ENGINE'"));
  EXPECT_THAT(VerdictOf(facts).text, testing::Not(testing::HasSubstr("reboot")));
}

TEST(VerdictTest, AdviceSaysWhatOtherSizesWouldBring) {
  PageFacts facts = WellFacts();
  EXPECT_TRUE(AdviceOf(facts).empty());
  facts.memory = {.half = 0.2, .same = 0.3, .twice = 0.31, .quadruple = 0.304, .any = 0.6};
  facts.disk = {.half = 0.2, .same = 0.3, .twice = 0.5, .quadruple = {}, .any = {}};
  EXPECT_THAT(
      AdviceOf(facts),
      testing::ElementsAre("Twice the memory would bring 1 point of hit ratio, four times the "
                           "memory nothing; half of it would cost 10 points. As it is, 30 of 100 "
                           "values are found (estimated). No size finds more than 60, because the "
                           "others are asked for once."));
  facts.disk.quadruple = 0.6;
  ASSERT_EQ(AdviceOf(facts).size(), 2U);
  EXPECT_THAT(AdviceOf(facts)[1], testing::StartsWith("Twice the disk would bring 20 points"));
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
