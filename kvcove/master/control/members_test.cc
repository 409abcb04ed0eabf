// SPDX-License-Identifier: Apache-2.0
// Identities, leases and epochs. Removals and barriers: members_removals_test.cc.
#include "kvcove/master/control/members.h"

#include <gtest/gtest.h>

#include "kvcove/master/control/members_fixture.h"

namespace kvcove::master {
namespace {

class MembersTest : public MembersFixture {};
using Renewal = Members::Renewal;

// ---- leases

TEST_F(MembersTest, ALeaseNeedsTheCurrentGenerationsAndNothingElse) {
  const auto owner = Join(1);
  EXPECT_EQ(Renew(owner, kTable - 1), Renewal::kBehind);
  EXPECT_FALSE(members_.LeaseRunning(now_));
  EXPECT_EQ(Renew(owner, kTable), Renewal::kGranted) << "its inventory is not told yet";
  EXPECT_TRUE(members_.LeaseRunning(now_));
}

TEST_F(MembersTest, TheMasterCountsALeaseFromItsAnswerAndOnePercentLonger) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  now_ += kSecond / 100 * 101 - 1;
  EXPECT_TRUE(members_.LeaseRunning(now_));
  now_ += 1;
  EXPECT_FALSE(members_.LeaseRunning(now_));
}

TEST_F(MembersTest, AResetIsProvenByAnAcknowledgementOrByTheEndOfTheLease) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  const MemberRef ref = members_.All()[0];
  EXPECT_TRUE(members_.TableProven(ref, kTable, now_));
  EXPECT_FALSE(members_.TableProven(ref, kTable + 1, now_));
  members_.AcknowledgeTable(owner.number, owner.epoch + 1, kTable + 1);  // of another epoch
  EXPECT_FALSE(members_.TableProven(ref, kTable + 1, now_));
  members_.AcknowledgeTable(owner.number, owner.epoch, kTable + 1);
  EXPECT_TRUE(members_.TableProven(ref, kTable + 1, now_));
  EXPECT_FALSE(members_.TableProven(ref, kTable + 2, now_));
  now_ += 2 * kSecond;
  EXPECT_TRUE(members_.TableProven(ref, kTable + 2, now_));
}

TEST_F(MembersTest, AnOwnerThatIsBehindIsStillWaitedFor) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  EXPECT_EQ(Renew(owner, kTable, /*told=*/false, /*current=*/kTable + 1), Renewal::kBehind);
  EXPECT_FALSE(members_.TableProven(members_.All()[0], kTable + 1, now_))
      << "the lease that it had goes on";
}

TEST_F(MembersTest, InStrictModeOnlyAcknowledgementsProve) {
  Use({.lease_ns = kSecond, .strict = true, .member_ttl_ns = kSecond});
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  const MemberRef ref = members_.All()[0];
  now_ += 1000 * kSecond;
  EXPECT_FALSE(members_.TableProven(ref, kTable + 1, now_));
  EXPECT_EQ(members_.ProofOf(ref, kFirst + 1, 3, now_), Members::RemovalProof::kWaits);
  EXPECT_TRUE(members_.AwayForTooLong(now_).empty()) << "no clock says that nobody reads it";
  members_.AcknowledgeTable(owner.number, owner.epoch, kTable + 1);
  EXPECT_TRUE(members_.TableProven(ref, kTable + 1, now_));
}

TEST_F(MembersTest, LeasesOfAnEarlierMasterAreWaitedFor) {
  Load({Stored(1, 0)}, now_ + kSecond);
  const MemberRef ref = members_.All()[0];
  EXPECT_FALSE(members_.TableProven(ref, kTable, now_));
  const auto owner = Hello(1, /*seen_before=*/true);
  EXPECT_FALSE(members_.TableProven(ref, kTable, now_));
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  EXPECT_TRUE(members_.TableProven(ref, kTable, now_)) << "it has acknowledged";
}

// The store may have been put back to before a reset that was proven while this member was away.
TEST_F(MembersTest, AMemberWhoseLeaseRanOutWaitsAfterAStartUntilOthersHaveSaidHello) {
  Load({Stored(1, 0), Stored(2, 1), Stored(3, 2)}, now_ + kSecond);
  const auto owner = Hello(1, /*seen_before=*/true);
  EXPECT_EQ(Renew(owner), Renewal::kDoubted);
  EXPECT_EQ(Renew(Join(4)), Renewal::kGranted) << "it holds nothing of before";
  Hello(2, /*seen_before=*/true);
  EXPECT_EQ(Renew(owner), Renewal::kDoubted);
  Hello(3, /*seen_before=*/true);
  EXPECT_EQ(Renew(owner), Renewal::kGranted);
}

