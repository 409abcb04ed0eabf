// SPDX-License-Identifier: Apache-2.0
// The plain state of a cluster's master: who is trusted, what they must hear, who holds what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "kvcove/base/clock.h"
#include "kvcove/base/random.h"
#include "kvcove/master/control_log.h"
#include "kvcove/master/directory.h"
#include "kvcove/master/membership.h"

namespace kvcove::master {
namespace {

constexpr Id128 kPool{.high = 1, .low = 2};

// ---- control log

SlotUpdate Slot(SlotId slot, Generation generation) {
  return {.slot = slot, .generation = generation, .name = "acme"};
}

TEST(ControlLogTest, LeadsFromAnyVersionToTheLatest) {
  ControlLog log(1000);
  log.Append(kPool, {Slot(1, 5)});
  log.Append(kPool, {Slot(1, 6), Slot(2, 7)});
  log.Append({.slot = 2, .keys = {"a"}, .pattern = {}});
  const wire::Changes all = log.Since(1000);
  EXPECT_FALSE(all.complete);
  EXPECT_EQ(all.version, 1003U);
  EXPECT_THAT(all.slots, testing::UnorderedElementsAre(Slot(1, 6), Slot(2, 7)));
  ASSERT_EQ(all.removals.size(), 1U);
  EXPECT_THAT(log.Since(1002).slots, testing::IsEmpty());
  EXPECT_EQ(log.Since(1002).removals.size(), 1U);
  EXPECT_THAT(log.Since(1003).removals, testing::IsEmpty());
}

TEST(ControlLogTest, WhatChangesNothingMakesNoVersion) {
  ControlLog log(0);
  log.Append(kPool, {Slot(1, 5)});
  log.Append(kPool, {Slot(1, 5)});
  EXPECT_EQ(log.version(), 1U);
}

TEST(ControlLogTest, AStrangersVersionGetsTheWholeTable) {
  ControlLog log(1000);
  log.Append(kPool, {Slot(1, 5)});
  for (const std::uint64_t have : {0ULL, 999ULL, 5000ULL}) {
    const wire::Changes changes = log.Since(have);
    EXPECT_TRUE(changes.complete) << have;
    EXPECT_THAT(changes.slots, testing::ElementsAre(Slot(1, 5)));
  }
}

TEST(ControlLogTest, WhoMayHaveMissedARemovalDropsThatSlotOnly) {
  ControlLog log(1000);
  log.Append(kPool, {Slot(1, 5), Slot(2, 6)});
  log.Append({.slot = 2, .keys = {"first"}, .pattern = {}});
  for (int i = 0; i < 5000; ++i) log.Append(kPool, {Slot(1, 100 + static_cast<Generation>(i))});
  const wire::Changes changes = log.Since(1001);
  EXPECT_TRUE(changes.complete);
  ASSERT_EQ(changes.removals.size(), 1U);
  EXPECT_TRUE(changes.removals[0].drop_all);
  EXPECT_EQ(changes.removals[0].slot, 2);
}

TEST(ControlLogTest, KnowsWhenTheLastSlotChanged) {
  ControlLog log(10);
  EXPECT_EQ(log.slots_version(), 10U);
  log.Append(kPool, {Slot(1, 5)});
  log.Append({.slot = 1, .keys = {"a"}, .pattern = {}});
  EXPECT_EQ(log.version(), 12U);
  EXPECT_EQ(log.slots_version(), 11U);
}

TEST(ControlLogTest, ANewIncarnationForgetsTheTable) {
  ControlLog log(0);
  log.Append(kPool, {Slot(1, 5)});
  log.Append({.high = 9, .low = 9}, {Slot(3, 50)});
  const wire::Changes changes = log.Since(77);
  EXPECT_THAT(changes.slots, testing::ElementsAre(Slot(3, 50)));
  EXPECT_EQ(changes.incarnation, (Id128{.high = 9, .low = 9}));
}

// ---- membership

class MembershipTest : public testing::Test {
 protected:
  wire::OwnerWelcome Hello(std::uint64_t id) {
    return *members_.Hello({.owner = {.high = id, .low = id}, .host = "h"}, now_);
  }
  Result<bool> Renew(const wire::OwnerWelcome& who, std::uint64_t applied, bool told = true) {
    return members_.Renew(
        {.number = who.number, .epoch = who.epoch, .applied = applied, .inventory_done = told},
        version_, slots_version_.value_or(version_), now_);
  }
  std::optional<std::uint64_t> slots_version_;
  Membership members_{kSecond, 7};
  std::int64_t now_ = 100 * kSecond;
  std::uint64_t version_ = 10;
};

TEST_F(MembershipTest, TheLeaseNeedsAllChangesAndTheInventory) {
  const auto owner = Hello(1);
  EXPECT_FALSE(*Renew(owner, 9));
  EXPECT_FALSE(*Renew(owner, 10, /*told=*/false));
  EXPECT_FALSE(members_.Live(owner.number, now_));
  EXPECT_TRUE(*Renew(owner, 10));
  EXPECT_TRUE(members_.Live(owner.number, now_));
  now_ += 2 * kSecond;
  EXPECT_FALSE(members_.Live(owner.number, now_));
}

TEST_F(MembershipTest, ALongRemovalCostsNoLease) {
  slots_version_ = 8;
  const auto owner = Hello(1);
  EXPECT_FALSE(*Renew(owner, 9)) << "what it missed while it was away may have been proven";
  ASSERT_TRUE(*Renew(owner, 10));
  version_ = 12;  // two removals, which wait for it
  now_ += kSecond / 2;
  EXPECT_TRUE(*Renew(owner, 10));
  EXPECT_TRUE(members_.AwaitedUntil(12, now_));
  version_ = 13;  // a generation
  slots_version_ = 13;
  EXPECT_FALSE(*Renew(owner, 12));
  EXPECT_TRUE(*Renew(owner, 13));
}

TEST_F(MembershipTest, ALeaseIsWaitedForUntilAcknowledgedOrRunOut) {
  const auto a = Hello(1);
  const auto b = Hello(2);
  ASSERT_TRUE(*Renew(a, 10));
  ASSERT_TRUE(*Renew(b, 10));
  version_ = 11;
  EXPECT_TRUE(members_.AwaitedUntil(11, now_));
  members_.Acknowledge(a.number, a.epoch, 11);
  EXPECT_TRUE(members_.AwaitedUntil(11, now_));
  EXPECT_TRUE(members_.Missed(11));
  now_ += kSecond + 20 * kMillisecond;
  EXPECT_FALSE(members_.AwaitedUntil(11, now_));
  EXPECT_TRUE(members_.Missed(11)) << "b may come back";
}

TEST_F(MembershipTest, ANewHelloEndsEntriesButNeverTheWaitForItsLease) {
  const auto before = Hello(1);
  ASSERT_TRUE(*Renew(before, 10));
  const auto after = Hello(1);
  EXPECT_EQ(after.number, before.number);
  EXPECT_FALSE(members_.Current(before.number, before.epoch));
  EXPECT_FALSE(members_.Live(after.number, now_));
  EXPECT_TRUE(members_.AwaitedUntil(11, now_)) << "somebody may still read its memory";
  // Nor does another process under the same address.
  Hello(2);
  EXPECT_TRUE(members_.AwaitedUntil(11, now_));
}

TEST_F(MembershipTest, WhoseLeaseRanOutMustSayHelloAgain) {
  const auto owner = Hello(1);
  ASSERT_TRUE(*Renew(owner, 10));
  now_ += 2 * kSecond;
  const auto renewed = Renew(owner, 10);
  ASSERT_FALSE(renewed);
  EXPECT_EQ(renewed.error().code, Code::kStale);
}

TEST_F(MembershipTest, AnOwnerIsPresentFromItsHelloForALeaseAfterEachRenewal) {
  const auto owner = Hello(1);
  const auto present = [&] { return members_.StandingOf(owner.number).present_until_ns > now_; };
  EXPECT_TRUE(present());
  for (int i = 0; i < 3; ++i) {  // telling its inventory takes longer than a lease
    now_ += kSecond * 9 / 10;
    ASSERT_FALSE(*Renew(owner, 10, /*told=*/false));
    EXPECT_TRUE(present());
  }
  now_ += 2 * kSecond;  // frozen in the middle
  EXPECT_FALSE(present());
  const auto renewed = Renew(owner, 10, /*told=*/false);
  ASSERT_FALSE(renewed) << "others may have listed other values meanwhile";
  EXPECT_EQ(renewed.error().code, Code::kStale);
  EXPECT_FALSE(present());
  EXPECT_EQ(Hello(1).number, owner.number);
  EXPECT_TRUE(present());
}

TEST_F(MembershipTest, KnowsWhatAnOwnerMayListAgain) {
  const auto may = [&](const wire::OwnerWelcome& listed_under) {
    return members_.StandingOf(listed_under.number).MayListAgain(listed_under.epoch);
  };
  const auto first = Hello(1);
  ASSERT_TRUE(*Renew(first, 10));
  now_ += 2 * kSecond;
  const auto second = Hello(1);
  EXPECT_TRUE(may(first)) << "its inventory is being told";
  ASSERT_FALSE(*Renew(second, 10, /*told=*/false));
  EXPECT_TRUE(may(first));
  ASSERT_TRUE(*Renew(second, 10));
  EXPECT_FALSE(may(first)) << "all is told";
  EXPECT_TRUE(may(second)) << "after its next absence";
  members_.Goodbye(second.number, second.epoch);
  EXPECT_FALSE(may(second));
  const auto another = Hello(2);
  ASSERT_EQ(another.number, second.number);
  EXPECT_FALSE(may(second)) << "that was another process";
}

TEST_F(MembershipTest, GoodbyeEndsTheWait) {
  const auto owner = Hello(1);
  ASSERT_TRUE(*Renew(owner, 10));
  members_.Goodbye(owner.number, owner.epoch);
  EXPECT_FALSE(members_.AwaitedUntil(11, now_));
  EXPECT_FALSE(members_.Missed(11));
}

TEST_F(MembershipTest, NumbersOfTheForgottenAreGivenAgainUnderOtherEpochs) {
  const auto first = Hello(1);
  ASSERT_TRUE(*Renew(first, 10));
  now_ += 3600 * kSecond;
  const auto second = Hello(2);
  EXPECT_EQ(second.number, first.number);
  EXPECT_NE(second.epoch, first.epoch);
  EXPECT_TRUE(members_.Missed(11)) << "the forgotten one may come back one day";
}

// ---- directory

class DirectoryTest : public testing::Test {
 protected:
  static wire::ListItem Item(std::uint64_t key, std::uint32_t group = 1,
                             Generation generation = 5) {
    return {.hash = Hash(key), .generation = generation, .size_bytes = 100, .group = group};
  }
  static Id128 Hash(std::uint64_t key) { return {.high = Mix64(key), .low = Mix64(~key)}; }

