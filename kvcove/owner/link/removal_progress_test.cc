// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link/removal_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RemovalProgressTest : public testing::Test {
 protected:
  RemovalProgressTest() { progress_.Welcomed(100, /*same_master=*/false); }
  static wire::Removal Key(std::uint64_t number) {
    return {.number = number, .slot = 1, .keys = {"k"}, .pattern = {}};
  }
  static wire::Removal Pattern(std::uint64_t number) {
    return {.number = number, .slot = 1, .keys = {}, .pattern = "x*"};
  }
  static wire::RemovalsPage PageOf(std::vector<wire::Removal> removals) {
    return {.drop = {}, .removals = std::move(removals), .upto = 0};
  }
  // Notes removals up to `upto`, of which these are open.
  void Apply(std::uint64_t upto, std::vector<std::uint64_t> open = {}, std::uint64_t round = 0) {
    progress_.NoteApplied({.upto = upto, .matched = {}, .open = std::move(open)}, round);
  }
  void End(std::uint64_t number, std::uint64_t round) {
    const RemovalProgress::Count count{.number = number, .objects = 5};
    progress_.NoteEnded({&count, 1}, round);
  }

  RemovalProgress progress_;
};

TEST_F(RemovalProgressTest, AnOpenRemovalHoldsUpTheAcknowledgementOfItselfAlone) {
  Apply(104, {102});
  EXPECT_EQ(progress_.applied(), 104U);
  EXPECT_EQ(progress_.Acknowledged(), 101U);
  const wire::RemovalsRequest request = progress_.Next();
  EXPECT_EQ(request.after, 101U);
  EXPECT_EQ(request.ahead, 104U);
  EXPECT_THAT(request.open, ElementsAre(102U));
}

TEST_F(RemovalProgressTest, ItEndsTwoRoundsAfterItsWalks) {
  Apply(104, {102});
  End(102, /*round=*/7);
  EXPECT_EQ(progress_.Acknowledged(), 101U);
  progress_.NoteEnded({}, /*rounds=*/8);
  EXPECT_EQ(progress_.Acknowledged(), 101U) << "that round may have begun before";
  progress_.NoteEnded({}, /*rounds=*/9);
  EXPECT_EQ(progress_.Acknowledged(), 104U);
}

TEST_F(RemovalProgressTest, WhatEndsOfAnEarlierMasterIsNotCounted) {
  Apply(104);
  End(55, 0);
  EXPECT_THAT(progress_.Next().matched, IsEmpty());
}

TEST_F(RemovalProgressTest, CountsAreReportedOnce) {
  progress_.NoteApplied(
      {.upto = 101, .drop_number = 6, .matched = {{.number = 101, .objects = 3}}, .open = {101}},
      0);
  End(101, 0);
  const wire::RemovalsRequest request = progress_.Next();
  ASSERT_EQ(request.matched.size(), 2U) << "those of memory, and those of disks";
  EXPECT_EQ(request.matched[0].objects, 3U);
  EXPECT_EQ(request.matched[1].objects, 5U);
  EXPECT_EQ(request.dropped, 6U);
  EXPECT_THAT(progress_.Next().matched, IsEmpty());
  EXPECT_EQ(progress_.Next().dropped, 6U);
}

TEST_F(RemovalProgressTest, NothingIsAcknowledgedBeforeItsKeysAreUnlisted) {
  progress_.NoteApplied({.upto = 101, .matched = {}, .open = {}, .unlists = true}, /*rounds=*/3);
  EXPECT_FALSE(progress_.MayAcknowledge(4));
  EXPECT_TRUE(progress_.MayAcknowledge(5));
}

TEST_F(RemovalProgressTest, RoomIsThatOfWalksAndOfARequest) {
  EXPECT_EQ(progress_.Room(3), 3U);
  EXPECT_EQ(progress_.Room(wire::kMaxOpenRemovals + 9), wire::kMaxOpenRemovals);
  std::vector<std::uint64_t> open;
  for (std::uint64_t i = 0; i < wire::kMaxOpenRemovals - 1; ++i) open.push_back(101 + i);
  Apply(200, std::move(open));
  EXPECT_EQ(progress_.Room(3), 1U);
  Apply(201, {201, 202});
  EXPECT_EQ(progress_.Room(3), 0U);
}

