// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/directory/directory.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace kvcove::master {
namespace {

class DirectoryTest : public testing::Test {
 protected:
  DirectoryTest() {
    for (SlotId slot = 0; slot < 8; ++slot) SetGeneration(5, slot);
    for (const wire::OwnerNumber owner : {0, 1, 2}) SetEpoch(owner, 1);
  }
  static Id128 Hash(std::uint64_t key) { return {.high = Mix64(key), .low = Mix64(~key)}; }
  static wire::ListItem Item(std::uint64_t key, std::uint32_t group = 1,
                             Generation generation = 5) {
    return {.hash = Hash(key), .generation = generation, .size_bytes = 100, .group = group};
  }
  static wire::ListItem InSlot(SlotId slot, wire::ListItem item) {
    item.slot = slot;
    return item;
  }
  void SetGeneration(Generation generation, SlotId slot = 0) {
    standings_.SetSlot({.slot = slot, .generation = generation, .name = "acme"});
  }
  // The owner is live, under this epoch, and in the same memory since epoch 1.
  void SetEpoch(wire::OwnerNumber owner, std::uint32_t epoch) {
    Standings::Owner& of = standings_.owner(owner);
    of.first_epoch = 1;
    of.epoch = epoch;
    of.overtaken = false;
    SetLive(owner, true);
  }
  void SetLive(wire::OwnerNumber owner, bool live) {
    standings_.owner(owner).live_until_ns = live ? clock_.NowNs() + kSecond : 0;
    SetPresent(owner, live);
  }
  void SetPresent(wire::OwnerNumber owner, bool present) {
    standings_.owner(owner).present_until_ns = present ? clock_.NowNs() + kSecond : 0;
  }
  bool Overtaken(wire::OwnerNumber owner) { return standings_.owner(owner).overtaken; }
  wire::OwnerNumber Holder(std::uint64_t key) { return directory_.Find(0, Hash(key)).owner; }

  // As the master does: an absent owner is barred before its value gives way.
  Code List(const wire::ListItem& item, wire::OwnerNumber owner, std::uint32_t epoch) {
    while (true) {
      std::vector<std::pair<wire::OwnerNumber, SlotId>> to_bar;
      const Code code = directory_.List(item, owner, epoch, to_bar);
      if (code != Code::kInProgress) return code;
      for (const auto& [number, slot] : to_bar) standings_.SetBarred(number, slot, true);
    }
  }

  FakeClock clock_;
  Standings standings_{clock_};
  Directory directory_{standings_};
};

// ---- one value

TEST_F(DirectoryTest, AnAbsentOwnersValueGivesWayOnlyWhenItIsBarred) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetLive(0, false);
  std::vector<std::pair<wire::OwnerNumber, SlotId>> to_bar;
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1, to_bar), Code::kInProgress);
  ASSERT_EQ(to_bar.size(), 1U);
  EXPECT_EQ(to_bar[0], (std::pair<wire::OwnerNumber, SlotId>(0, 0)));
  EXPECT_FALSE(Overtaken(0));
  // It came back in time: its value stays.
  standings_.SetBarred(0, 0, true);
  SetLive(0, true);
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1, to_bar), Code::kExists);
  SetLive(0, false);
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1, to_bar), Code::kOk);
  EXPECT_TRUE(Overtaken(0));
}

TEST_F(DirectoryTest, WhatAnOwnerTellsAgainWhileItsLeaseRunsStaysItsValue) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetEpoch(0, 2);
  EXPECT_EQ(Holder(1), wire::kNoOwner) << "not told under this epoch";
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kExists) << "its host may read it";
  EXPECT_EQ(List(Item(1, 7), 0, 2), Code::kOk);
  EXPECT_EQ(Holder(1), 0);
  // What it has not told again by the end is gone.
  ASSERT_EQ(List(Item(2, 7), 0, 2), Code::kOk);
  SetEpoch(0, 3);
  ASSERT_EQ(List(Item(1, 7), 0, 3), Code::kOk);
  standings_.owner(0).told_epoch = 3;
  EXPECT_EQ(List(Item(2, 8), 1, 1), Code::kOk);
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kExists);
}

TEST_F(DirectoryTest, WhatADiskHadThatIsSetAsideMayBeStoredAgainAtOnce) {
  wire::ListItem on_disk = Item(1, 7);
  on_disk.tier = Tier::kDisk;
  ASSERT_EQ(List(on_disk, 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(2, 7), 0, 1), Code::kOk);
  standings_.owner(0).disk_away = true;
  SetEpoch(0, 2);  // in which the disk is not told
  std::vector<std::pair<wire::OwnerNumber, SlotId>> to_bar;
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1, to_bar), Code::kOk);
  EXPECT_EQ(directory_.List(Item(2, 8), 1, 1, to_bar), Code::kExists) << "memory goes on";
}