  static wire::ListItem InSlot(SlotId slot, wire::ListItem item) {
    item.slot = slot;
    return item;
  }

  std::set<std::pair<wire::OwnerNumber, std::uint32_t>> owners_ = {{0, 1}, {1, 1}, {2, 1}};
  std::set<wire::OwnerNumber> live_ = {0, 1, 2};
  std::set<wire::OwnerNumber> telling_;  // present, but not live
  std::set<wire::OwnerNumber> told_;     // all of their inventory, in their present epochs
  Generation generation_ = 5;
  Directory directory_{
      {.current_owner = [this](auto number,
                               auto epoch) { return owners_.contains({number, epoch}); },
       .live_owner = [this](auto number) { return live_.contains(number); },
       .present_owner =
           [this](auto number) { return live_.contains(number) || telling_.contains(number); },
       .may_list_again =
           [this](auto number, auto epoch) {
             return !told_.contains(number) || owners_.contains({number, epoch});
           },
       .current_generation = [this](SlotId, Generation g) { return g == generation_; }}};
};

TEST_F(DirectoryTest, AKeyHasOneValueAndItsReplicas) {
  EXPECT_EQ(directory_.List(Item(1, 7), 0, 1), Code::kOk);
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1), Code::kExists);
  EXPECT_EQ(directory_.List(Item(1, 7), 1, 1), Code::kOk);
  const wire::Place place = directory_.Find(0, Hash(1));
  EXPECT_EQ((std::set{place.owner, place.second}), (std::set<wire::OwnerNumber>{0, 1}));
}

