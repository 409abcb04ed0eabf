// SPDX-License-Identifier: Apache-2.0
// Renewals, long polls, and the proofs of resets and removals.
#include "kvcove/master/control/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/master/control/control_fixture.h"

namespace kvcove::master {
namespace {

class ControlTest : public ControlFixture {
 protected:
  // What a watch must name so that it has no news.
  std::uint64_t Naming(const wire::OwnerWelcome& who) {
    return control_->Renew({.number = who.number, .epoch = who.epoch, .table = table_})
        ->changes.naming;
  }
};

// ---- leases and changes

TEST_F(ControlTest, AnOwnerThatIsBehindGetsTheChangesInsteadOfALease) {
  const auto owner = Join(1);
  Publish(kSlot, 7);
  const auto behind = control_->Renew({.number = owner.number, .epoch = owner.epoch, .table = 0});
  ASSERT_TRUE(behind);
  EXPECT_FALSE(behind->granted);
  ASSERT_EQ(behind->changes.slots.size(), 1U);
  EXPECT_EQ(behind->changes.slots[0].generation, 7U);
  EXPECT_EQ(behind->changes.to, table_);
  EXPECT_FALSE(standings_.Live(owner.number));
  const auto current = Renew(owner);
  EXPECT_TRUE(current->granted);
  EXPECT_EQ(current->lease_ns, kSecond);
  EXPECT_EQ(current->revision, store_.revision);
  EXPECT_TRUE(standings_.Live(owner.number));
  EXPECT_EQ(heard_, Of(1).process);
}

TEST_F(ControlTest, AStrangersRenewalIsStale) {
  EXPECT_EQ(Renew({.number = 3, .epoch = 1}).error().code, Code::kStale);
  const auto owner = Join(1);
  EXPECT_EQ(Renew({.number = owner.number, .epoch = owner.epoch + 1}).error().code, Code::kStale);
}

TEST_F(ControlTest, AWatchIsAnsweredByAChange) {
  const auto owner = Join(1);
  const auto watch = Watch(owner, table_, Naming(owner));
  EXPECT_FALSE(watch.came());
  Publish(kSlot, 7);
  ASSERT_TRUE(watch.ok());
  EXPECT_EQ(watch->slots.size(), 1U);
  EXPECT_TRUE(Watch(owner, table_ - 1, Naming(owner)).ok()) << "it is behind already";
}

TEST_F(ControlTest, AWatchIsAnsweredWhenVersionsLoseTheirLastEngine) {
  const auto owner = Join(1);
  const auto watch = Watch(owner, table_, Naming(owner));
  {
    Deferred after(commits_);
    control_->SetUnnamed({}, after);
  }
  EXPECT_FALSE(watch.came()) << "as before";
  {
    Deferred after(commits_);
    control_->SetUnnamed({4, 6}, after);
    EXPECT_FALSE(watch.came()) << "its caller's locks are still held";
  }
  ASSERT_TRUE(watch.ok());
  EXPECT_TRUE(watch->names_changed);
  EXPECT_THAT(watch->unnamed, testing::ElementsAre(4, 6));
}

TEST_F(ControlTest, AWatchWithoutNewsIsAnsweredAfterTwoSeconds) {
  const auto owner = Join(1);
  const auto watch = Watch(owner, table_, Naming(owner));
  const auto removals = Removals(owner, kFirst);
  Pass(2 * kSecond - 1);
  EXPECT_FALSE(watch.came() || removals.came());
  Pass(1);
  ASSERT_TRUE(watch.ok());
  EXPECT_EQ(watch->to, table_);
  EXPECT_TRUE(watch->slots.empty());
  ASSERT_TRUE(removals.ok());
  EXPECT_EQ(removals->upto, kFirst);
  EXPECT_EQ(control_->Count().watches, 0U);
}

TEST_F(ControlTest, ALaterWatchTakesTheEarlierOnesPlace) {
  const auto owner = Join(1);
  const std::uint64_t naming = Naming(owner);
  const auto first = Watch(owner, table_, naming);
  const auto removals = Removals(owner, kFirst);
  const auto second = Watch(owner, table_, naming);
  const auto again = Removals(owner, kFirst);
  EXPECT_EQ(first.code(), Code::kStale);
  EXPECT_EQ(removals.code(), Code::kStale);
  EXPECT_FALSE(second.came() || again.came());
}

TEST_F(ControlTest, AHelloEndsTheWatchesOfItsOwner) {
  const auto owner = Join(1);
  const auto watch = Watch(owner, table_, Naming(owner));
  const auto removals = Removals(owner, kFirst);
  Hello(Of(1));
  EXPECT_EQ(watch.code(), Code::kStale);
  EXPECT_EQ(removals.code(), Code::kStale);
  EXPECT_EQ(Watch(owner, table_, 0).code(), Code::kStale) << "of the last epoch";
}

// ---- resets

TEST_F(ControlTest, AResetIsTrueWhenEveryOwnerHasAcknowledged) {
  const auto one = Join(1);
  const auto two = Join(2);
  ASSERT_TRUE(Renew(one)->granted);
  ASSERT_TRUE(Renew(two)->granted);
  Publish(kSlot, 7);
  const auto reset = Await();
  Watch(one, table_, 0);
  EXPECT_FALSE(reset.came());
  ASSERT_TRUE(Renew(two)) << "a renewal acknowledges, too";
  EXPECT_TRUE(reset.ok());
  EXPECT_TRUE(Await().ok()) << "nothing new to be proven";
}

TEST_F(ControlTest, AnAcknowledgementOfAnEarlierChangeIsNotEnough) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  Publish(kSlot, 7);
  Publish(kSlot, 8);
  const auto reset = Await();
  Watch(owner, table_ - 1, 0);
  EXPECT_FALSE(reset.came());
}

// A slot that changes again while an owner gets the pages is in a later page than its first change.
TEST_F(ControlTest, APageThatIsNotTheLastAcknowledgesNothing) {
  options_.table_page_bytes = 1;
  Make();
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  Publish(kSlot, 7);
  Publish(kSlot + 1, 8);
  const auto reset = Await();
  Publish(kSlot, 9);
  Publish(kSlot + 2, 10);
  const auto page = Watch(owner, 0, 0);
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(page->more);
  ASSERT_EQ(page->slots.size(), 1U);
  EXPECT_EQ(page->slots[0].slot, kSlot + 1) << "the other one is not told yet";
  const Answer<wire::Changes> next;
  control_->Watch(
      {.number = owner.number, .epoch = owner.epoch, .table = page->to, .partial = true},
      next.Into());
  EXPECT_FALSE(reset.came());
  const auto renewed = control_->Renew(
      {.number = owner.number, .epoch = owner.epoch, .table = page->to, .partial = true});
  EXPECT_FALSE(renewed->granted);
  EXPECT_FALSE(reset.came());
  Watch(owner, table_, 0);
  EXPECT_TRUE(reset.ok());
}

TEST_F(ControlTest, ASilentOwnerHoldsAResetForItsLeaseAndNotBeyondTheDeadline) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  Publish(kSlot, 7);
  const auto hasty = Await(kSecond / 2);
  const auto patient = Await(10 * kSecond);
  Pass(kSecond / 2);
  EXPECT_EQ(hasty.code(), Code::kTimeout);
  Pass(kSecond / 2);
  EXPECT_FALSE(patient.came()) << "1 % for drift";
  Pass(kSecond / 100);
  EXPECT_TRUE(patient.ok());
  EXPECT_EQ(control_->Count().proofs, 0U);
}