TEST_F(MembersTest, AMemberWhoseLeaseRunsVouchesForTheStore) {
  Load({Stored(1, 0), Stored(2, 1), Stored(3, 2)}, now_ + kSecond);
  const auto away = Hello(1, /*seen_before=*/true);
  EXPECT_EQ(Renew(away), Renewal::kDoubted);
  const auto leased = Hello(2, /*seen_before=*/true);
  EXPECT_EQ(members_.Renew(
                {.number = leased.number, .epoch = leased.epoch, .table = kTable, .leased = true},
                kTable, now_, [](std::int64_t) { return true; }),
            Renewal::kGranted);
  EXPECT_EQ(Renew(away), Renewal::kGranted);
}

TEST_F(MembersTest, AfterAStartAMemberThatEndedIsNotWaitedFor) {
  Load({Stored(1, 0), Stored(2, 1)}, now_ + kSecond);
  const auto owner = Hello(1, /*seen_before=*/true);
  EXPECT_EQ(Renew(owner), Renewal::kDoubted);
  (void)members_.BeginEnd(1);
  EXPECT_EQ(Renew(owner), Renewal::kDoubted) << "its end is not stored yet";
  members_.End(members_.RefOf(1));
  EXPECT_EQ(Renew(owner), Renewal::kGranted);
}

TEST_F(MembersTest, AReturnedLeaseIsNotWaitedFor) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  members_.LeaseReturned(owner.number);
  EXPECT_FALSE(members_.LeaseRunning(now_));
}

// ---- identities

TEST_F(MembersTest, AnIdentityThatIsNotStoredIsUnknownUnlessItIsFresh) {
  EXPECT_EQ(members_.Admit(Of(1), now_), Members::Admission::kUnknown);
  wire::OwnerHello fresh = Of(1);
  fresh.fresh = true;
  EXPECT_EQ(members_.Admit(fresh, now_), Members::Admission::kFresh);
  Join(1);
  EXPECT_EQ(members_.Admit(fresh, now_), Members::Admission::kMember) << "its answer was lost";
  wire::OwnerHello nobody = Of(1);
  nobody.owner = {};
  EXPECT_EQ(members_.Admit(nobody, now_).error().code, Code::kInvalid);
}

TEST_F(MembersTest, AFirstHelloThatArrivesAfterTheEndOfItsIdentityRevivesNothing) {
  Join(1);
  members_.End(members_.All()[0]);
  wire::OwnerHello late = Of(1);
  late.fresh = true;
  EXPECT_EQ(members_.Admit(late, now_), Members::Admission::kUnknown)
      << "removals since its end are unknown to its memory";
}

TEST_F(MembersTest, ASecondProcessIsRefusedWhileALeaseRuns) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  wire::OwnerHello second = Of(1);
  second.process = {.high = 9, .low = 9};
  second.address = "elsewhere:2";
  const auto refused = members_.Admit(second, now_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExists);
  EXPECT_NE(refused.error().detail.find("elsewhere:2"), std::string::npos);
  EXPECT_NE(refused.error().detail.find("host1:1"), std::string::npos);
  EXPECT_TRUE(members_.Admit(Of(1), now_)) << "the first one goes on";
  now_ += 2 * kSecond;
  EXPECT_TRUE(members_.Admit(second, now_));
}

// Somebody may still map the memory of the process that was killed.
TEST_F(MembersTest, AfterAMastersRestartANewProcessWaitsForItsPredecessorsLease) {
  Load({Stored(1, 0)}, now_ + kSecond);
  wire::OwnerHello successor = Of(1);
  successor.process = {.high = 9, .low = 9};
  const auto refused = members_.Admit(successor, now_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kExists);
  wire::OwnerHello same = Of(1);
  same.seen = {.term = kTerm - 1, .tag = 5, .revision = 10};
  EXPECT_TRUE(members_.Admit(same, now_)) << "an earlier master has welcomed it";
  now_ += kSecond;
  EXPECT_TRUE(members_.Admit(successor, now_));
}