TEST_F(DirectoryTest, EntriesOfOldEpochsAndGenerationsDoNotCount) {
  ASSERT_EQ(directory_.List(Item(1), 0, 1), Code::kOk);
  live_.erase(0);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kOwnerGone);
  live_.insert(0);
  EXPECT_EQ(directory_.Find(0, Hash(1)).owner, 0);
  owners_ = {{0, 2}, {1, 1}};
  EXPECT_EQ(directory_.Find(0, Hash(1)).owner, wire::kNoOwner);
  EXPECT_EQ(directory_.List(Item(1, 99), 1, 1), Code::kOk) << "the old value is nowhere";
  generation_ = 6;
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kReset);
  EXPECT_EQ(directory_.List(Item(1, 100), 1, 1), Code::kStale);
  EXPECT_EQ(directory_.List(Item(1, 100, 6), 0, 2), Code::kOk);
}

TEST_F(DirectoryTest, AnAbsentOwnersValueBlocksNoOther) {
  ASSERT_EQ(directory_.List(Item(1, 7), 0, 1), Code::kOk);
  live_.erase(0);
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1), Code::kOk);
  EXPECT_EQ(directory_.Find(0, Hash(1)).owner, 1);
  EXPECT_EQ(directory_.List(Item(1, 9), 2, 1), Code::kExists) << "1 is live";
}