// ---- removals

TEST_F(ControlTest, OwnersReadRemovalsInPagesAndAcknowledgeThem) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  const auto waiting = Removals(owner, kFirst);
  const std::uint64_t number = Append();
  ASSERT_TRUE(waiting.ok());
  ASSERT_EQ(waiting->removals.size(), 1U);
  EXPECT_EQ(waiting->upto, number);
  const auto removal = AwaitRemoval(number);
  EXPECT_FALSE(removal.came());
  Removals(owner, number);
  EXPECT_TRUE(removal.ok());
  EXPECT_EQ(control_->Count().removal_entries, 0U) << "all have applied it";
}

// Its disks are being walked for the first one.
TEST_F(ControlTest, ARemovalIsProvenWhileAnEarlierOneIsOpen) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  const std::uint64_t pattern = Append();
  const std::uint64_t key = Append();
  const auto open = AwaitRemoval(pattern, kSlot, 10 * kSecond);
  const auto other = AwaitRemoval(key, kSlot, 10 * kSecond);
  const auto waiting = RemovalsAhead(owner, kFirst, key, {pattern});
  EXPECT_TRUE(other.ok());
  EXPECT_FALSE(open.came());
  EXPECT_FALSE(waiting.came()) << "it has seen all";
  EXPECT_EQ(control_->Count().removal_entries, 2U) << "after a restart it asks for them again";
  const std::uint64_t later = Append();
  ASSERT_TRUE(waiting.ok());
  ASSERT_EQ(waiting->removals.size(), 1U);
  EXPECT_EQ(waiting->removals[0].number, later);
  const auto next = RemovalsAhead(owner, kFirst, later, {pattern});
  Pass(10 * kMillisecond);
  ASSERT_TRUE(next.ok()) << "so that the owner can acknowledge the open one";
  EXPECT_TRUE(next->removals.empty());
  EXPECT_FALSE(open.came());
  RemovalsAhead(owner, later, later, {});
  EXPECT_TRUE(open.ok());
  EXPECT_EQ(control_->Count().removal_entries, 0U);
}

