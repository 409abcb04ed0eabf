// SPDX-License-Identifier: Apache-2.0
// Which owners the master welcomes, and how it acts when an owner knows more than it does.
#include <gtest/gtest.h>

#include "kvcove/master/control/control_fixture.h"

namespace kvcove::master {
namespace {

class HelloTest : public ControlFixture {
 protected:
  static constexpr Id128 kOldPool{.high = 9, .low = 9};
  static wire::OwnerHello OfPool(std::uint64_t id, const Id128& pool) {
    wire::OwnerHello hello = Of(id);
    hello.pool = pool;
    hello.incarnation = {.high = 8, .low = 8};
    hello.seen = {.term = 77, .tag = 7, .revision = 7777};
    return hello;
  }
  static wire::OwnerHello WithDisk(wire::OwnerHello hello) {
    hello.disk = true;
    return hello;
  }
  wire::OwnerWelcome JoinWithDisk(std::uint64_t id) { return *Hello(WithDisk(Fresh(id))); }
  // Over the same disk, as the file beside it says.
  wire::OwnerHello NextProcess(std::uint64_t id, const wire::OwnerWelcome& before) const {
    wire::OwnerHello hello = WithDisk(Again(id, before));
    hello.process = {.high = 999, .low = id};
    hello.number = wire::kNoOwner;
    hello.epoch = 0;
    return hello;
  }
  Result<wire::RenewReply> RenewVoid(const wire::OwnerWelcome& who) {
    return control_->Renew(
        {.number = who.number, .epoch = who.epoch, .table = table_, .disks_void = true});
  }
  static constexpr Id128 kFirstOpening{.high = 11, .low = 1};
  static constexpr Id128 kSecondOpening{.high = 11, .low = 2};
  Result<wire::RenewReply> RenewOpening(const wire::OwnerWelcome& who, const Id128& opening) {
    return control_->Renew(
        {.number = who.number, .epoch = who.epoch, .table = table_, .opening = opening});
  }
  std::optional<MemberFact> FactOf(std::uint64_t id) const {
    const auto stored = Decode(store_.facts);
    if (!stored || stored->members.empty()) return std::nullopt;
    EXPECT_EQ(stored->members.front().id, IdOf(id));
    return stored->members.front().fact;
  }
  Code Seen(std::uint64_t term, std::uint64_t tag, std::uint64_t revision) {
    wire::OwnerHello hello = Of(50);
    hello.pool = kPool;
    hello.incarnation = kIncarnation;
    hello.seen = {.term = term, .tag = tag, .revision = revision};
    return Hello(hello).code();
  }
};

TEST_F(HelloTest, AFreshIdentityIsStoredBeforeItIsWelcomed) {
  store_.hangs = true;
  const auto answer = Hello(Fresh(1), 1);
  EXPECT_FALSE(answer.came());
  EXPECT_EQ(Hello(Fresh(1), 1).code(), Code::kStale) << "it is being stored";
  store_.Release();
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(StoreHas(MemberKey(IdOf(1))));
  EXPECT_EQ(answer->pool, kPool);
  EXPECT_EQ(answer->incarnation, kIncarnation);
  EXPECT_EQ(answer->position.term, kTerm);
  EXPECT_EQ(answer->position.revision, store_.revision);
  EXPECT_NE(answer->epoch, 0U);
}

TEST_F(HelloTest, AnIdentityThatCouldNotBeStoredIsNoMember) {
  store_.failures = 1;
  const auto refused = Hello(Fresh(1));
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_EQ(control_->Count().members, 0U);
  EXPECT_EQ(Join(1).number, 0) << "the number is free again";
}

TEST_F(HelloTest, AnUnknownIdentityIsForgotten) {
  const auto answer = Hello(Of(1));
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->forgotten);
  EXPECT_EQ(answer->pool, kPool);
  EXPECT_EQ(control_->Count().members, 0U);
}

TEST_F(HelloTest, AKnownMemberGoesOn) {
  const auto first = Join(1, 1);
  const auto again = Hello(Again(1, first), 2);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->resumed);
  EXPECT_EQ(store_.commits, 1U) << "nothing is stored again";
}

// ---- an owner with disks whose data directory may be a copy