TEST_F(DirectoryTest, AnOwnerThatTellsItsInventoryKeepsWhatItHasListed) {
  live_.erase(0);
  telling_.insert(0);
  ASSERT_EQ(directory_.List(Item(1, 7), 0, 1), Code::kOk);
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1), Code::kExists);
}

TEST_F(DirectoryTest, AValueThatGaveWayDoesNotComeBackWithItsOwner) {
  ASSERT_EQ(directory_.List(Item(1, 7), 0, 1), Code::kOk);
  live_.erase(0);
  ASSERT_EQ(directory_.List(Item(1, 8), 1, 1), Code::kOk);
  directory_.Unlist(0, Hash(1), 1);  // the newer value is evicted
  // The owner is there again, first with what it remembers, then after a hello with its inventory;
  // the answer to that may be lost.
  for (const std::uint32_t epoch : {1U, 2U, 2U, 3U}) {
    owners_ = {{0, epoch}, {1, 1}, {2, 1}};
    live_.insert(0);
    EXPECT_EQ(directory_.Find(0, Hash(1)).owner, wire::kNoOwner);
    EXPECT_EQ(directory_.List(Item(1, 7), 0, epoch), Code::kExists);
    EXPECT_EQ(directory_.Find(0, Hash(1)).owner, wire::kNoOwner);
    EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kEvicted) << "the newer value was";
  }
  EXPECT_EQ(directory_.List(Item(1, 9), 0, 3), Code::kOk) << "another put";
  EXPECT_EQ(directory_.Find(0, Hash(1)).owner, 0);
}

TEST_F(DirectoryTest, NorDoesAValueThatWasNotToldAgainYet) {
  ASSERT_EQ(directory_.List(Item(1, 7), 0, 1), Code::kOk);
  owners_ = {{0, 2}, {1, 1}, {2, 1}};  // said hello
  // Its shard grows meanwhile, and many others with it.
  for (std::uint64_t key = 100; key < 100'000; ++key) {
    ASSERT_EQ(directory_.List(Item(key), 1, 1), Code::kOk);
  }
  ASSERT_EQ(directory_.List(Item(1, 8), 1, 1), Code::kOk);
  directory_.Unlist(0, Hash(1), 1);
  EXPECT_EQ(directory_.List(Item(1, 7), 0, 2), Code::kExists);
}