// A thousand owners that walk over their disks would else keep the master from the leases.
TEST_F(ControlTest, OwnersWithOpenRemovalsAreAnsweredTheLessOftenTheMoreTheyAre) {
  std::vector<wire::OwnerWelcome> owners;
  for (std::uint64_t id = 1; id <= 100; ++id) owners.push_back(Join(id));
  const std::uint64_t pattern = Append();
  std::vector<Answer<wire::RemovalsPage>> watches;
  watches.reserve(owners.size());
  for (const wire::OwnerWelcome& owner : owners) {
    watches.push_back(RemovalsAhead(owner, kFirst, pattern, {pattern}));
  }
  Pass(19 * kMillisecond);
  EXPECT_FALSE(watches.front().came());
  Pass(kMillisecond);
  EXPECT_TRUE(watches.front().ok());
}

// By a pattern, its objects are still listed when the owner has applied it, and how many they were
// comes with the acknowledgement.
TEST_F(ControlTest, ARenewalAcknowledgesNoRemoval) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  const std::uint64_t number = Append();
  const auto removal = AwaitRemoval(number, kSlot, 10 * kSecond);
  ASSERT_TRUE(Renew(owner)->granted);
  EXPECT_FALSE(removal.came());
  Removals(owner, number);
  EXPECT_TRUE(removal.ok());
}

// The owner may still have the old generation, and show what the removal was about.
TEST_F(ControlTest, ARemovalThatAResetVoidsIsProvenByTheNewGeneration) {
  const auto owner = Join(1);
  Publish(kSlot, 7);
  ASSERT_TRUE(Renew(owner)->granted);
  const auto removal = AwaitRemoval(Append(), kSlot, 10 * kSecond);
  Publish(kSlot, 8);
  const std::uint64_t other = Append(kSlot + 1);
  Removals(owner, other);  // it never hears of the first
  EXPECT_FALSE(removal.came());
  Watch(owner, table_, Naming(owner));
  EXPECT_TRUE(removal.ok());
}

TEST_F(ControlTest, ARemovalDelaysNoLeaseAndNoReset) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  const auto removal = AwaitRemoval(Append(), kSlot, 10 * kSecond);
  Publish(kSlot + 1, 7);
  EXPECT_TRUE(Renew(owner)->granted);
  EXPECT_TRUE(Await().ok());
  EXPECT_FALSE(removal.came());
}

TEST_F(ControlTest, AnAbsentOwnerIsBarredBeforeTheRemovalIsTrue) {
  const auto owner = Join(1);  // without a lease
  store_.hangs = true;
  const std::uint64_t number = Append();
  const auto removal = AwaitRemoval(number);
  EXPECT_FALSE(removal.came());
  EXPECT_EQ(Renew(owner)->hidden, std::vector<SlotId>{kSlot}) << "if it comes back meanwhile";
  store_.Release();
  EXPECT_TRUE(removal.ok());
  EXPECT_TRUE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  // It returns: it gets a lease at once, and shows the slot when it has caught up.
  EXPECT_TRUE(Renew(owner)->granted);
  EXPECT_EQ(Renew(owner)->hidden, std::vector<SlotId>{kSlot});
  EXPECT_TRUE(standings_.Hidden(owner.number, kSlot)) << "nor is it found by look-ups";
  EXPECT_FALSE(standings_.Hidden(owner.number, kSlot + 1));
  store_.hangs = false;
  Removals(owner, number);
  EXPECT_TRUE(Renew(owner)->hidden.empty());
  EXPECT_FALSE(standings_.Hidden(owner.number, kSlot));
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
}