TEST_F(HelloTest, AnOpeningIsStoredAndNoRenewalWaitsForThat) {
  const auto owner = JoinWithDisk(1);
  EXPECT_EQ(owner.opening, Id128{}) << "none yet";
  EXPECT_FALSE(Join(2).opening) << "without disks";
  store_.hangs = true;
  EXPECT_EQ(RenewOpening(owner, kFirstOpening)->opening, Id128{});
  EXPECT_TRUE(RenewOpening(owner, kFirstOpening)->granted);
  EXPECT_EQ(store_.commits, 3U) << "once, after the two members";
  store_.hangs = false;
  store_.Release();
  EXPECT_EQ(RenewOpening(owner, kFirstOpening)->opening, kFirstOpening);
  EXPECT_EQ(store_.facts[OpeningKey(IdOf(1))].value, Encode(OpeningFact{kFirstOpening}));
  store_.failures = 1;
  EXPECT_EQ(RenewOpening(owner, kSecondOpening)->opening, kFirstOpening);
  EXPECT_EQ(RenewOpening(owner, kSecondOpening)->opening, kFirstOpening) << "it is repeated";
  EXPECT_EQ(RenewOpening(owner, kSecondOpening)->opening, kSecondOpening);
}

TEST_F(HelloTest, AProcessIsKnownByEitherOfItsOpenings) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  Pass(2 * kSecond);
  wire::OwnerHello next = NextProcess(1, owner);
  next.opening = kFirstOpening;
  EXPECT_EQ(Hello(next)->opening, kFirstOpening);
  next.opening = kSecondOpening;
  next.opening_before = kFirstOpening;
  const auto welcome = Hello(next);
  ASSERT_TRUE(welcome.ok());
  EXPECT_FALSE(welcome->forgotten) << "it was killed before the store had the second one";
  EXPECT_EQ(welcome->opening, kFirstOpening);
}

TEST_F(HelloTest, AnOwnerThatNamesAnEarlierOpeningIsForgottenOnceItsLeaseIsOver) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  (void)RenewOpening(owner, kSecondOpening);
  EXPECT_EQ(RenewOpening(owner, kSecondOpening)->opening, kSecondOpening);
  wire::OwnerHello copy = NextProcess(1, owner);
  copy.opening = kFirstOpening;
  EXPECT_EQ(Hello(copy).code(), Code::kExists);
  wire::OwnerHello same = WithDisk(Again(1, owner));
  same.opening = kFirstOpening;
  EXPECT_EQ(Hello(same).code(), Code::kStale) << "readers may still map its memory";
  Pass(2 * kSecond);
  const auto welcome = Hello(copy);
  ASSERT_TRUE(welcome.ok());
  EXPECT_TRUE(welcome->forgotten);
  EXPECT_TRUE(welcome->rolled_back);
}

TEST_F(HelloTest, AnOriginalReturnsAfterItsCloneWasForgotten) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  (void)RenewOpening(owner, kSecondOpening);
  Pass(2 * kSecond);
  wire::OwnerHello clone = NextProcess(1, owner);
  clone.opening = kFirstOpening;
  ASSERT_TRUE(Hello(clone)->rolled_back);
  ASSERT_TRUE(Hello(WithDisk(Fresh(2))).ok()) << "the clone joins anew";
  wire::OwnerHello original = NextProcess(1, owner);
  original.opening = kSecondOpening;
  const auto welcome = Hello(original);
  ASSERT_TRUE(welcome.ok());
  EXPECT_FALSE(welcome->forgotten);
  EXPECT_EQ(welcome->number, owner.number);
  EXPECT_EQ(control_->Count().members, 2U);
}

// The file of an earlier version is older than any opening that is stored.
TEST_F(HelloTest, AnOwnerThatNamesNoOpeningIsForgottenIfOneIsStored) {
  const auto owner = JoinWithDisk(1);
  Pass(2 * kSecond);
  EXPECT_FALSE(Hello(NextProcess(1, owner))->forgotten) << "an owner of an earlier version";
  const auto again = *Hello(NextProcess(1, owner));
  (void)RenewOpening(again, kFirstOpening);
  Pass(2 * kSecond);
  EXPECT_TRUE(Hello(NextProcess(1, owner))->rolled_back);
}

TEST_F(HelloTest, AGoodbyeStoresTheOpeningOfTheCleanEnd) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  control_->Goodbye({.number = owner.number, .epoch = owner.epoch, .opening = kSecondOpening});
  wire::OwnerHello copy = NextProcess(1, owner);
  copy.opening = kFirstOpening;
  EXPECT_TRUE(Hello(copy)->rolled_back) << "it was made while the owner ran";
}

