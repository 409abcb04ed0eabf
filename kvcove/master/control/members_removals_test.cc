// SPDX-License-Identifier: Apache-2.0
// What proves a removal, and what an absent owner must hide.
#include <gtest/gtest.h>

#include <string>

#include "kvcove/master/control/members_fixture.h"

namespace kvcove::master {
namespace {

constexpr SlotId kRemovalsSlot = 5;

class BarriersTest : public MembersFixture {
 protected:
  using Proof = Members::RemovalProof;
  using Keys = std::vector<std::string>;

  BarriersTest() : owner_(Join(1)), ref_(members_.All()[0]) {}

  Proof ProofOf(std::uint64_t removal, SlotId slot = kRemovalsSlot) {
    return members_.ProofOf(ref_, removal, slot, now_);
  }
  void ApplyAhead(std::uint64_t ahead, std::vector<std::uint64_t> open = {},
                  std::vector<SlotId> dropping = {}) {
    members_.ApplyAhead({.number = owner_.number,
                         .epoch = owner_.epoch,
                         .matched = {},
                         .ahead = ahead,
                         .open = std::move(open),
                         .dropping = std::move(dropping)});
  }
  Keys Acknowledge(std::uint64_t removals) {
    return members_.AcknowledgeRemovals(owner_.number, owner_.epoch, removals);
  }
  Keys Dropped(OwnerNumber number, std::uint32_t epoch, std::uint64_t drop) {
    Keys keys;
    const std::vector<SlotId> slots = members_.Dropped(number, epoch, drop, keys);
    EXPECT_EQ(slots.size(), keys.size());
    return keys;
  }
  std::vector<SlotId> Hidden() const { return members_.HiddenOf(owner_.number); }
  // Without a lease, with a barrier in the store.
  void Bar(std::uint64_t removal, SlotId slot = kRemovalsSlot) {
    ASSERT_EQ(ProofOf(removal, slot), Proof::kNeedsBarrier);
    const auto raised = members_.RaiseBarrier(ref_, slot, removal);
    ASSERT_TRUE(raised);
    members_.BarrierStored(ref_, slot, raised->number, true);
  }
  // This member under a later master, with a barrier of an earlier one.
  void LoadWithBarrier(SlotId slot = kRemovalsSlot) {
    Use({.lease_ns = kSecond, .member_ttl_ns = 3600 * kSecond});
    Load({Stored(1, 0)}, 0,
         {{.member = IdOf(1), .slot = slot, .fact = {.term = kTerm - 1, .acknowledged = 3}}});
    ref_ = members_.All()[0];
    owner_ = Hello(1);
  }

  wire::OwnerWelcome owner_;
  MemberRef ref_;
};

TEST_F(BarriersTest, AnOwnerWithALeaseIsWaitedForUntilItHasAppliedTheRemoval) {
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted);
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kWaits);
  Acknowledge(kFirst + 1);
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kProven);
  EXPECT_EQ(ProofOf(kFirst + 2), Proof::kWaits);
}

TEST_F(BarriersTest, ABarrierProvesNothingWhileALeaseRunsThatDoesNotNameIt) {
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted);
  const auto raised = members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 1);
  ASSERT_TRUE(raised);
  members_.BarrierStored(ref_, kRemovalsSlot, raised->number, true);
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kWaits) << "its readers may still find what was removed";
  now_ += kSecond / 100 * 101;
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kProven);
}

TEST_F(BarriersTest, WithoutALeaseABarrierMustBeStoredFirst) {
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kNeedsBarrier);
  const auto raised = members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 1);
  ASSERT_TRUE(raised);
  EXPECT_EQ(raised->key, BarrierKey(IdOf(1), kRemovalsSlot));
  EXPECT_EQ(raised->fact, (BarrierFact{.term = kTerm, .acknowledged = kFirst}));
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kWaits);
  EXPECT_EQ(Hidden(), std::vector<SlotId>{kRemovalsSlot}) << "renewals name it from here on";
  members_.BarrierStored(ref_, kRemovalsSlot, raised->number, true);
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kProven);
}

TEST_F(BarriersTest, ABarrierThatCouldNotBeStoredProvesNothing) {
  const auto raised = members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 1);
  members_.BarrierStored(ref_, kRemovalsSlot, raised->number, false);
  EXPECT_TRUE(Hidden().empty());
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kNeedsBarrier);
}

TEST_F(BarriersTest, OneBarrierServesAWholeAbsence) {
  Bar(kFirst + 1);
  EXPECT_FALSE(members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 2));
  EXPECT_EQ(ProofOf(kFirst + 2), Proof::kProven);
  EXPECT_EQ(ProofOf(kFirst + 3, kRemovalsSlot + 1), Proof::kNeedsBarrier)
      << "each slot has its own";
}