TEST_F(ControlTest, AnAbsenceCostsOneCommitASlot) {
  Join(1);
  const std::size_t before = store_.commits;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(AwaitRemoval(Append()).ok());
  EXPECT_EQ(store_.commits, before + 1);
  EXPECT_EQ(control_->Count().barriers, 1U);
}

TEST_F(ControlTest, ABarrierThatTheStoreRefusesIsTriedAgain) {
  Join(1);
  store_.failures = 2;
  const auto removal = AwaitRemoval(Append(), kSlot, 10 * kSecond);
  EXPECT_EQ(store_.failures, 1) << "not at once";
  Pass(kMillisecond);
  EXPECT_FALSE(removal.came());
  Pass(kMillisecond);
  EXPECT_TRUE(removal.ok());
  store_.facts.clear();
  store_.hangs = true;
  const auto slow = AwaitRemoval(Append(kSlot + 1), kSlot + 1);
  Pass(kSecond);
  EXPECT_EQ(slow.code(), Code::kTimeout);
  store_.Release();
  EXPECT_TRUE(AwaitRemoval(Append(kSlot + 1), kSlot + 1).ok());
}

TEST_F(ControlTest, AStoreThatRefusesEverythingProvesNothing) {
  Join(1);
  store_.hangs = true;
  const auto removal = AwaitRemoval(Append());
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(store_.held(), 1U);
    store_.RefuseOne();
    EXPECT_FALSE(removal.ok());
    Pass(kMillisecond);
  }
  Pass(kSecond);
  EXPECT_EQ(removal.code(), Code::kTimeout);
}

TEST_F(ControlTest, AMemberThatNobodyHeardOfSinceTheStartIsBarredToo) {
  state_.members = {
      {.id = IdOf(1), .fact = {.number = 0, .address = "a", .host = {}, .tenant = {}}}};
  Make(clock_.NowNs() + kSecond);
  const auto removal = AwaitRemoval(Append(), kSlot, 10 * kSecond);
  EXPECT_FALSE(removal.came()) << "its lease may run";
  Pass(kSecond);
  EXPECT_TRUE(removal.ok());
  EXPECT_TRUE(StoreHas(BarrierKey(IdOf(1), kSlot)));
}

TEST_F(ControlTest, UnderALaterMasterTheMemberDropsTheSlotBeforeItListsOrShowsIt) {
  state_.members = {
      {.id = IdOf(1), .fact = {.number = 0, .address = "a", .host = {}, .tenant = {}}},
      {.id = IdOf(2), .fact = {.number = 1, .address = "b", .host = {}, .tenant = {}}}};
  state_.barriers = {{.member = IdOf(1), .slot = kSlot, .fact = {.term = kTerm - 1}}};
  Make();
  const auto barred = *Hello(Of(1));
  const auto other = *Hello(Of(2));
  EXPECT_EQ(control_->DropsOf(barred.number), std::vector<SlotId>{kSlot});
  EXPECT_TRUE(control_->DropsOf(other.number).empty());
  EXPECT_TRUE(control_->DropsOf(4000).empty()) << "of another master";
  const auto page = Removals(barred, kFirst);
  ASSERT_TRUE(page.ok());
  EXPECT_EQ(page->drop, std::vector<SlotId>{kSlot});
  EXPECT_EQ(Renew(barred)->hidden, std::vector<SlotId>{kSlot});
  Removals(barred, kFirst, page->drop_number);
  EXPECT_TRUE(Renew(barred)->hidden.empty());
  EXPECT_FALSE(Removals(other, kFirst).came()) << "it loses nothing";
}

TEST_F(ControlTest, BarriersOutliveAStart) {
  state_.members = {
      {.id = IdOf(1), .fact = {.number = 0, .address = "a", .host = {}, .tenant = {}}}};
  state_.barriers = {{.member = IdOf(1), .slot = kSlot, .fact = {.term = kTerm - 1}}};
  store_.facts[BarrierKey(IdOf(1), kSlot)] = {.value = {}, .revision = 90};
  Make();
  Publish(kSlot, 7);  // the table as the store has it
  EXPECT_TRUE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  EXPECT_EQ(Renew(*Hello(Of(1)))->hidden, std::vector<SlotId>{kSlot});
  Publish(kSlot, 8);  // a reset
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
}