TEST_F(HelloTest, ALaterMasterKnowsTheOpening) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  state_ = *Decode(store_.facts);
  Make();
  Pass(2 * kSecond);
  wire::OwnerHello next = NextProcess(1, owner);
  next.seen.term = kTerm - 1;
  next.seen.tag = 33;
  next.seen.revision = 90;
  next.opening = kSecondOpening;
  EXPECT_TRUE(Hello(next)->rolled_back);
}

// Its disks are void, and many owners may be in this state: none of them has to join anew.
TEST_F(HelloTest, AnOwnerOfAnotherIncarnationIsNotAskedForItsOpening) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  Pass(2 * kSecond);
  wire::OwnerHello other = NextProcess(1, owner);
  other.incarnation = {.high = 7, .low = 7};
  const auto welcome = Hello(other);
  ASSERT_TRUE(welcome.ok());
  EXPECT_FALSE(welcome->forgotten);
}

TEST_F(HelloTest, ANextProcessWaitsForAnOpeningThatIsBeingStored) {
  const auto owner = JoinWithDisk(1);
  (void)RenewOpening(owner, kFirstOpening);
  store_.hangs = true;
  (void)RenewOpening(owner, kSecondOpening);
  Pass(2 * kSecond);
  wire::OwnerHello next = NextProcess(1, owner);
  next.opening = kSecondOpening;
  next.opening_before = kFirstOpening;
  EXPECT_EQ(Hello(next).code(), Code::kStale);
  store_.Release();
  EXPECT_EQ(Hello(next)->opening, kSecondOpening);
}

// ---- an owner whose note cannot say that its disks are void

TEST_F(HelloTest, VoidDisksAreStoredAndNoRenewalWaitsForThat) {
  const auto owner = JoinWithDisk(1);
  ASSERT_FALSE(RenewVoid(owner)->disks_void);
  EXPECT_TRUE(RenewVoid(owner)->disks_void);
  EXPECT_FALSE(FactOf(1)->disk);
  EXPECT_FALSE(Renew(owner)->disks_void) << "nobody has asked";
  EXPECT_EQ(store_.commits, 2U) << "once";
}

TEST_F(HelloTest, DisksCountAsVoidOnceThatIsStored) {
  const auto owner = JoinWithDisk(1);
  store_.hangs = true;
  for (int i = 0; i < 3; ++i) {
    const auto renewed = RenewVoid(owner);
    ASSERT_TRUE(renewed);
    EXPECT_TRUE(renewed->granted);
    EXPECT_FALSE(renewed->disks_void);
  }
  store_.Release();
  EXPECT_TRUE(RenewVoid(owner)->disks_void);
}

TEST_F(HelloTest, ARenewalRepeatsWhatCouldNotBeStored) {
  const auto owner = JoinWithDisk(1);
  store_.failures = 1;
  EXPECT_FALSE(RenewVoid(owner)->disks_void);
  EXPECT_TRUE(FactOf(1)->disk);
  EXPECT_FALSE(RenewVoid(owner)->disks_void);
  EXPECT_TRUE(RenewVoid(owner)->disks_void);
}

TEST_F(HelloTest, TheNextProcessOverVoidDisksIsForgottenAndItsMemberEnds) {
  const auto owner = JoinWithDisk(1);
  (void)RenewVoid(owner);
  EXPECT_EQ(Hello(NextProcess(1, owner)).code(), Code::kExists) << "the lease of the first runs";
  EXPECT_TRUE(Hello(WithDisk(Again(1, owner)))->resumed) << "the process that has said so";
  Pass(2 * kSecond);
  EXPECT_TRUE(Hello(NextProcess(1, owner))->forgotten);
  EXPECT_EQ(control_->Count().members, 0U);
  EXPECT_FALSE(StoreHas(MemberKey(IdOf(1))));
}

TEST_F(HelloTest, ALaterMasterKnowsOfVoidDisks) {
  const auto owner = JoinWithDisk(1);
  (void)RenewVoid(owner);
  state_.members = {{.id = IdOf(1), .fact = *FactOf(1)}};
  Make();
  EXPECT_FALSE(Hello(WithDisk(Again(1, owner)))->forgotten) << "the process that has said so";
  Make();
  EXPECT_TRUE(Hello(NextProcess(1, owner))->forgotten);
}