TEST_F(BarriersTest, TheSlotStaysHiddenUntilAllIsAppliedThatTheBarrierProved) {
  Bar(kFirst + 1);
  ASSERT_EQ(ProofOf(kFirst + 7), Proof::kProven);
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted) << "it costs no lease";
  EXPECT_TRUE(Acknowledge(kFirst + 6).empty());
  EXPECT_EQ(Hidden(), std::vector<SlotId>{kRemovalsSlot});
  EXPECT_EQ(Acknowledge(kFirst + 7), Keys{BarrierKey(IdOf(1), kRemovalsSlot)});
  EXPECT_TRUE(Hidden().empty());
  EXPECT_EQ(ProofOf(kFirst + 8), Proof::kWaits);
}

TEST_F(BarriersTest, ABarrierThatIsBeingStoredIsNotCleared) {
  const auto raised = members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 1);
  EXPECT_TRUE(Acknowledge(kFirst + 1).empty()) << "its fact would come after the deletion";
  EXPECT_EQ(Hidden().size(), 1U);
  members_.BarrierStored(ref_, kRemovalsSlot, raised->number, true);
  EXPECT_EQ(Acknowledge(kFirst + 1).size(), 1U);
}

TEST_F(BarriersTest, AnAcknowledgementOfAnEarlierEpochCountsForNothing) {
  Bar(kFirst + 1);
  EXPECT_TRUE(members_.AcknowledgeRemovals(owner_.number, owner_.epoch + 1, kFirst + 9).empty());
  EXPECT_EQ(ProofOf(kFirst + 9, kRemovalsSlot + 1), Proof::kNeedsBarrier);
}

TEST_F(BarriersTest, AnotherGenerationVoidsTheBarriersOfItsSlot) {
  Bar(kFirst + 1);
  Bar(kFirst + 2, kRemovalsSlot + 1);
  EXPECT_EQ(members_.VoidBarriers(kRemovalsSlot), Keys{BarrierKey(IdOf(1), kRemovalsSlot)});
  EXPECT_EQ(Hidden(), std::vector<SlotId>{kRemovalsSlot + 1});
  EXPECT_TRUE(members_.VoidBarriers(kRemovalsSlot).empty());
}

// The store answers late: a reset voids the barrier that it holds, and a removal raises another.
TEST_F(BarriersTest, TheAnswerForABarrierThatWasVoidedCountsForNoOther) {
  const auto first = members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 1);
  members_.VoidBarriers(kRemovalsSlot);
  const auto second = members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 2);
  ASSERT_TRUE(second);
  members_.BarrierStored(ref_, kRemovalsSlot, first->number, true);
  EXPECT_EQ(ProofOf(kFirst + 2), Proof::kWaits) << "the second one is not in the store yet";
  members_.BarrierStored(ref_, kRemovalsSlot, first->number, false);
  EXPECT_EQ(Hidden().size(), 1U);
  members_.BarrierStored(ref_, kRemovalsSlot, second->number, true);
  EXPECT_EQ(ProofOf(kFirst + 2), Proof::kProven);
}

TEST_F(BarriersTest, AnEndedMemberTakesItsBarriersWithIt) {
  Bar(kFirst + 1);
  Bar(kFirst + 2, kRemovalsSlot + 1);
  EXPECT_EQ(members_.barriers(), 2U);
  EXPECT_EQ(members_.BeginEnd(owner_.number).size(), 3U);
  EXPECT_EQ(ProofOf(kFirst + 9), Proof::kWaits) << "a later master would still know it";
  members_.End(ref_);
  EXPECT_EQ(members_.barriers(), 0U);
  EXPECT_EQ(ProofOf(kFirst + 9), Proof::kProven);
  Join(2);
  EXPECT_FALSE(members_.RaiseBarrier(ref_, kRemovalsSlot, kFirst + 3)) << "that was another member";
  members_.BarrierStored(ref_, kRemovalsSlot, 1, true);
  EXPECT_EQ(members_.barriers(), 0U);
}

// ---- under a later master

