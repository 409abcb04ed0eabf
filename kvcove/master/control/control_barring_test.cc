// SPDX-License-Identifier: Apache-2.0
// An absent owner is barred from bringing back what is overtaken, before it is.
#include <gtest/gtest.h>

#include "kvcove/master/control/control_fixture.h"

namespace kvcove::master {
namespace {

class BarringTest : public ControlFixture {
 protected:
  Answer<void> Bar(const wire::OwnerWelcome& absent, SlotId slot = kSlot) {
    const Answer<void> answer;
    control_->BarOvertaken({{absent.number, slot}}, answer.Into());
    return answer;
  }
};

TEST_F(BarringTest, ItIsBarredWhenTheStoreHasItAndNotBefore) {
  const auto owner = Join(1);
  store_.hangs = true;
  const auto barred = Bar(owner);
  EXPECT_FALSE(barred.came());
  EXPECT_FALSE(standings_.Barred(owner.number, kSlot));
  store_.Release();
  EXPECT_TRUE(barred.ok());
  EXPECT_TRUE(standings_.Barred(owner.number, kSlot));
  EXPECT_TRUE(StoreHas(BarrierKey(IdOf(1), kSlot)));
}

TEST_F(BarringTest, AnAbsenceCostsOneCommitASlot) {
  const auto owner = Join(1);
  const std::size_t before = store_.commits;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Bar(owner).ok());
  EXPECT_EQ(store_.commits, before + 1);
  ASSERT_TRUE(AwaitRemoval(Append()).ok()) << "a removal shares it";
  EXPECT_EQ(store_.commits, before + 1);
}

TEST_F(BarringTest, AStoreThatRefusesIsSaidSo) {
  const auto owner = Join(1);
  store_.failures = 1;
  EXPECT_EQ(Bar(owner).code(), Code::kUnavailable);
  EXPECT_FALSE(standings_.Barred(owner.number, kSlot));
  EXPECT_TRUE(Bar(owner).ok());
}

TEST_F(BarringTest, AStoreThatHangsCollectsNoListings) {
  const auto owner = Join(1);
  store_.hangs = true;
  const auto first = Bar(owner);
  Pass(kSecond);
  const auto second = Bar(owner);
  Pass(kSecond);
  EXPECT_EQ(first.code(), Code::kTimeout);
  EXPECT_FALSE(second.came());
  Pass(kSecond);
  EXPECT_EQ(second.code(), Code::kTimeout);
  store_.Release();
  EXPECT_TRUE(Bar(owner).ok()) << "the barrier was stored all the same";
}

TEST_F(BarringTest, WhenItHasToldEverythingTheBarrierEnds) {
  const auto owner = Join(1);
  ASSERT_TRUE(Bar(owner).ok());
  EXPECT_TRUE(Renew(owner, /*told=*/true));
  EXPECT_FALSE(standings_.Barred(owner.number, kSlot));
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  EXPECT_TRUE(Renew(owner, /*told=*/true)->hidden.empty());
}

// The slot would stay barred without a barrier in the store: a value of a later absence would be
// replaced, and the owner would bring the older one back under a later master.
TEST_F(BarringTest, AnOwnerThatHasDroppedTheSlotAfterALostShardIsBarredAnewByALaterAbsence) {
  const auto owner = Join(1);
  ASSERT_TRUE(Bar(owner).ok());
  standings_.NoteGaveWay(owner.number, kSlot);
  auto map = std::make_shared<wire::ShardMap>();
  map->revision = 7;
  control_->SetShardMap(map, /*lost=*/true);

  const auto page = Removals(owner, 0);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->drop, std::vector<SlotId>{kSlot});
  (void)Removals(owner, page->upto, page->drop_number);
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  EXPECT_TRUE(Renew(owner, /*told=*/true));
  EXPECT_FALSE(standings_.Barred(owner.number, kSlot));
  EXPECT_TRUE(Bar(owner).ok());
  EXPECT_TRUE(StoreHas(BarrierKey(IdOf(1), kSlot)));
}

TEST_F(BarringTest, AResetEndsIt) {
  Publish(kSlot, 7);
  const auto owner = Join(1);
  ASSERT_TRUE(Bar(owner).ok());
  Publish(kSlot, 8);
  EXPECT_FALSE(standings_.Barred(owner.number, kSlot));
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
}

TEST_F(BarringTest, AMemberThatEndsIsNotWaitedFor) {
  const auto owner = Join(1);
  store_.hangs = true;
  const auto barred = Bar(owner);
  control_->Goodbye({.number = owner.number, .epoch = owner.epoch});
  store_.Release();
  EXPECT_TRUE(barred.ok()) << "it cannot come back at all";
  EXPECT_FALSE(standings_.Barred(owner.number, kSlot)) << "the number may be another's";
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  EXPECT_TRUE(Bar(owner).ok());
}

TEST_F(BarringTest, StopAnswersWhatWaits) {
  const auto owner = Join(1);
  store_.hangs = true;
  const auto barred = Bar(owner);
  control_->Stop();
  EXPECT_EQ(barred.code(), Code::kUnavailable);
  store_.Release();
}

}  // namespace
}  // namespace kvcove::master