TEST_F(HelloTest, TheNextProcessOverSoundDisksIsWelcome) {
  const auto owner = JoinWithDisk(1);
  (void)Renew(owner);
  Pass(2 * kSecond);
  const auto next = Hello(NextProcess(1, owner));
  ASSERT_TRUE(next.ok());
  EXPECT_FALSE(next->forgotten);
}

TEST_F(HelloTest, AnOwnerOfAnotherPoolIsRefused) {
  const auto refused = Hello(OfPool(1, kOldPool));
  EXPECT_EQ(refused.code(), Code::kIncompatible);
  EXPECT_NE(refused.detail().find("host1:1"), std::string::npos);
  EXPECT_TRUE(adopted_.empty());
}

TEST_F(HelloTest, ASuccessorEndsTheIdentityOfItsPredecessor) {
  const auto first = Join(1);
  ASSERT_TRUE(Renew(first));
  wire::OwnerHello successor = Fresh(2);
  successor.host = Of(1).host;
  successor.predecessor = IdOf(1);
  ASSERT_TRUE(Hello(successor).ok());
  EXPECT_FALSE(StoreHas(MemberKey(IdOf(1))));
  EXPECT_EQ(control_->Count().members, 1U);
  EXPECT_EQ(ended_, Of(1).process) << "what it held for engines ends";
  EXPECT_FALSE(control_->LeaseRunning());
}

// Nobody else can have looked: a mistake, or a stolen id.
TEST_F(HelloTest, OnlyAnOwnerOfItsHostAndTenantIsASuccessor) {
  Join(1);
  wire::OwnerHello elsewhere = Fresh(2);
  elsewhere.host = "another";
  elsewhere.predecessor = IdOf(1);
  ASSERT_TRUE(Hello(elsewhere).ok());
  wire::OwnerHello of_tenant = Fresh(3);
  of_tenant.tenant = "globex";
  of_tenant.predecessor = IdOf(1);
  ASSERT_TRUE(Hello(of_tenant).ok());
  EXPECT_TRUE(StoreHas(MemberKey(IdOf(1))));
  EXPECT_EQ(control_->Count().members, 3U);
}

// ---- a store that was lost

TEST_F(HelloTest, APoolWhoseStoreWasLostKeepsTheIdThatItsOwnersKnow) {
  leadership_.new_pool = true;
  Make();
  EXPECT_EQ(Hello(OfPool(1, kOldPool)).code(), Code::kStale) << "it is not stored yet";
  EXPECT_EQ(Hello(OfPool(2, kOldPool)).code(), Code::kStale);
  EXPECT_EQ(adopted_, std::vector<Id128>{kOldPool});
  adopting_({});
  const auto answer = Hello(OfPool(1, kOldPool));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->pool, kOldPool);
  EXPECT_TRUE(answer->forgotten) << "nothing is known of what it holds";
  EXPECT_EQ(facts_lost_, 0);
  EXPECT_EQ(Hello(OfPool(3, {.high = 7, .low = 7})).code(), Code::kIncompatible)
      << "a pool takes one id";
}

TEST_F(HelloTest, AnIdThatCouldNotBeStoredIsTriedAgain) {
  leadership_.new_pool = true;
  Make();
  Hello(OfPool(1, kOldPool));
  adopting_(Fail(Code::kUnavailable, "the disk refuses"));
  EXPECT_EQ(Hello(Fresh(5))->pool, kPool);
  EXPECT_EQ(Hello(OfPool(1, kOldPool)).code(), Code::kStale);
  EXPECT_EQ(adopted_.size(), 2U);
}

TEST_F(HelloTest, AFreshOwnerThatComesFirstLocksNobodyOut) {
  leadership_.new_pool = true;
  Make();
  const auto fresh = Join(5);
  EXPECT_EQ(fresh.pool, kPool);
  Hello(OfPool(1, kOldPool));
  ASSERT_EQ(adopted_.size(), 1U);
  adopting_({});
  EXPECT_TRUE(Hello(OfPool(1, kOldPool))->forgotten);
  // The fresh one learns the id that counts with its next hello.
  const auto renewed = Renew(fresh);
  ASSERT_FALSE(renewed);
  EXPECT_EQ(renewed.error().code, Code::kStale);
  const auto again = Hello(Again(5, fresh));
  ASSERT_TRUE(again.ok()) << again.detail();
  EXPECT_TRUE(again->resumed);
  EXPECT_EQ(again->pool, kOldPool);
  EXPECT_TRUE(Renew(*again));
}