TEST_F(MembersTest, AnIdentityEndsAfterItWasAwayForLong) {
  Use({.lease_ns = kSecond, .member_ttl_ns = 3600 * kSecond, .disk_member_ttl_ns = 7200 * kSecond});
  const auto memory = Join(1);
  const auto disk = Join(2, /*disk=*/true);
  ASSERT_EQ(Renew(memory), Renewal::kGranted);
  ASSERT_EQ(Renew(disk), Renewal::kGranted);
  now_ += 3600 * kSecond;
  EXPECT_TRUE(members_.AwayForTooLong(now_).empty()) << "from the lease's end on";
  now_ += 2 * kSecond;
  EXPECT_EQ(members_.AwayForTooLong(now_), std::vector<wire::OwnerNumber>{memory.number});
  now_ += 3600 * kSecond;
  EXPECT_EQ(members_.AwayForTooLong(now_).size(), 2U);
  Renew(memory);
  EXPECT_EQ(members_.AwayForTooLong(now_), std::vector<wire::OwnerNumber>{disk.number});
}

TEST_F(MembersTest, WhereThereAreTooManyThoseThatAreAwayLongestEndFirst) {
  Use({.lease_ns = kSecond,
       .member_ttl_ns = 3600 * kSecond,
       .disk_member_ttl_ns = 7200 * kSecond,
       .crowded = 2});
  const auto disk = Join(1, /*disk=*/true);
  ASSERT_EQ(Renew(disk), Renewal::kGranted);
  const auto first = Join(2);
  ASSERT_EQ(Renew(first), Renewal::kGranted);
  now_ += 50 * kSecond;
  const auto second = Join(3);
  ASSERT_EQ(Renew(second), Renewal::kGranted);
  const auto live = Join(4);
  EXPECT_TRUE(members_.AwayForTooLong(now_).empty()) << "not for a minute yet";
  now_ += 100 * kSecond;
  ASSERT_EQ(Renew(live), Renewal::kGranted);
  EXPECT_EQ(members_.AwayForTooLong(now_),
            (std::vector<wire::OwnerNumber>{first.number, second.number}));
  Renew(first);
  EXPECT_EQ(members_.AwayForTooLong(now_), std::vector<wire::OwnerNumber>{second.number});
}

TEST_F(MembersTest, AMemberWithALeaseIsNotForgotten) {
  const auto owner = Join(1);
  EXPECT_EQ(members_.MayForget(7, now_).error().code, Code::kInvalid);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  const Status refused = members_.MayForget(owner.number, now_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDenied);
  EXPECT_NE(refused.error().detail.find("host1:1"), std::string::npos);
  now_ += 2 * kSecond;
  EXPECT_TRUE(members_.MayForget(owner.number, now_));
}

TEST_F(MembersTest, ANumberThatIsGivenAgainConfusesNoProof) {
  const auto first = Join(1);
  const MemberRef ref = members_.All()[0];
  ASSERT_EQ(Renew(first), Renewal::kGranted);
  EXPECT_EQ(members_.BeginEnd(first.number), std::vector<std::string>{MemberKey(IdOf(1))});
  members_.End(ref);
  const auto second = Join(2);
  EXPECT_EQ(second.number, first.number);
  EXPECT_NE(second.epoch, first.epoch);
  ASSERT_EQ(Renew(second), Renewal::kGranted);
  EXPECT_FALSE(members_.Exists(ref));
  EXPECT_TRUE(members_.TableProven(ref, kTable + 9, now_)) << "it is no member any more";
  EXPECT_FALSE(members_.TableProven(members_.All()[0], kTable + 9, now_));
  EXPECT_FALSE(members_.Current(first.number, first.epoch));
  EXPECT_EQ(Renew(first), Renewal::kStranger);
}

TEST_F(MembersTest, AMemberThatCouldNotBeStoredLeavesItsNumber) {
  const auto fact = members_.FactFor(Of(1), 0);
  const auto other = members_.FactFor(Of(2), 0);
  EXPECT_NE(fact->number, other->number) << "it is reserved while it is being stored";
  EXPECT_FALSE(members_.Current(fact->number, 1));
  members_.Abandon(*fact);
  EXPECT_EQ(members_.FactFor(Of(3), 0)->number, fact->number);
  EXPECT_EQ(members_.size(), 0U);
}