TEST_F(ControlTest, AResetVoidsRemovalsAndBarriersOfItsSlot) {
  Publish(kSlot, 7);
  Join(1);
  ASSERT_TRUE(AwaitRemoval(Append()).ok());
  ASSERT_TRUE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  Publish(kSlot, 8);
  EXPECT_FALSE(StoreHas(BarrierKey(IdOf(1), kSlot)));
  EXPECT_EQ(control_->Count().removal_entries, 0U);
  EXPECT_EQ(control_->Count().barriers, 0U);
}

TEST_F(ControlTest, MatchesOfAPatternAreCountedWhileSomebodyWaits) {
  const auto owner = Join(1);
  const std::uint64_t number = Append();
  control_->CountMatches(number);
  const Answer<wire::RemovalsPage> answer;
  control_->Removals({.number = owner.number,
                      .epoch = owner.epoch,
                      .after = number,
                      .matched = {{.number = number, .objects = 3}, {.number = 99, .objects = 5}},
                      .dropped = 0},
                     answer.Into());
  EXPECT_EQ(control_->TakeMatches(number), 3U);
  EXPECT_EQ(control_->TakeMatches(number), 0U);
}

// ---- limits

TEST_F(ControlTest, OwnersThatAreFarBehindHoldNewRemovalsBack) {
  options_.removal_bytes_behind = 1000;
  Make();
  const auto owner = Join(1);
  wire::Removal removal{.slot = kSlot, .keys = {std::string(600, 'k')}, .pattern = {}};
  for (int i = 0; i < 2; ++i) Append(kSlot, removal.keys);
  EXPECT_TRUE(control_->Prepare(removal)) << "one without a lease holds up nobody";
  ASSERT_TRUE(Renew(owner)->granted);
  EXPECT_EQ(control_->Prepare(removal).error().code, Code::kLimit);
  EXPECT_EQ(control_->Count().removals_refused, 1U);
  Removals(owner, kFirst + 2);
  EXPECT_TRUE(control_->Prepare(removal));
}

TEST_F(ControlTest, ATenantRemovesAtMostItsShareASecond) {
  options_.tenant_removals_per_second = 100;
  Make();
  Publish(7, 1, QualifiedName("acme", "llama"));
  Publish(8, 1, QualifiedName("other", "llama"));
  Publish(9, 1, "llama");
  const auto prepare = [&](SlotId slot) {
    return control_->Prepare(
        {.slot = slot, .keys = std::vector<std::string>(150, "k"), .pattern = {}});
  };
  EXPECT_TRUE(prepare(7));
  const auto refused = prepare(7);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kLimit);
  EXPECT_THAT(refused.error().detail, testing::HasSubstr("tenant 'acme'"));
  EXPECT_TRUE(prepare(8)) << "another tenant's share";
  EXPECT_TRUE(prepare(9)) << "without tenants there are no shares";
  EXPECT_TRUE(prepare(9));
  clock_.AdvanceNs(kSecond);
  EXPECT_TRUE(prepare(7));
}

// Else its owners would have more open than a request names, and keys would wait for the walks.
TEST_F(ControlTest, ABoundedNumberOfPatternsIsAppliedToDisks) {
  options_.patterns = 3;
  options_.patterns_with_first = 5;
  options_.tenant_patterns = 2;
  Make();
  Publish(7, 1, QualifiedName("acme", "llama"));
  Publish(8, 1, QualifiedName("other", "llama"));
  wire::OwnerHello hello = Fresh(1);
  hello.disk = true;
  const auto owner = *Hello(hello);
  const auto pattern = [](SlotId slot) {
    return wire::Removal{.slot = slot, .generation = 1, .keys = {}, .pattern = "k*"};
  };
  const auto refused = [&](const wire::Removal& removal) {
    const auto parts = control_->Prepare(removal);
    return !parts && parts.error().code == Code::kLimit;
  };
  const auto append = [&](SlotId slot) { control_->Show(control_->Append(pattern(slot))); };
  for (int i = 0; i < 5; ++i) append(7);
  EXPECT_FALSE(refused(pattern(7))) << "one without a lease walks over no disk that is read";
  ASSERT_TRUE(Renew(owner)->granted);
  Removals(owner, kFirst + 5);
  append(7);
  append(7);
  EXPECT_TRUE(refused(pattern(7)));
  EXPECT_FALSE(refused(pattern(8))) << "another tenant's";
  EXPECT_FALSE(refused({.slot = 7, .keys = {"k"}, .pattern = {}})) << "owners apply keys at once";
  append(8);
  EXPECT_TRUE(refused(pattern(8)));
  RemovalsAhead(owner, kFirst + 5, kFirst + 8, {kFirst + 6, kFirst + 8});
  EXPECT_FALSE(refused(pattern(7))) << "one has ended";
}