TEST_F(BarriersTest, ALaterMastersMemberDropsTheSlot) {
  LoadWithBarrier();
  EXPECT_EQ(Hidden(), std::vector<SlotId>{kRemovalsSlot});
  EXPECT_EQ(members_.DropsOf(owner_.number), std::vector<SlotId>{kRemovalsSlot});
  EXPECT_TRUE(Acknowledge(kFirst + 100).empty()) << "what was removed is not known any more";
  std::vector<SlotId> slots;
  const std::uint64_t drop = members_.TellToDrop(owner_.number, slots);
  EXPECT_EQ(slots, std::vector<SlotId>{kRemovalsSlot});
  EXPECT_TRUE(Dropped(owner_.number, owner_.epoch, drop + 1).empty());
  EXPECT_TRUE(Dropped(owner_.number, owner_.epoch, 0).empty());
  EXPECT_TRUE(Dropped(owner_.number, owner_.epoch + 1, drop).empty());
  EXPECT_EQ(Dropped(owner_.number, owner_.epoch, drop), Keys{BarrierKey(IdOf(1), kRemovalsSlot)});
  EXPECT_TRUE(Hidden().empty());
  slots.clear();
  EXPECT_EQ(members_.TellToDrop(owner_.number, slots), 0U);
}

TEST_F(BarriersTest, ADropThatWasToldAgainIsAcknowledgedByItsLatestNumber) {
  LoadWithBarrier();
  std::vector<SlotId> slots;
  const std::uint64_t first = members_.TellToDrop(owner_.number, slots);
  const std::uint64_t second = members_.TellToDrop(owner_.number, slots);
  EXPECT_NE(first, second);
  EXPECT_TRUE(Dropped(owner_.number, owner_.epoch, first).empty());
  EXPECT_EQ(Dropped(owner_.number, owner_.epoch, second).size(), 1U);
}

TEST_F(BarriersTest, ARemovalThatIsProvenWhileTheOwnerDropsKeepsTheSlotHidden) {
  LoadWithBarrier();
  std::vector<SlotId> slots;
  const std::uint64_t drop = members_.TellToDrop(owner_.number, slots);
  ASSERT_EQ(ProofOf(kFirst + 1), Proof::kProven) << "the barrier of the earlier master serves";
  EXPECT_TRUE(Dropped(owner_.number, owner_.epoch, drop).empty());
  EXPECT_EQ(Hidden(), std::vector<SlotId>{kRemovalsSlot}) << "it has dropped before that removal";
  EXPECT_TRUE(members_.DropsOf(owner_.number).empty()) << "but need not drop again";
  EXPECT_EQ(Acknowledge(kFirst + 1), Keys{BarrierKey(IdOf(1), kRemovalsSlot)});
}

// A barrier may have been raised for an owner that was back before anything gave way.
TEST_F(BarriersTest, WithAShardGoesOnlyWhatItKnewToHaveGivenWay) {
  for (const bool gave_way : {false, true}) {
    const SlotId slot = kRemovalsSlot + (gave_way ? 1 : 0);
    const auto raised = members_.RaiseOvertaken(ref_, slot);
    ASSERT_TRUE(raised);
    members_.BarrierStored(ref_, slot, raised->number, true);
  }
  members_.ShardLost(7, [&](OwnerNumber number, SlotId slot) {
    EXPECT_EQ(number, owner_.number);
    return slot == kRemovalsSlot + 1;
  });
  EXPECT_EQ(members_.DropsOf(owner_.number), std::vector<SlotId>{kRemovalsSlot + 1});
}

TEST_F(BarriersTest, MembersWithoutABarrierLoseNothing) {
  LoadWithBarrier();
  Load({Stored(1, 0), Stored(2, 1)}, 0);
  EXPECT_TRUE(members_.DropsOf(1).empty());
  EXPECT_TRUE(members_.HiddenOf(1).empty());
}

TEST_F(BarriersTest, ABarrierOfNobodyIsIgnored) {
  Use({.lease_ns = kSecond});
  Load({}, 0, {{.member = IdOf(9), .slot = kRemovalsSlot, .fact = {}}});
  EXPECT_EQ(members_.barriers(), 0U);
}

// ---- how far owners are

TEST_F(BarriersTest, TheLogIsKeptForTheSlowestMember) {
  const auto other = Join(2);
  Acknowledge(kFirst + 5);
  EXPECT_EQ(members_.AppliedByAll(), kFirst);
  EXPECT_EQ(members_.AppliedByLeased(now_), ~0ULL) << "nobody has a lease";
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted);
  EXPECT_EQ(members_.AppliedByLeased(now_), kFirst + 5);
  members_.AcknowledgeRemovals(other.number, other.epoch, kFirst + 3);
  EXPECT_EQ(members_.AppliedByAll(), kFirst + 3);
}

