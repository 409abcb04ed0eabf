// SPDX-License-Identifier: Apache-2.0
// How an owner reports to its master what it holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/owner/link/link_core_fixture.h"

namespace kvcove::owner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LinkListTest : public LinkCoreFixture {
 protected:
  explicit LinkListTest(bool disk = false) : LinkCoreFixture(disk) {}
};

TEST_F(LinkListTest, APutIsCompletedWithItsOwnAnswer) {
  Join();
  const auto first = target_.Put(1);
  const auto second = target_.Put(2);
  const wire::ListRequest request = AskList();
  EXPECT_EQ(request.sequence, 1U);
  ASSERT_EQ(request.items.size(), 2U);
  core_.Answer(Lane::kList,
               wire::Encode(wire::ListReply{.codes = {Code::kOk, Code::kExists}, .credit = 0}));
  EXPECT_THAT(*first, ElementsAre(Code::kOk));
  EXPECT_THAT(*second, ElementsAre(Code::kExists));
}

TEST_F(LinkListTest, AListingWithoutAnAnswerIsRepeatedUnderItsNumber) {
  Join();
  const auto put = target_.Put(1);
  const std::string first = Ask(Lane::kList, wire::Method::kList).body;
  Fail(Lane::kList, Code::kTimeout);
  target_.Put(2);  // goes with the next one
  EXPECT_EQ(Ask(Lane::kList, wire::Method::kList).body, first);
  Fail(Lane::kList, Code::kUnavailable);
  core_.Disconnected();  // the epoch goes on over another connection
  AskHello();
  AnswerHello(Welcome(7, /*resumed=*/true));
  EXPECT_EQ(Ask(Lane::kList, wire::Method::kList).body, first);
  core_.Answer(Lane::kList, wire::Encode(wire::ListReply{.codes = {Code::kOk}, .credit = 0}));
  EXPECT_THAT(*put, ElementsAre(Code::kOk));
  EXPECT_EQ(AskList().sequence, 2U);
}

TEST_F(LinkListTest, ListingsThatAreMissingAtTheMasterBeginAnotherEpoch) {
  Join();
  const auto put = target_.Put(1);
  AskList();
  Fail(Lane::kList, Code::kStale);
  EXPECT_EQ(AskHello().epoch, 0U);
  AnswerHello(Welcome(8));
  const wire::ListRequest again = AskList();
  EXPECT_EQ(again.sequence, 1U);
  AnswerList(again);
  EXPECT_THAT(*put, ElementsAre(Code::kOk));
}

TEST_F(LinkListTest, WhatIsGoneGoesBeforeWhatCame) {
  Join();
  target_.Put(1);
  target_.Evict(1);
  const wire::ListRequest request = AskList();
  ASSERT_EQ(request.items.size(), 2U);
  EXPECT_TRUE(request.items[0].gone);
  EXPECT_FALSE(request.items[1].gone);
}

TEST_F(LinkListTest, TheInventoryIsToldAsFarAsTheCreditGoes) {
  target_.objects = 100;
  Join();
  EXPECT_THAT(AskList().items, IsEmpty()) << "it asks for credit";
  core_.Answer(Lane::kList, wire::Encode(wire::ListReply{.codes = {}, .credit = 30}));
  std::size_t told = 0;
  for (int rounds = 0; !core_.state().reported; ++rounds) {
    ASSERT_LT(rounds, 20);
    const wire::ListRequest request = AskList();
    EXPECT_LE(request.items.size(), 30U);
    told += request.items.size();
    AnswerList(request, 30);
  }
  EXPECT_EQ(told, 100U);
  EXPECT_TRUE(AskRenew().told);
}