TEST_F(DirectoryTest, WhatAnOwnerWithoutALeaseHasNotToldAgainGivesWayForGood) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetEpoch(0, 2);
  standings_.owner(0).tells_first = true;
  std::vector<std::pair<wire::OwnerNumber, SlotId>> to_bar;
  EXPECT_EQ(directory_.List(Item(1, 8), 1, 1, to_bar), Code::kInProgress) << "a later master";
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kOk);
  EXPECT_FALSE(Overtaken(0)) << "it tells everything as it is, and need not begin again";
  SetLive(1, false);
  EXPECT_EQ(List(Item(1, 7), 0, 2), Code::kExists);
  SetLive(1, true);
  // What it has told again stands, as it gets a lease with it.
  ASSERT_EQ(List(Item(2, 7), 0, 2), Code::kOk);
  EXPECT_EQ(List(Item(2, 8), 1, 1), Code::kExists);
  SetPresent(0, false);
  EXPECT_EQ(List(Item(2, 8), 1, 1), Code::kOk);
  EXPECT_TRUE(Overtaken(0));
}

TEST_F(DirectoryTest, AnOwnerThatGoesAwayWhileItTellsAgainIsOvertaken) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetEpoch(0, 2);
  SetLive(0, false);
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kOk);
  EXPECT_TRUE(Overtaken(0));
}

TEST_F(DirectoryTest, AKeyHasOneValueAndItsReplicas) {
  EXPECT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kExists);
  EXPECT_EQ(List(Item(1, 7), 1, 1), Code::kOk);
  const wire::Place place = directory_.Find(0, Hash(1));
  EXPECT_EQ((std::set{place.owner, place.second}), (std::set<wire::OwnerNumber>{0, 1}));
  EXPECT_EQ(directory_.HoldersOf(0, Hash(1)).size(), 2U);
}

TEST_F(DirectoryTest, ReplicasAreFoundAfterSweepsAndAmongMany) {
  for (std::uint64_t key = 0; key < 20'000; ++key) ASSERT_EQ(List(Item(key, 7), 0, 1), Code::kOk);
  for (std::uint64_t key = 0; key < 20'000; key += 100) {
    ASSERT_EQ(List(Item(key, 7), 1, 1), Code::kOk);
  }
  const auto expect_all = [&] {
    for (std::uint64_t key = 0; key < 20'000; ++key) {
      const wire::Place place = directory_.Find(0, Hash(key));
      EXPECT_EQ(place.owner == wire::kNoOwner, false) << key;
      EXPECT_EQ(place.second != wire::kNoOwner, key % 100 == 0) << key;
    }
  };
  expect_all();
  for (std::size_t i = 0; i < Directory::kShards; ++i) directory_.SweepNext();
  expect_all();
}

TEST_F(DirectoryTest, EntriesOfOldEpochsAndGenerationsDoNotCount) {
  ASSERT_EQ(List(Item(1), 0, 1), Code::kOk);
  SetLive(0, false);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kOwnerGone);
  SetLive(0, true);
  EXPECT_EQ(Holder(1), 0);
  SetEpoch(0, 2);
  EXPECT_EQ(Holder(1), wire::kNoOwner);
  standings_.owner(0).told_epoch = 2;
  EXPECT_EQ(List(Item(1, 99), 1, 1), Code::kOk) << "the old value is nowhere";
  SetGeneration(6);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kReset);
  EXPECT_EQ(List(Item(1, 100), 1, 1), Code::kStale);
  EXPECT_EQ(List(Item(1, 100, 6), 0, 2), Code::kOk);
}