TEST_F(MembersTest, ThereIsABoundOfMembers) {
  for (std::size_t i = 0; i < wire::kMaxOwners; ++i) {
    ASSERT_TRUE(members_.FactFor(Of(i), 0));
  }
  const auto refused = members_.FactFor(Of(99999), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_NE(refused.error().detail.find("forget"), std::string::npos) << "what to do";
}

TEST_F(MembersTest, ANumberOfAnotherMasterIsNobody) {
  EXPECT_FALSE(members_.Current(4095, 1));
  EXPECT_TRUE(members_.DropsOf(4095).empty());
  EXPECT_TRUE(members_.HiddenOf(4095).empty());
  EXPECT_EQ(members_.EpochsOf(4095).epoch, 0U);
  EXPECT_FALSE(members_.Draining(4095));
  EXPECT_EQ(members_.SetDraining(4095, true).error().code, Code::kInvalid);
}

// ---- epochs

TEST_F(MembersTest, AnEpochGoesOnAfterALostConnection) {
  const auto first = Join(1);
  ASSERT_EQ(Renew(first, kTable, /*told=*/true), Renewal::kGranted);
  const auto again = Resume(first);
  EXPECT_TRUE(again.resumed);
  EXPECT_EQ(again.epoch, first.epoch);
  EXPECT_FALSE(again.tell_first);
  now_ += 100 * kSecond;
  EXPECT_TRUE(Resume(first).resumed) << "also after a long absence: all was told";
}

TEST_F(MembersTest, AnotherEpochBeginsForAnotherProcessOrWhenTheOwnerAsksForIt) {
  const auto first = Join(1);
  const auto wanted = Hello(1);
  EXPECT_FALSE(wanted.resumed);
  EXPECT_NE(wanted.epoch, first.epoch);
  EXPECT_EQ(members_.EpochsOf(first.number).first_epoch, first.epoch) << "it is the same memory";
  wire::OwnerHello successor = Of(1);
  successor.process = {.high = 9, .low = 9};
  const auto another = members_.Welcome(successor, false, now_);
  EXPECT_EQ(members_.EpochsOf(first.number).first_epoch, another.epoch);
  EXPECT_FALSE(members_.Current(first.number, first.epoch));
}

// Else a value that gave way while it was away would come back with its disk.
TEST_F(MembersTest, TheNextProcessOverADiskHoldsWhatTheLastOneHeld) {
  const auto first = Join(1, /*disk=*/true);
  ASSERT_EQ(Renew(first, kTable, /*told=*/true), Renewal::kGranted);
  now_ += 2 * kSecond;
  wire::OwnerHello successor = Of(1);
  successor.process = {.high = 9, .low = 9};
  const auto next = members_.Welcome(successor, false, now_);
  EXPECT_FALSE(next.resumed);
  EXPECT_TRUE(next.tell_first);
  const Members::Epochs epochs = members_.EpochsOf(first.number);
  EXPECT_EQ(epochs.epoch, next.epoch);
  EXPECT_EQ(epochs.first_epoch, first.epoch);
  EXPECT_EQ(epochs.told_epoch, first.epoch);
}

TEST_F(MembersTest, AnOwnerThatWasOvertakenTellsEverythingFirst) {
  const auto first = Join(1);
  ASSERT_EQ(Renew(first, kTable, /*told=*/true), Renewal::kGranted);
  const auto again = Resume(first, /*overtaken=*/true);
  EXPECT_FALSE(again.resumed);
  EXPECT_TRUE(again.tell_first);
  EXPECT_EQ(Renew(again), Renewal::kTellFirst);
  EXPECT_EQ(Renew(again, kTable, /*told=*/true), Renewal::kGranted);
}

TEST_F(MembersTest, NoHelloInBetweenLetsAnOvertakenOwnerOff) {
  const auto first = Join(1);
  ASSERT_EQ(Renew(first, kTable, /*told=*/true), Renewal::kGranted);
  Resume(first, /*overtaken=*/true);  // the answer is lost, and its lease is still running
  const auto again = Resume(first);   // so it says the same once more
  EXPECT_FALSE(again.resumed);
  EXPECT_TRUE(again.tell_first) << "another value took the place of one of its";
  EXPECT_EQ(Renew(again), Renewal::kTellFirst);
}

TEST_F(MembersTest, ARenewalAlsoFindsThatAnOwnerWasOvertaken) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner, kTable, /*told=*/true), Renewal::kGranted);
  present_ = false;
  EXPECT_EQ(Renew(owner, kTable, /*told=*/true), Renewal::kTellFirst);
}

TEST_F(MembersTest, AnOwnerThatWasAwayWithAnUntoldInventoryTellsItFirst) {
  const auto owner = Join(1);
  ASSERT_EQ(Renew(owner), Renewal::kGranted);
  now_ += 2 * kSecond;
  EXPECT_EQ(Renew(owner), Renewal::kTellFirst) << "others may have stored what it did not tell";
  EXPECT_EQ(Renew(owner, kTable, /*told=*/true), Renewal::kGranted);
  now_ += 2 * kSecond;
  EXPECT_EQ(Renew(owner, kTable, /*told=*/true), Renewal::kGranted) << "all was told before";
}