TEST_F(LinkListTest, ADiskThatWorksAgainIsToldInTheSameEpoch) {
  target_.objects = 100;
  Join();
  TellAll();
  EXPECT_EQ(target_.reported, 1);
  target_.again_from = 60;
  std::size_t told = 0;
  for (int rounds = 0; target_.reported == 1; ++rounds) {
    ASSERT_LT(rounds, 20);
    EXPECT_TRUE(core_.state().reported) << "what was told stands meanwhile";
    const wire::ListRequest request = AskList();
    EXPECT_EQ(request.epoch, 7U);
    for (const wire::ListItem& item : request.items) EXPECT_GE(item.hash.low, 60U);
    told += request.items.size();
    AnswerList(request, 30);
  }
  EXPECT_EQ(told, 40U);
  target_.again_from.reset();
  EXPECT_TRUE(Idle(Lane::kList));
}

TEST_F(LinkListTest, WhatIsRefusedAsStaleOfADiskThatIsToldAgainIsToldOnceMore) {
  target_.objects = 100;
  Join();
  TellAll();
  target_.again_from = 95;
  AnswerList(AskList(), 30, Code::kStale);
  target_.again_from.reset();  // it fails again, which ends the walk
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_EQ(target_.reported, 1);
  target_.again_from = 95;
  std::size_t told = 0;
  for (int rounds = 0; target_.reported == 1; ++rounds) {
    ASSERT_LT(rounds, 20);
    if (core_.Next(Lane::kList).wait_ns > 0) continue;
    const wire::ListRequest request = AskList();
    told += request.items.size();
    AnswerList(request, 30);
  }
  EXPECT_GE(told, 5U);
}

TEST_F(LinkListTest, WithoutCreditNewValuesAreListedAllTheSame) {
  target_.objects = 100;
  Join();
  AnswerList(AskList(), /*credit=*/0);
  const auto put = target_.Put(1);
  const wire::ListRequest request = AskList();
  EXPECT_EQ(request.items.size(), 1U);
  AnswerList(request, /*credit=*/0);
  EXPECT_THAT(*put, ElementsAre(Code::kOk));
  EXPECT_FALSE(core_.state().reported);
  for (int i = 0; i < 3; ++i) AnswerList(AskList(), /*credit=*/0);
}

TEST_F(LinkListTest, TellingGoesOnWhereItStoppedWhenTheEpochGoesOn) {
  target_.objects = 10;
  Join();
  AnswerList(AskList(), 4);
  AnswerList(AskList(), 4);
  core_.Disconnected();
  AskHello();
  AnswerHello(Welcome(7, /*resumed=*/true));
  const wire::ListRequest next = AskList();
  ASSERT_EQ(next.items.size(), 4U);
  EXPECT_EQ(next.items[0].hash.low, 4U);
}

TEST_F(LinkListTest, AnotherEpochTellsEverything) {
  target_.objects = 10;
  Join();
  TellAll();
  core_.Disconnected();
  AskHello();
  AnswerHello(Welcome(8));
  EXPECT_FALSE(core_.state().reported);
  AnswerList(AskList());
  EXPECT_EQ(AskList().items.size(), 10U);
}

TEST_F(LinkListTest, WhatAnotherOwnerHasAnotherValueOfIsDropped) {
  target_.objects = 3;
  Join();
  AnswerList(AskList());
  const wire::ListRequest request = AskList();
  ASSERT_EQ(request.items.size(), 3U);
  core_.Answer(Lane::kList, wire::Encode(wire::ListReply{
                                .codes = {Code::kOk, Code::kExists, Code::kOk}, .credit = 4096}));
  EXPECT_THAT(target_.dropped, ElementsAre(1U));
  EXPECT_EQ(core_.state().dropped, 1U);
  EXPECT_TRUE(core_.state().reported);
}

TEST_F(LinkListTest, WhatMovedAndWasOvertakenIsDropped) {
  Join();
  TellAll();
  target_.Evict(4);
  target_.Move(5);
  target_.Move(6);
  ASSERT_EQ(AskList().items.size(), 3U);
  core_.Answer(Lane::kList, wire::Encode(wire::ListReply{
                                .codes = {Code::kOk, Code::kExists, Code::kOk}, .credit = 4096}));
  EXPECT_THAT(target_.dropped, ElementsAre(5U));
}