TEST_F(DirectoryTest, EntriesAndBytesAreThoseOfTheCurrentGenerationWhetherTheEarlierIsSwept) {
  const auto sized = [](wire::ListItem item, std::uint32_t size_bytes) {
    item.size_bytes = size_bytes;
    return item;
  };
  ASSERT_EQ(List(Item(1), 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(2), 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(1), 1, 1), Code::kOk);
  EXPECT_EQ(directory_.BytesOf(0), 300U) << "each copy counts";
  EXPECT_EQ(directory_.CurrentOf(0), 3U);
  ASSERT_EQ(List(sized(Item(2), 40), 0, 1), Code::kOk);
  EXPECT_EQ(directory_.BytesOf(0), 240U) << "its owner has listed another size";
  ASSERT_TRUE(directory_.Unlist(0, Hash(2), 0));
  EXPECT_EQ(directory_.BytesOf(0), 200U);
  EXPECT_EQ(directory_.CurrentOf(0), 2U);
  EXPECT_EQ(directory_.BytesOf(1), 0U);
  SetGeneration(6);
  EXPECT_EQ(directory_.BytesOf(0), 0U);
  EXPECT_EQ(directory_.CurrentOf(0), 0U);
  EXPECT_EQ(directory_.EntriesOf(0), 2U) << "they have their places until a sweep";
  ASSERT_EQ(List(Item(3, 1, 6), 0, 1), Code::kOk);
  for (std::size_t i = 0; i < Directory::kShards; ++i) directory_.SweepNext();
  EXPECT_EQ(directory_.EntriesOf(0), 1U);
  EXPECT_EQ(directory_.CurrentOf(0), 1U);
  EXPECT_EQ(directory_.BytesOf(0), 100U) << "the sweep has taken nothing off the new generation's";
}

TEST_F(DirectoryTest, SlicesThatAnotherShardHasTakeTheirBytesWithThem) {
  for (std::uint64_t key = 0; key < 100; ++key) ASSERT_EQ(List(Item(key), 0, 1), Code::kOk);
  Directory::Slices half;
  for (std::size_t slice = 0; slice < half.size(); slice += 2) half.set(slice);
  std::vector<wire::ShardEntry> moved;
  for (std::size_t i = 0; i < Directory::kShards; ++i) {
    directory_.CopySlices(i, half, moved);
    directory_.ForgetSlices(i, half);
  }
  ASSERT_GT(moved.size(), 0U);
  ASSERT_LT(moved.size(), 100U);
  EXPECT_EQ(directory_.EntriesOf(0), 100 - moved.size());
  EXPECT_EQ(directory_.BytesOf(0), 100 * (100 - moved.size()));
  for (const wire::ShardEntry& entry : moved) directory_.LoadEntry(entry);
  EXPECT_EQ(directory_.BytesOf(0), 10'000U);
}

TEST_F(DirectoryTest, AnEntryThatWasLoadedBeforeItsGenerationTakesNoOthersBytes) {
  ASSERT_EQ(List(Item(1), 0, 1), Code::kOk);
  directory_.LoadEntry(
      {.hash = Hash(2), .generation = 6, .size_bytes = 1000, .group = 1, .owner = 0, .epoch = 1});
  SetGeneration(6);
  ASSERT_EQ(List(Item(3, 1, 6), 0, 1), Code::kOk);
  ASSERT_TRUE(directory_.Unlist(0, Hash(2), 0));
  EXPECT_LE(directory_.BytesOf(0), 100U);
}

TEST_F(DirectoryTest, AnAbsentOwnersValueBlocksNoOther) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetLive(0, false);
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kOk);
  EXPECT_TRUE(Overtaken(0)) << "it cannot come back unnoticed";
  EXPECT_EQ(Holder(1), 1);
  EXPECT_EQ(List(Item(1, 9), 2, 1), Code::kExists) << "1 is live";
  EXPECT_FALSE(Overtaken(1));
}

TEST_F(DirectoryTest, AReplicaOfAnAbsentOwnersValueOvertakesNobody) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetLive(0, false);
  EXPECT_EQ(List(Item(1, 7), 1, 1), Code::kOk);
  EXPECT_FALSE(Overtaken(0));
}

// It lists what is on its disk, and has yet to hear of a removal by pattern that took it.
TEST_F(DirectoryTest, WhatAnOwnerHidesIsNotFound) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(2, 7), 1, 1), Code::kOk);
  standings_.SetHidden(0, {3, 0});
  EXPECT_EQ(Holder(1), wire::kNoOwner);
  EXPECT_TRUE(directory_.HoldersOf(0, Hash(1)).empty());
  EXPECT_EQ(Holder(2), 1) << "another owner hides nothing";
  standings_.SetHidden(0, {3});
  EXPECT_EQ(Holder(1), 0);
  standings_.SetHidden(0, {});
  EXPECT_EQ(Holder(1), 0);
}

TEST_F(DirectoryTest, AnOwnerThatComesBackFirstKeepsItsValue) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  clock_.AdvanceNs(2 * kSecond);
  SetLive(1, true);
  SetPresent(0, true);  // a renewal, before it looks whether it was overtaken
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kExists);
  EXPECT_FALSE(Overtaken(0));
}