TEST_F(DirectoryTest, WhatGaveWayIsForgottenWhenItsOwnerHasToldAll) {
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_EQ(directory_.List(Item(key, 7), 0, 1), Code::kOk);
  }
  live_.erase(0);
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_EQ(directory_.List(Item(key, 8), 1, 1), Code::kOk);
  }
  EXPECT_EQ(directory_.entries(), 2000U);
  owners_ = {{0, 2}, {1, 1}, {2, 1}};
  told_.insert(0);
  live_.insert(0);
  for (std::uint64_t key = 1000; key < 200'000; ++key) {
    ASSERT_EQ(directory_.List(Item(key, 9), 0, 2), Code::kOk);
  }
  EXPECT_LT(directory_.entries(), 200'100U);
}

TEST_F(DirectoryTest, AKeyWithAnotherSlotsHashIsAnotherKey) {
  ASSERT_EQ(directory_.List(InSlot(3, Item(1, 7)), 0, 1), Code::kOk);
  ASSERT_EQ(directory_.List(InSlot(4, Item(1, 8)), 0, 1), Code::kOk);
  directory_.Remove(4, Hash(1));
  EXPECT_EQ(directory_.Find(3, Hash(1)).owner, 0) << "another tenant's removal";
  EXPECT_EQ(directory_.Find(4, Hash(1)).reason, MissReason::kRemoved);
  ASSERT_EQ(directory_.List(InSlot(4, Item(1, 8)), 0, 1), Code::kOk);
  directory_.Unlist(4, Hash(1), 0);
  EXPECT_EQ(directory_.Find(3, Hash(1)).owner, 0);
  directory_.Unlist(3, Hash(1), 0);
  EXPECT_EQ(directory_.Find(3, Hash(1)).reason, MissReason::kEvicted);
  EXPECT_EQ(directory_.Find(5, Hash(1)).reason, MissReason::kNeverPut)
      << "a tenant learns what another one had";
}

TEST_F(DirectoryTest, TellsWhyAKeyIsGone) {
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kNeverPut);
  directory_.List(Item(1), 0, 1);
  directory_.Unlist(0, Hash(1), 1);  // not its owner
  EXPECT_EQ(directory_.Find(0, Hash(1)).owner, 0);
  directory_.Unlist(0, Hash(1), 0);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kEvicted);
  directory_.List(Item(2), 0, 1);
  directory_.Remove(0, Hash(2));
  EXPECT_EQ(directory_.Find(0, Hash(2)).reason, MissReason::kRemoved);
}

TEST_F(DirectoryTest, AgreesWithAMapOverRandomEvents) {
  Random random(11);
  std::map<std::uint64_t, std::map<wire::OwnerNumber, std::uint32_t>> model;  // key -> owner, group
  for (int step = 0; step < 300000; ++step) {
    const std::uint64_t key = random.Below(20000);
    const auto owner = static_cast<wire::OwnerNumber>(random.Below(3));
    const auto group = static_cast<std::uint32_t>(1 + random.Below(2));
    switch (random.Below(4)) {
      case 0:
      case 1: {
        bool other = false;
        for (const auto& [held_by, held] : model[key]) {
          other = other || (held_by != owner && held != group);
        }
        ASSERT_EQ(directory_.List(Item(key, group), owner, 1), other ? Code::kExists : Code::kOk);
        if (!other) model[key][owner] = group;
        break;
      }
      case 2:
        directory_.Unlist(0, Hash(key), owner);
        model[key].erase(owner);
        break;
      default:
        if (random.OneIn(4)) {
          directory_.Remove(0, Hash(key));
          model[key].clear();
        }
    }
    const wire::Place place = directory_.Find(0, Hash(key));
    ASSERT_EQ(place.owner != wire::kNoOwner, !model[key].empty());
    if (place.owner != wire::kNoOwner) {
      ASSERT_TRUE(model[key].contains(place.owner));
    }
  }
  std::size_t entries = 0;
  for (const auto& [key, owners] : model) entries += owners.size();
  EXPECT_EQ(directory_.entries(), entries);
}

TEST_F(DirectoryTest, TakesAtMost96BytesAnObject) {
  for (std::uint64_t key = 0; key < 1'000'000; ++key) {
    ASSERT_EQ(directory_.List(Item(key), 0, 1), Code::kOk);
  }
  EXPECT_LE(directory_.bytes() / 1'000'000, 96U);
}

}  // namespace
}  // namespace kvcove::master