// Its disks are being walked for a pattern, `kFirst + 2`.
TEST_F(BarriersTest, AnOpenRemovalHoldsUpNoOther) {
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted);
  ApplyAhead(kFirst + 4, {kFirst + 2});
  Acknowledge(kFirst + 1);
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kProven);
  EXPECT_EQ(ProofOf(kFirst + 2), Proof::kWaits);
  EXPECT_EQ(ProofOf(kFirst + 3), Proof::kProven);
  EXPECT_EQ(ProofOf(kFirst + 4), Proof::kProven);
  EXPECT_EQ(ProofOf(kFirst + 5), Proof::kWaits);
  EXPECT_EQ(members_.AppliedByLeased(now_), kFirst + 4);
  EXPECT_EQ(members_.AppliedByAll(), kFirst + 1) << "after a restart the owner asks from there";
  EXPECT_EQ(Hello(1).removals, kFirst + 1);
  members_.ApplyAhead(
      {.number = owner_.number, .epoch = owner_.epoch + 9, .matched = {}, .ahead = kFirst + 9});
  EXPECT_EQ(ProofOf(kFirst + 5), Proof::kWaits) << "that was another epoch's";
}

// Its disks are being walked for a slot whose removals are not all known any more.
TEST_F(BarriersTest, ASlotThatIsBeingDroppedHoldsUpItsOwnRemovalsAlone) {
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted);
  Acknowledge(kFirst + 1);
  ApplyAhead(kFirst + 4, {}, {kRemovalsSlot});
  EXPECT_EQ(ProofOf(kFirst + 1), Proof::kProven) << "it was applied before";
  EXPECT_EQ(ProofOf(kFirst + 3), Proof::kWaits);
  EXPECT_EQ(ProofOf(kFirst + 3, kRemovalsSlot + 1), Proof::kProven);
  EXPECT_EQ(ProofOf(kFirst + 5, kRemovalsSlot + 1), Proof::kWaits);
  Acknowledge(kFirst + 4);
  ApplyAhead(kFirst + 4);
  EXPECT_EQ(ProofOf(kFirst + 3), Proof::kProven);
}

// Told again under another number, it would have to begin again with each request.
TEST_F(BarriersTest, ADropThatIsUnderWayIsNotToldAgain) {
  LoadWithBarrier();
  std::vector<SlotId> slots;
  const std::uint64_t drop = members_.TellToDrop(owner_.number, slots);
  ApplyAhead(kFirst, {}, {kRemovalsSlot});
  slots.clear();
  EXPECT_EQ(members_.TellToDrop(owner_.number, slots), 0U);
  EXPECT_TRUE(slots.empty());
  EXPECT_EQ(Dropped(owner_.number, owner_.epoch, drop).size(), 1U);
}

// Each page names it until the owner has read up to its floor.
TEST_F(BarriersTest, AFloorIsToldOnceWhileItsSlotIsBeingDropped) {
  std::uint64_t floor = kFirst + 7;
  const auto told = [&] {
    std::vector<SlotId> slots{kRemovalsSlot};
    members_.TellFloors(owner_.number, slots, [&](SlotId) { return floor; });
    return !slots.empty();
  };
  EXPECT_TRUE(told());
  ApplyAhead(kFirst + 3);
  EXPECT_TRUE(told()) << "that page was lost";
  ApplyAhead(kFirst + 3, {}, {kRemovalsSlot});
  EXPECT_FALSE(told());
  ++floor;
  EXPECT_TRUE(told()) << "what was put since may be removed by then";
  ApplyAhead(kFirst + 3, {}, {kRemovalsSlot});
  EXPECT_FALSE(told());
  ApplyAhead(kFirst + 3);
  EXPECT_TRUE(told()) << "a successor drops it anew";
}

// It says so with its first request.
TEST_F(BarriersTest, ASuccessorThatWalksAnewHasAppliedNothingAhead) {
  ASSERT_EQ(Renew(owner_), Members::Renewal::kGranted);
  ApplyAhead(kFirst + 4, {kFirst + 2});
  Acknowledge(kFirst + 1);
  ApplyAhead(kFirst + 1);
  Acknowledge(kFirst + 1);
  EXPECT_EQ(ProofOf(kFirst + 2), Proof::kWaits);
  EXPECT_EQ(ProofOf(kFirst + 3), Proof::kWaits);
}

TEST_F(BarriersTest, AnOwnerThatReturnsIsToldHowFarItWas) {
  Acknowledge(kFirst + 5);
  EXPECT_EQ(Hello(1).removals, kFirst + 5);
  LoadWithBarrier();
  EXPECT_EQ(owner_.removals, kFirst) << "what an earlier master proved is applied, or hidden";
}

}  // namespace
}  // namespace kvcove::master