TEST_F(DirectoryTest, ARenewalBetweenTheTwoLooksOfAListingIsSeenByOneOfThem) {
  clock_.AdvanceNs(2 * kSecond);
  EXPECT_TRUE(standings_.Overtake(0)) << "it is absent: its next renewal finds the mark";
  EXPECT_TRUE(Overtaken(0));
  SetPresent(1, true);
  EXPECT_FALSE(standings_.Overtake(1)) << "it has come back: the listing is refused";
}

TEST_F(DirectoryTest, AnOwnerThatTellsItsInventoryKeepsWhatItHasListed) {
  SetLive(0, false);
  SetPresent(0, true);
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  EXPECT_EQ(List(Item(1, 8), 1, 1), Code::kExists);
}

TEST_F(DirectoryTest, AValueThatGaveWayDoesNotComeBackWithItsOwner) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetLive(0, false);
  ASSERT_EQ(List(Item(1, 8), 1, 1), Code::kOk);
  directory_.Unlist(0, Hash(1), 1);  // the newer value is evicted
  // The owner is there again, first with what it remembers, then after a hello with its inventory;
  // the answer to that may be lost.
  for (const std::uint32_t epoch : {1U, 2U, 2U, 3U}) {
    SetEpoch(0, epoch);
    EXPECT_EQ(Holder(1), wire::kNoOwner);
    EXPECT_EQ(List(Item(1, 7), 0, epoch), Code::kExists);
    EXPECT_EQ(Holder(1), wire::kNoOwner);
    EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kEvicted) << "the newer value was";
  }
  EXPECT_EQ(List(Item(1, 9), 0, 3), Code::kOk) << "another put";
  EXPECT_EQ(Holder(1), 0);
}

TEST_F(DirectoryTest, NorDoesAValueThatWasNotToldAgainYet) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  SetEpoch(0, 2);  // said hello, and has no lease
  standings_.owner(0).tells_first = true;
  // Its shard grows meanwhile, and many others with it.
  for (std::uint64_t key = 100; key < 100'000; ++key) {
    ASSERT_EQ(List(Item(key), 1, 1), Code::kOk);
  }
  ASSERT_EQ(List(Item(1, 8), 1, 1), Code::kOk);
  directory_.Unlist(0, Hash(1), 1);
  EXPECT_EQ(List(Item(1, 7), 0, 2), Code::kExists);
}

TEST_F(DirectoryTest, WhatGaveWayIsForgottenWhenItsOwnerHasToldAll) {
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_EQ(List(Item(key, 7), 0, 1), Code::kOk);
  }
  SetLive(0, false);
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_EQ(List(Item(key, 8), 1, 1), Code::kOk);
  }
  EXPECT_EQ(directory_.entries(), 2000U);
  SetEpoch(0, 2);
  standings_.owner(0).told_epoch = 2;
  for (std::uint64_t key = 1000; key < 200'000; ++key) {
    ASSERT_EQ(List(Item(key, 9), 0, 2), Code::kOk);
  }
  EXPECT_LT(directory_.entries(), 200'100U);
}

TEST_F(DirectoryTest, ANumberOfAnotherMemoryMayListNothingAgain) {
  const auto may = [&](std::uint32_t listed_under) {
    return standings_.MayListAgain(0, listed_under);
  };
  SetEpoch(0, 3);
  EXPECT_TRUE(may(1));
  standings_.owner(0).told_epoch = 2;
  EXPECT_FALSE(may(1)) << "all was told since";
  EXPECT_TRUE(may(2)) << "it tells again under 3";
  standings_.owner(0).first_epoch = 3;
  standings_.owner(0).told_epoch = 0;
  EXPECT_FALSE(may(2)) << "that was another process";
  standings_.owner(0).epoch = 0;
  EXPECT_FALSE(may(3)) << "it has ended";
  standings_.owner(0).first_epoch = 0xFFFFFFFE;
  standings_.owner(0).epoch = 2;
  EXPECT_TRUE(may(0xFFFFFFFF)) << "epochs wrap";
  EXPECT_FALSE(may(0xFFFFFFFD));
}

// ---- slots and reasons

TEST_F(DirectoryTest, AKeyWithAnotherSlotsHashIsAnotherKey) {
  ASSERT_EQ(List(InSlot(3, Item(1, 7)), 0, 1), Code::kOk);
  ASSERT_EQ(List(InSlot(4, Item(1, 8)), 0, 1), Code::kOk);
  directory_.Remove(4, Hash(1));
  EXPECT_EQ(directory_.Find(3, Hash(1)).owner, 0) << "another tenant's removal";
  EXPECT_EQ(directory_.Find(4, Hash(1)).reason, MissReason::kRemoved);
  ASSERT_EQ(List(InSlot(4, Item(1, 8)), 0, 1), Code::kOk);
  directory_.Unlist(4, Hash(1), 0);
  EXPECT_EQ(directory_.Find(3, Hash(1)).owner, 0);
  directory_.Unlist(3, Hash(1), 0);
  EXPECT_EQ(directory_.Find(3, Hash(1)).reason, MissReason::kEvicted);
  EXPECT_EQ(directory_.Find(5, Hash(1)).reason, MissReason::kNeverPut)
      << "a tenant learns what another one had";
}