TEST_F(RemovalProgressTest, APatternWithoutRoomIsAwaited) {
  EXPECT_FALSE(progress_.Blocked(PageOf({Key(101), Pattern(102)}), 0)) << "the key can be applied";
  Apply(101);
  EXPECT_FALSE(progress_.Blocked(PageOf({Key(101), Pattern(102)}), 1));
  EXPECT_FALSE(progress_.AwaitsRoom(0));
  EXPECT_TRUE(progress_.Blocked(PageOf({Key(101), Pattern(102)}), 0));
  EXPECT_TRUE(progress_.AwaitsRoom(0));
  EXPECT_FALSE(progress_.AwaitsRoom(1));
  EXPECT_FALSE(progress_.AwaitsRoom(0)) << "until the page comes again";
}

TEST_F(RemovalProgressTest, APageRepeatsIfItsFirstRemovalIsApplied) {
  EXPECT_FALSE(progress_.Repeats(PageOf({})));
  EXPECT_FALSE(progress_.Repeats(PageOf({Key(101)})));
  EXPECT_TRUE(progress_.Repeats(PageOf({Key(100), Key(101)})));
}

TEST_F(RemovalProgressTest, ALatePageLowersNoNumber) {
  Apply(104);
  Apply(102);
  EXPECT_EQ(progress_.applied(), 104U);
  progress_.Welcomed(103, /*same_master=*/true);
  EXPECT_EQ(progress_.applied(), 104U);
}

TEST_F(RemovalProgressTest, AnotherMasterBeginsAtItsOwnNumber) {
  progress_.NoteApplied(
      {.upto = 104, .drop_number = 6, .matched = {{.number = 103}}, .open = {102}}, 0);
  (void)progress_.Blocked(PageOf({Pattern(105)}), 0);
  progress_.Welcomed(50, /*same_master=*/false);
  EXPECT_FALSE(progress_.AwaitsRoom(0)) << "its log may begin with keys";
  const wire::RemovalsRequest request = progress_.Next();
  EXPECT_EQ(request.after, 50U);
  EXPECT_EQ(request.seen(), 50U);
  EXPECT_EQ(request.dropped, 0U);
  EXPECT_THAT(request.matched, IsEmpty());
  EXPECT_THAT(request.open, IsEmpty());
}

TEST_F(RemovalProgressTest, ADropIsAcknowledgedTwoRoundsAfterItsWalks) {
  Apply(101);
  progress_.NoteApplied({.upto = 104, .drop_number = 6, .dropping = {9}, .matched = {}, .open = {}},
                        0);
  wire::RemovalsRequest request = progress_.Next();
  EXPECT_EQ(request.after, 101U) << "a restart drops the slot again";
  EXPECT_EQ(request.ahead, 104U) << "removals in other slots go on";
  EXPECT_EQ(request.dropped, 0U);
  EXPECT_THAT(request.dropping, ElementsAre(9U));
  progress_.NoteDropEnded(/*rounds=*/7);
  progress_.NoteDropEnded(/*rounds=*/8);
  progress_.NoteEnded({}, /*rounds=*/8);
  EXPECT_THAT(progress_.Next().dropping, ElementsAre(9U)) << "that round may have begun before";
  progress_.NoteEnded({}, /*rounds=*/9);
  request = progress_.Next();
  EXPECT_EQ(request.after, 104U);
  EXPECT_EQ(request.dropped, 6U);
  EXPECT_THAT(request.dropping, IsEmpty());
}

TEST_F(RemovalProgressTest, AnotherDropWaitsForTheFirst) {
  wire::RemovalsPage page = PageOf({});
  page.drop = {8};
  EXPECT_FALSE(progress_.AwaitsDrop(page));
  progress_.NoteApplied({.upto = 104, .drop_number = 6, .dropping = {9}, .matched = {}, .open = {}},
                        0);
  EXPECT_TRUE(progress_.AwaitsDrop(page)) << "one number acknowledges all";
  EXPECT_FALSE(progress_.AwaitsDrop(PageOf({Key(105)})));
  progress_.AskOpenAgain();
  EXPECT_FALSE(progress_.AwaitsDrop(page));
  EXPECT_EQ(progress_.Next().after, 100U);
}

TEST_F(RemovalProgressTest, ASuccessorAsksForOpenRemovalsAgain) {
  Apply(104, {102});
  progress_.AskOpenAgain();
  EXPECT_EQ(progress_.applied(), 101U);
  EXPECT_THAT(progress_.Next().open, IsEmpty());
}

}  // namespace
}  // namespace kvcove::owner