TEST_F(HelloTest, APoolInUseDoesNotTakeAnotherId) {
  leadership_.new_pool = true;
  Make();
  Join(5);
  clock_.AdvanceNs(61 * kSecond);
  EXPECT_EQ(Hello(OfPool(1, kOldPool)).code(), Code::kIncompatible);
}

// ---- a store that went back

TEST_F(HelloTest, AnOwnerThatHasSeenNoMoreIsWelcome) {
  EXPECT_EQ(Seen(0, 0, 0), Code::kOk) << "it has seen nothing";
  EXPECT_EQ(Seen(4, 44, 100), Code::kOk);
  EXPECT_EQ(Seen(4, 44, 5000), Code::kOk) << "this master's own revisions";
  EXPECT_EQ(Seen(3, 33, 99), Code::kOk);
  EXPECT_EQ(Seen(2, 22, 79), Code::kOk);
  EXPECT_EQ(Seen(1, 11, 49), Code::kOk) << "older than what is kept";
  EXPECT_EQ(facts_lost_, 0);
}

TEST_F(HelloTest, AMasterThatKnowsLessThanAnOwnerVoidsEverything) {
  struct Case {
    const char* what;
    wire::Position seen;
  };
  for (const Case& one :
       {Case{"a later term", {.term = 5, .tag = 55, .revision = 120}},
        Case{"this term of another master", {.term = 4, .tag = 45, .revision = 1}},
        Case{"another master's term", {.term = 3, .tag = 34, .revision = 81}},
        Case{"a revision of a term that ended before", {.term = 3, .tag = 33, .revision = 100}},
        Case{"the same, earlier", {.term = 2, .tag = 22, .revision = 80}}}) {
    const int before = facts_lost_;
    EXPECT_EQ(Seen(one.seen.term, one.seen.tag, one.seen.revision), Code::kStale) << one.what;
    EXPECT_EQ(facts_lost_, before + 1) << one.what;
  }
}

// The new incarnation is being stored, or the disk refuses it.
TEST_F(HelloTest, AMasterThatKnowsOfALossGivesNoLeaseBeforeEverythingIsVoid) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  ASSERT_EQ(Seen(5, 55, 120), Code::kStale);
  const auto refused = Renew(owner);
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->granted);
  EXPECT_TRUE(refused->doubted);
  EXPECT_FALSE(Renew(owner)->granted);
  Deferred after(commits_);
  control_->Publish({.high = 3, .low = 3}, {}, after);
  EXPECT_TRUE(Renew(owner)->granted);
}

TEST_F(HelloTest, AMemberThatWaitsForOthersAfterAStartIsToldSo) {
  for (std::uint64_t id = 1; id <= 3; ++id) {
    state_.members.push_back(
        {.id = IdOf(id), .fact = {.number = static_cast<OwnerNumber>(id - 1)}});
  }
  Make(/*leases_until_ns=*/clock_.NowNs() + kSecond);
  const auto hello = [&](std::uint64_t id) {
    wire::OwnerHello again = Of(id);
    again.pool = kPool;
    again.incarnation = kIncarnation;
    again.seen = {.term = 3, .tag = 33, .revision = 85};
    return again;
  };
  const auto owner = Hello(hello(1));
  ASSERT_TRUE(owner.ok());
  const auto waits = Renew(*owner);
  EXPECT_FALSE(waits->granted);
  EXPECT_TRUE(waits->doubted);
  EXPECT_FALSE(standings_.Live(owner->number));
  // What another one knows shows that this store was put back.
  wire::OwnerHello knows = hello(2);
  knows.seen.revision = 100;
  EXPECT_EQ(Hello(knows).code(), Code::kStale);
  clock_.AdvanceNs(10 * kSecond);
  EXPECT_FALSE(Renew(*owner)->granted) << "however long it takes to store a new incarnation";
}

TEST_F(HelloTest, ATermThatIsMissingBetweenOthersIsALoss) {
  leadership_.terms = {{.term = 1, .tag = 11, .first_revision = 1},
                       {.term = 4, .tag = 44, .first_revision = 100}};
  Make();
  EXPECT_EQ(Seen(2, 22, 60), Code::kStale);
  EXPECT_EQ(facts_lost_, 1);
}