TEST_F(MembersTest, AfterAMastersRestartAnOwnerGoesOnAtOnce) {
  Load({Stored(1, 0)}, now_ + kSecond);
  const auto owner = Hello(1, /*seen_before=*/true);
  EXPECT_FALSE(owner.resumed);
  EXPECT_FALSE(owner.tell_first);
  EXPECT_EQ(Renew(owner), Renewal::kGranted);
}

TEST_F(MembersTest, OneThatComesAfterItsLeaseRanOutTellsFirst) {
  Load({Stored(1, 0)}, now_ + kSecond);
  now_ += kSecond;
  EXPECT_TRUE(Hello(1, /*seen_before=*/true).tell_first);
}

TEST_F(MembersTest, AnEpochOfAnotherMasterIsNotResumed) {
  Load({Stored(1, 0)}, now_ + kSecond);
  wire::OwnerHello hello = Of(1);
  hello.seen = {.term = kTerm - 1, .tag = 5, .revision = 1};
  hello.number = 0;
  hello.epoch = 7;
  EXPECT_FALSE(members_.Welcome(hello, false, now_).resumed);
}

TEST_F(MembersTest, AProcessThatComesBackWithADiskTellsAllFirstAndWaitsForTheLeaseBeforeIt) {
  StoredState::Member stored = Stored(1, 0);
  stored.fact.disk = true;
  Load({stored}, now_ + kSecond);
  wire::OwnerHello hello = Of(1);
  hello.seen = {.term = kTerm - 1, .tag = 5, .revision = 1};
  EXPECT_EQ(members_.Admit(hello, now_).error().code, Code::kExists)
      << "somebody may still read the memory of the process before it";
  // That one goes on under another master without a word.
  wire::OwnerHello goes_on = hello;
  goes_on.number = 3;
  ASSERT_TRUE(members_.Admit(goes_on, now_));
  EXPECT_FALSE(members_.Welcome(goes_on, false, now_).tell_first);
  now_ += 2 * kSecond;
  hello.process = {.high = 77, .low = 78};
  ASSERT_TRUE(members_.Admit(hello, now_));
  const auto back = members_.Welcome(hello, false, now_);
  EXPECT_TRUE(back.tell_first);
  EXPECT_EQ(Renew(back), Renewal::kTellFirst);
  EXPECT_EQ(Renew(back, kTable, /*told=*/true), Renewal::kGranted);
}

TEST_F(MembersTest, AnOwnerWithADiskThatSaidGoodbyeTellsAllWhenItIsBack) {
  const auto owner = Join(1, /*disk=*/true);
  EXPECT_FALSE(owner.tell_first) << "there is nothing yet";
  ASSERT_EQ(Renew(owner, kTable, /*told=*/true), Renewal::kGranted);
  members_.LeaseReturned(owner.number);
  wire::OwnerHello hello = Of(1);
  hello.process = {.high = 77, .low = 78};
  ASSERT_TRUE(members_.Admit(hello, now_)) << "its lease is over";
  EXPECT_TRUE(members_.Welcome(hello, false, now_).tell_first);
}

// A node is drained for service: its next process is there to be used.
TEST_F(MembersTest, ADrainEndsWithTheProcessThatIsDrained) {
  const auto owner = Join(1, /*disk=*/true);
  ASSERT_EQ(Renew(owner, kTable, /*told=*/true), Renewal::kGranted);
  ASSERT_TRUE(members_.SetDraining(owner.number, true));
  EXPECT_TRUE(Resume(owner).resumed);
  EXPECT_TRUE(members_.Draining(owner.number)) << "a lost connection ends no drain";
  wire::OwnerHello hello = Of(1);
  EXPECT_FALSE(members_.Welcome(hello, false, now_).resumed);
  EXPECT_TRUE(members_.Draining(owner.number)) << "nor does a new epoch";
  members_.LeaseReturned(owner.number);
  hello.process = {.high = 77, .low = 78};
  ASSERT_TRUE(members_.Admit(hello, now_));
  EXPECT_FALSE(members_.Welcome(hello, false, now_).resumed);
  EXPECT_FALSE(members_.Draining(owner.number));
}

TEST_F(MembersTest, EpochsWrapWithoutBeingZero) {
  Members members({.lease_ns = kSecond}, kTerm, 0xFFFFFFFE);
  members.Add(IdOf(1), {.number = 0}, kFirst, now_);
  EXPECT_EQ(members.Welcome(Of(1), false, now_).epoch, 0xFFFFFFFFU);
  EXPECT_EQ(members.Welcome(Of(1), false, now_).epoch, 1U);
}

}  // namespace
}  // namespace kvcove::master