TEST_F(LinkListTest, WhatTheDirectoryHasNoRoomForIsDropped) {
  target_.objects = 2;
  Join();
  AnswerList(AskList());
  ASSERT_EQ(AskList().items.size(), 2U);
  core_.Answer(Lane::kList,
               wire::Encode(wire::ListReply{.codes = {Code::kOk, Code::kLimit}, .credit = 4096}));
  EXPECT_THAT(target_.dropped, ElementsAre(1U));
  EXPECT_TRUE(core_.state().reported);
}

TEST_F(LinkListTest, WhatWasRefusedAsStaleIsToldAgain) {
  target_.objects = 3;
  Join();
  AnswerList(AskList());
  const wire::ListRequest request = AskList();
  core_.Answer(Lane::kList, wire::Encode(wire::ListReply{
                                .codes = {Code::kOk, Code::kStale, Code::kOk}, .credit = 4096}));
  EXPECT_FALSE(core_.state().reported) << "it hears of the reason in a moment";
  EXPECT_THAT(target_.dropped, IsEmpty());
  const wire::ListRequest again = AskList();
  EXPECT_EQ(again.items.size(), 3U);
  AnswerList(again);
  EXPECT_TRUE(core_.state().reported);
}

TEST_F(LinkListTest, WhatMayNotBeListedDoesNotHoldUpTheRest) {
  target_.objects = 3;
  Join();
  AnswerList(AskList());
  AnswerList(AskList(), 4096, Code::kDenied);
  EXPECT_TRUE(core_.state().reported);
}

TEST_F(LinkListTest, WhenTooMuchIsGoneEverythingIsToldUnderAnotherEpoch) {
  target_.objects = 3;
  Join();
  TellAll();
  target_.overflow = true;
  EXPECT_TRUE(Idle(Lane::kList));
  EXPECT_EQ(AskHello().epoch, 0U);
}

TEST_F(LinkListTest, AnAnswerOfAnotherLengthCompletesNothing) {
  Join();
  const auto put = target_.Put(1);
  AskList();
  core_.Answer(Lane::kList, wire::Encode(wire::ListReply{.codes = {}, .credit = 9}));
  EXPECT_THAT(*put, IsEmpty());
  const wire::ListRequest again = AskList();
  EXPECT_EQ(again.items.size(), 1U);
  EXPECT_EQ(again.sequence, 1U);
}

TEST_F(LinkListTest, NothingIsToldBeforeTheDiskIsKnown) {
  target_.objects = 3;
  target_.settled = false;
  Join();
  for (int i = 0; i < 3; ++i) {
    const wire::ListRequest request = AskList();
    EXPECT_THAT(request.items, IsEmpty());
    AnswerList(request);
    if (i > 0) {
      EXPECT_TRUE(Idle(Lane::kList)) << "it waits a little";
    }
  }
  EXPECT_FALSE(core_.state().reported);
  target_.settled = true;
  TellAll();
}

class DiskLinkListTest : public LinkListTest {
 protected:
  DiskLinkListTest() : LinkListTest(/*disk=*/true) {}
};

// It came up from a zone that was not read yet into memory that was: only the move says it.
TEST_F(DiskLinkListTest, AllIsToldOnceWhatMovedMeanwhileIsTold) {
  target_.objects = 3;
  Join();
  AnswerList(AskList());
  const wire::ListRequest walk = AskList();
  ASSERT_EQ(walk.items.size(), 3U);
  target_.Move(5);
  AnswerList(walk);
  EXPECT_FALSE(core_.state().reported);
  const wire::ListRequest moved = AskList();
  ASSERT_EQ(moved.items.size(), 1U);
  AnswerList(moved, 4096, Code::kExists);
  EXPECT_THAT(target_.dropped, ElementsAre(5U));
  EXPECT_TRUE(core_.state().reported);
}

}  // namespace
}  // namespace kvcove::owner