TEST_F(HelloTest, WhatAnotherIncarnationKnewIsVoidAnyway) {
  wire::OwnerHello hello = Of(1);
  hello.pool = kPool;
  hello.incarnation = {.high = 8, .low = 8};
  hello.seen = {.term = 9, .tag = 9, .revision = 9999};
  EXPECT_TRUE(Hello(hello).ok());
  EXPECT_EQ(facts_lost_, 0);
}

// ---- connections

TEST_F(HelloTest, AClosedConnectionHidesTheOwnerButAResetStillWaits) {
  const auto owner = Join(1, 11);
  ASSERT_TRUE(Renew(owner)->granted);
  EXPECT_TRUE(standings_.Live(owner.number));
  control_->Disconnected(11);
  EXPECT_FALSE(standings_.Live(owner.number));
  EXPECT_TRUE(standings_.Present(owner.number)) << "its host may still read";
  Publish(kSlot, 7);
  --table_;
  const auto reset = Await(10 * kSecond);
  EXPECT_FALSE(reset.came()) << "somebody may still map its memory";
  Pass(kSecond / 100 * 101);
  EXPECT_TRUE(reset.ok());
}

TEST_F(HelloTest, AnOwnerWithAnotherConnectionStaysVisible) {
  const auto first = Join(1, 11);
  ASSERT_TRUE(Renew(first)->granted);
  ASSERT_TRUE(Hello(Again(1, first), 12)->resumed);
  control_->Disconnected(11);
  EXPECT_TRUE(standings_.Live(first.number));
  control_->Disconnected(12);
  EXPECT_FALSE(standings_.Live(first.number));
}

TEST_F(HelloTest, AConnectionOfAnEndedMemberHidesNorShowsTheNextOneWithItsNumber) {
  const auto first = Join(1, 11);
  control_->Goodbye({.number = first.number, .epoch = first.epoch});
  const auto second = Join(2, 12);
  ASSERT_EQ(second.number, first.number);
  ASSERT_TRUE(Renew(second)->granted);
  control_->Disconnected(12);
  EXPECT_FALSE(standings_.Live(second.number)) << "the other connection is not its";
}

TEST_F(HelloTest, GoodbyeOfAnOwnerWithADiskEndsItsLeaseOnly) {
  wire::OwnerHello hello = Fresh(1);
  hello.disk = true;
  const wire::OwnerWelcome owner = *Hello(hello);
  ASSERT_TRUE(Renew(owner, /*told=*/true)->granted);
  Publish(kSlot, 7);
  const auto reset = Await();
  control_->Goodbye({.number = owner.number, .epoch = owner.epoch});
  const auto members = control_->Describe();
  ASSERT_EQ(members.size(), 1U);
  EXPECT_TRUE(members[0].disk);
  EXPECT_FALSE(members[0].leased);
  EXPECT_TRUE(reset.ok()) << "nobody reads its memory any more";
  EXPECT_TRUE(StoreHas(MemberKey(IdOf(1))));
}

TEST_F(HelloTest, GoodbyeEndsTheMemberAndEveryWaitForIt) {
  const auto owner = Join(1, 11);
  ASSERT_TRUE(Renew(owner)->granted);
  Publish(kSlot, 7);
  const auto reset = Await();
  EXPECT_FALSE(reset.came());
  control_->Goodbye({.number = owner.number, .epoch = owner.epoch + 1});
  EXPECT_FALSE(reset.came()) << "of another epoch";
  control_->Goodbye({.number = owner.number, .epoch = owner.epoch});
  EXPECT_TRUE(reset.ok());
  EXPECT_FALSE(StoreHas(MemberKey(IdOf(1))));
  EXPECT_FALSE(standings_.EpochIs(owner.number, owner.epoch));
}

TEST_F(HelloTest, AMemberThatIsAwayForTooLongEndsByItself) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  EXPECT_EQ(control_->Forget(owner.number).error().code, Code::kDenied);
  Pass(3600 * kSecond);
  EXPECT_EQ(control_->Count().members, 1U);
  Pass(2 * kSecond);
  EXPECT_EQ(control_->Count().members, 0U);
  EXPECT_FALSE(StoreHas(MemberKey(IdOf(1))));
  EXPECT_TRUE(Hello(Of(1))->forgotten);
}

}  // namespace
}  // namespace kvcove::master