TEST_F(DirectoryTest, TellsWhyAKeyIsGone) {
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kNeverPut);
  List(Item(1), 0, 1);
  directory_.Unlist(0, Hash(1), 1);  // not its owner
  EXPECT_EQ(Holder(1), 0);
  directory_.Unlist(0, Hash(1), 0);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kEvicted);
  List(Item(2), 0, 1);
  directory_.Remove(0, Hash(2));
  EXPECT_EQ(directory_.Find(0, Hash(2)).reason, MissReason::kRemoved);
}

TEST_F(DirectoryTest, AnOwnerThatIsAwayOutweighsAValueOfAnEarlierGeneration) {
  ASSERT_EQ(List(Item(1, 7), 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(1, 7), 1, 1), Code::kOk);
  SetGeneration(6);
  ASSERT_EQ(List(Item(1, 7, 6), 0, 1), Code::kOk);
  SetLive(0, false);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kOwnerGone);
}

TEST_F(DirectoryTest, ARemovalTakesWhatAnOwnerHasThatIsAway) {
  for (const std::uint64_t key : {1, 2, 3, 4}) ASSERT_EQ(List(Item(key), 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(5), 1, 1), Code::kOk);
  EXPECT_TRUE(directory_.Remove(0, Hash(1), 5));
  EXPECT_FALSE(directory_.Remove(0, Hash(1), 5)) << "it is gone";
  SetLive(0, false);
  EXPECT_TRUE(directory_.Remove(0, Hash(2), 5)) << "it would come back with its owner";
  SetLive(0, true);
  standings_.SetHidden(0, {0});
  EXPECT_TRUE(directory_.Remove(0, Hash(3), 5));
  EXPECT_FALSE(directory_.Remove(0, Hash(4), 4)) << "another generation";
  SetEpoch(1, 2);
  standings_.owner(1).first_epoch = 2;
  EXPECT_FALSE(directory_.Remove(0, Hash(5), 5)) << "its owner has started anew";
  SetGeneration(6);
  EXPECT_FALSE(directory_.Remove(0, Hash(4), 5)) << "a reset voided it";
}

// ---- all of it

TEST_F(DirectoryTest, AgreesWithAMapOverRandomEvents) {
  Random random(11);
  std::map<std::uint64_t, std::map<wire::OwnerNumber, std::uint32_t>> model;  // key -> owner, group
  for (int step = 0; step < 300'000; ++step) {
    const std::uint64_t key = random.Below(20'000);
    const auto owner = static_cast<wire::OwnerNumber>(random.Below(3));
    const auto group = static_cast<std::uint32_t>(1 + random.Below(2));
    switch (random.Below(4)) {
      case 0:
      case 1: {
        bool other = false;
        for (const auto& [held_by, held] : model[key]) {
          other = other || (held_by != owner && held != group);
        }
        ASSERT_EQ(List(Item(key, group), owner, 1), other ? Code::kExists : Code::kOk);
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
    ASSERT_EQ(List(Item(key), 0, 1), Code::kOk);
  }
  EXPECT_LE(directory_.bytes() / 1'000'000, 96U);
}

TEST_F(DirectoryTest, AMissSaysThatTheDiskIsAwayWhereItsOwnerIsThere) {
  SetEpoch(0, 1);
  wire::ListItem item = Item(1);
  item.tier = Tier::kDisk;
  ASSERT_EQ(List(item, 0, 1), Code::kOk);
  ASSERT_EQ(List(Item(2), 0, 1), Code::kOk);
  standings_.owner(0).disk_away = true;
  SetEpoch(0, 2);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kDiskFailed);
  EXPECT_EQ(directory_.Find(0, Hash(2)).reason, MissReason::kOwnerGone) << "not told yet";
  SetLive(0, false);
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kOwnerGone);
  // Also once the entry is swept.
  SetLive(0, true);
  standings_.owner(0).told_epoch = 2;
  for (std::size_t i = 0; i < Directory::kShards; ++i) directory_.SweepNext();
  EXPECT_EQ(directory_.Find(0, Hash(1)).reason, MissReason::kDiskFailed);
}

}  // namespace
}  // namespace kvcove::master