TEST_F(ControlTest, TenantsThatRefillTheirPatternsKeepOutNoOther) {
  options_.patterns = 2;
  options_.patterns_with_first = 4;
  options_.tenant_patterns = 2;
  Make();
  for (const SlotId slot : {7, 8, 9, 10}) {
    Publish(slot, 1, QualifiedName("tenant-" + std::to_string(slot), "llama"));
  }
  wire::OwnerHello hello = Fresh(1);
  hello.disk = true;
  const auto owner = *Hello(hello);
  ASSERT_TRUE(Renew(owner)->granted);
  const auto pattern = [](SlotId slot) {
    return wire::Removal{.slot = slot, .generation = 1, .keys = {}, .pattern = "k*"};
  };
  const auto begins = [&](SlotId slot) {
    if (!control_->Prepare(pattern(slot))) return false;
    control_->Show(control_->Append(pattern(slot)));
    return true;
  };
  EXPECT_TRUE(begins(7) && begins(7));
  EXPECT_FALSE(begins(7));
  EXPECT_TRUE(begins(8)) << "it has none";
  EXPECT_FALSE(begins(8)) << "it has one";
  EXPECT_TRUE(begins(9));
  EXPECT_FALSE(begins(10)) << "owners have no room for more";
}

TEST_F(ControlTest, AnOwnerOfOneTenantHearsNothingOfOthers) {
  wire::OwnerHello hello = Fresh(1);
  hello.tenant = "acme";
  const auto owner = *Hello(hello);
  Publish(7, 1, QualifiedName("acme", "llama"));
  Publish(8, 1, QualifiedName("other", "llama"));
  const auto watch = Watch(owner, 0, Naming(owner));
  ASSERT_TRUE(watch.ok());
  for (const SlotUpdate& update : watch->slots) {
    EXPECT_EQ(update.generation != 0, update.slot == 7) << update.name;
  }
  Append(8);
  const std::uint64_t last = Append(7, {"mine"});
  const auto page = Removals(owner, kFirst);
  ASSERT_TRUE(page.ok());
  ASSERT_EQ(page->removals.size(), 1U);
  EXPECT_EQ(page->removals[0].keys, std::vector<std::string>{"mine"});
  EXPECT_EQ(page->upto, last);
}

// ---- the end

TEST_F(ControlTest, StopAnswersEverythingOnce) {
  const auto owner = Join(1);
  ASSERT_TRUE(Renew(owner)->granted);
  const auto watch = Watch(owner, table_, Naming(owner));
  const auto removals = Removals(owner, kFirst);
  Publish(kSlot, 7);
  const auto again = Watch(owner, table_ - 1, Naming(owner));
  const auto waiting = Watch(owner, table_, Naming(owner));
  const auto reset = Await();
  const auto removal = AwaitRemoval(Append());
  const auto next = Removals(owner, kFirst + 1);
  store_.hangs = true;
  const auto joining = Hello(Fresh(2));
  control_->Stop();
  for (const Code code : {waiting.code(), next.code()}) EXPECT_EQ(code, Code::kUnavailable);
  EXPECT_TRUE(watch.came() && again.came() && removals.came() && reset.came() && removal.came());
  EXPECT_EQ(Await().code(), Code::kUnavailable);
  EXPECT_EQ(Hello(Of(1)).code(), Code::kUnavailable);
  EXPECT_TRUE(Watch(owner, table_, 0).came());
  EXPECT_TRUE(Removals(owner, kFirst).came());
  store_.Release();
  EXPECT_TRUE(joining.came());
  Pass(10 * kSecond);
}

TEST_F(ControlTest, AMasterThatStopsGivesNoLease) {
  const auto owner = Join(1);
  control_->Stop();
  ASSERT_FALSE(control_->LeaseRunning());  // so the store may say that it ended cleanly
  const auto renewed = Renew(owner);
  ASSERT_FALSE(renewed);
  EXPECT_EQ(renewed.error().code, Code::kUnavailable);
  EXPECT_FALSE(control_->LeaseRunning());
}

}  // namespace
}  // namespace kvcove::master
