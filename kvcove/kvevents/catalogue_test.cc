// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/catalogue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>

namespace kvcove::kvevents {
namespace {

constexpr SlotId kSlot = 1;

// What a router makes of events.
class Index {
 public:
  void Take(const std::vector<Event>& events) {
    for (const Event& event : events) {
      EXPECT_LE(event.hashes.size(), Event::kMostHashes);
      if (event.kind == Event::Kind::kCleared) blocks_.clear();
      for (const BlockHash& hash : event.hashes) {
        const auto block = std::tuple(event.medium, event.group, hash.AsNumber());
        if (event.kind == Event::Kind::kStored) {
          EXPECT_TRUE(blocks_.insert(block).second) << "stored twice";
        } else {
          EXPECT_EQ(blocks_.erase(block), 1U) << "removed, and not there";
        }
      }
    }
  }
  bool Has(Medium medium, std::uint64_t hash, std::uint32_t group = 0) const {
    return blocks_.contains(std::tuple(medium, group, hash));
  }
  std::size_t size() const { return blocks_.size(); }
  bool operator==(const Index&) const = default;

 private:
  std::set<std::tuple<Medium, std::uint32_t, std::uint64_t>> blocks_;
};

class CatalogueTest : public testing::Test {
 protected:
  CatalogueTest() { catalogue_.SetSlot(kSlot, 100, /*shown=*/true); }
  void Hear() { index_.Take(catalogue_.TakeEvents()); }
  bool InMemory(std::uint64_t hash, std::uint32_t group = 0) {
    Hear();
    return index_.Has(Medium::kMemory, hash, group);
  }
  bool OnDisk(std::uint64_t hash, std::uint32_t group = 0) {
    Hear();
    return index_.Has(Medium::kDisk, hash, group);
  }

  Catalogue catalogue_{1 << 16};
  Index index_;
};

TEST_F(CatalogueTest, ABlockIsToldWhenItIsStoredAndWhenItIsEvicted) {
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  EXPECT_TRUE(InMemory(7));
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  EXPECT_TRUE(catalogue_.TakeEvents().empty());
  catalogue_.DropMemory(kSlot, "g0.h0of1@07");
  EXPECT_FALSE(InMemory(7));
  EXPECT_EQ(catalogue_.blocks(), 0U);
}

TEST_F(CatalogueTest, ABlockOfSeveralRanksIsThereWhileAllOfItsPartsAre) {
  catalogue_.PutMemory(kSlot, "g0.h0of2@07");
  EXPECT_FALSE(InMemory(7));
  catalogue_.PutMemory(kSlot, "g0.h1of2@07");
  EXPECT_TRUE(InMemory(7));
  catalogue_.DropMemory(kSlot, "g0.h0of2@07");
  EXPECT_FALSE(InMemory(7));
}

TEST_F(CatalogueTest, GroupsOfAHybridModelAreToldApart) {
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  catalogue_.PutMemory(kSlot, "g1.h0of1@07");
  EXPECT_TRUE(InMemory(7, 0));
  EXPECT_TRUE(InMemory(7, 1));
  catalogue_.DropMemory(kSlot, "g1.h0of1@07");
  EXPECT_TRUE(InMemory(7, 0));
  EXPECT_FALSE(InMemory(7, 1));
}

TEST_F(CatalogueTest, ABlockThatMovesToADiskIsAlwaysSomewhere) {
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  Hear();
  catalogue_.PutDisk(kSlot, "g0.h0of1@07", /*tag=*/70);
  catalogue_.DropMemory(kSlot, "g0.h0of1@07");
  const std::vector<Event> events = catalogue_.TakeEvents();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Event::Kind::kStored);
  EXPECT_EQ(events[0].medium, Medium::kDisk);
  EXPECT_EQ(events[1].kind, Event::Kind::kRemoved);
  EXPECT_EQ(events[1].medium, Medium::kMemory);
  index_.Take(events);
  catalogue_.DropDisk(70);
  EXPECT_FALSE(OnDisk(7));
  EXPECT_EQ(catalogue_.blocks(), 0U);
}

TEST_F(CatalogueTest, PartsInMemoryAndOnADiskTogetherCountForTheDisk) {
  catalogue_.PutMemory(kSlot, "g0.h0of2@07");
  catalogue_.PutDisk(kSlot, "g0.h1of2@07", 71);
  EXPECT_FALSE(InMemory(7));
  EXPECT_TRUE(OnDisk(7));
  catalogue_.DropDisk(71);
  EXPECT_FALSE(OnDisk(7));
}

TEST_F(CatalogueTest, AResetRemovesTheBlocksOfItsSlotAtOnce) {
  catalogue_.SetSlot(2, 200, true);
  for (const SlotId slot : {kSlot, SlotId{2}}) catalogue_.PutMemory(slot, "g0.h0of1@07");
  catalogue_.PutMemory(kSlot, "g0.h0of1@08");
  catalogue_.PutDisk(kSlot, "g0.h0of1@09", 90);
  catalogue_.SetSlot(kSlot, 101, true);
  EXPECT_TRUE(InMemory(7)) << "another namespace has it still";
  EXPECT_FALSE(InMemory(8));
  EXPECT_FALSE(OnDisk(9));
  // What the janitor sweeps later must not touch a value of the new generation.
  catalogue_.PutDisk(kSlot, "g0.h0of1@09", 91);
  catalogue_.DropDisk(90);
  EXPECT_TRUE(OnDisk(9));
}

// A prune of thousands of versions comes as one change of a slot after the other.
TEST_F(CatalogueTest, ManySlotsThatChangeTogetherCostOnePass) {
  constexpr SlotId kSlots = 100;
  for (SlotId slot = 1; slot <= kSlots; ++slot) {
    catalogue_.SetSlot(slot, 100, true);
    catalogue_.PutMemory(slot, "g0.h0of1@" + std::to_string(1000 + slot));
  }
  Hear();
  EXPECT_EQ(catalogue_.blocks(), kSlots);
  const std::uint64_t before = catalogue_.swept();
  for (SlotId slot = 1; slot <= kSlots; ++slot) catalogue_.SetSlot(slot, 101, true);
  catalogue_.PutMemory(1, "g0.h0of1@" + std::to_string(1001));
  std::size_t removed = 0;
  for (const Event& event : catalogue_.TakeEvents()) {
    EXPECT_EQ(event.kind, Event::Kind::kRemoved);
    removed += event.hashes.size();
  }
  EXPECT_EQ(removed, kSlots - 1U) << "one is there again";
  EXPECT_EQ(catalogue_.blocks(), 1U);
  EXPECT_EQ(catalogue_.swept() - before, kSlots);
  EXPECT_TRUE(catalogue_.TakeEvents().empty());
  EXPECT_EQ(catalogue_.swept() - before, kSlots) << "nothing has changed";
}

TEST_F(CatalogueTest, BlocksThatAResetEndedKeepNoOthersOut) {
  Catalogue small(2);
  small.SetSlot(kSlot, 100, true);
  small.PutMemory(kSlot, "g0.h0of1@01");
  small.PutMemory(kSlot, "g0.h0of1@02");
  small.SetSlot(kSlot, 101, true);
  small.PutMemory(kSlot, "g0.h0of1@03");
  EXPECT_EQ(small.left_out(), 0U);
  // The same for the values of one block.
  const std::string key = "g0.h0of1@03+";
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < Catalogue::kMostValues; ++i) {
      small.PutMemory(kSlot, key + std::to_string(i));
    }
    EXPECT_EQ(small.left_out(), 1U) << "beside the one without an adapter";
    small.SetSlot(kSlot, 102 + static_cast<Generation>(round), true);
  }
}

TEST_F(CatalogueTest, BlocksOfWeightsThatNoEngineUsesAreNotTold) {
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  catalogue_.SetSlot(kSlot, 100, /*shown=*/false);
  EXPECT_FALSE(InMemory(7));
  catalogue_.PutMemory(kSlot, "g0.h0of1@08");
  EXPECT_FALSE(InMemory(8));
  catalogue_.SetSlot(kSlot, 100, true);
  EXPECT_TRUE(InMemory(7));
  EXPECT_TRUE(InMemory(8));
}

TEST_F(CatalogueTest, BlocksBeyondTheBoundAreLeftOutAndCounted) {
  Catalogue small(2);
  small.SetSlot(kSlot, 100, true);
  for (const char* const key : {"g0.h0of1@01", "g0.h0of1@02", "g0.h0of1@03"}) {
    small.PutMemory(kSlot, key);
  }
  EXPECT_EQ(small.blocks(), 2U);
  EXPECT_EQ(small.left_out(), 1U);
  small.DropMemory(kSlot, "g0.h0of1@03");
  small.DropMemory(kSlot, "g0.h0of1@01");
  small.PutMemory(kSlot, "g0.h0of1@03");
  EXPECT_EQ(small.blocks(), 2U);
}

TEST_F(CatalogueTest, KeysOfOtherFormsAreCounted) {
  catalogue_.PutMemory(kSlot, "a key");
  EXPECT_EQ(catalogue_.foreign(), 1U);
  EXPECT_TRUE(catalogue_.TakeEvents().empty());
}

TEST_F(CatalogueTest, ClearNamesEachBlockAndThenAll) {
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  Hear();
  catalogue_.Clear();
  const std::vector<Event> events = catalogue_.TakeEvents();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Event::Kind::kRemoved);
  EXPECT_EQ(events[1].kind, Event::Kind::kCleared);
  catalogue_.PutMemory(kSlot, "g0.h0of1@07");
  EXPECT_EQ(catalogue_.blocks(), 0U) << "the slot is not known any more";
}

TEST_F(CatalogueTest, ADiskThatIsSetAsideLosesItsBlocks) {
  catalogue_.PutDisk(kSlot, "g0.h0of1@07", 70);
  catalogue_.PutDisk(kSlot, "g0.h0of1@08", 80);
  Hear();
  catalogue_.VerifyDisks([](std::uint64_t tag) { return tag == 80; });
  EXPECT_FALSE(OnDisk(7));
  EXPECT_TRUE(OnDisk(8));
}

// Against a model: after any calls a router's index is what the rules say, and so is that of one
// that begins with a snapshot.
TEST_F(CatalogueTest, AnIndexOfEventsAloneIsWhatThereIs) {
  std::mt19937 random(7);
  std::map<std::tuple<SlotId, int, int>, int> have;  // slot, hash, part: 1 memory, 2 disk
  std::map<SlotId, std::pair<Generation, bool>> slots{{1, {100, true}}};
  const auto key = [](int hash, int part) {
    return "g0.h" + std::to_string(part) + "of2@0" + std::to_string(hash);
  };
  const auto tag = [&](SlotId slot, int hash, int part) {
    return slots[slot].first * 1000 + static_cast<std::uint64_t>(hash * 10 + part);
  };
  Generation next = 200;
  for (int step = 0; step < 20'000; ++step) {
    const auto slot = static_cast<SlotId>(1 + random() % 2);
    const int hash = static_cast<int>(random() % 8);
    const int part = static_cast<int>(random() % 2);
    auto& [generation, shown] = slots[slot];
    int& state = have[{slot, hash, part}];
    switch (random() % 20) {
      case 0:
        generation = ++next;
        for (auto& [id, value] : have) value = std::get<0>(id) == slot ? 0 : value;
        catalogue_.SetSlot(slot, generation, shown);
        break;
      case 1:
        shown = !shown;
        catalogue_.SetSlot(slot, generation, shown);
        break;
      default:
        if (generation == 0) break;
        switch (random() % 4) {
          case 0:
            state |= 1;
            catalogue_.PutMemory(slot, key(hash, part));
            break;
          case 1:
            state &= ~1;
            catalogue_.DropMemory(slot, key(hash, part));
            break;
          case 2:
            state |= 2;
            catalogue_.PutDisk(slot, key(hash, part), tag(slot, hash, part));
            break;
          default:
            state &= ~2;
            catalogue_.DropDisk(tag(slot, hash, part));
        }
    }
    if (step % 100 != 0 && random() % 3 != 0) continue;  // several changes are taken together
    for (int block = 0; block < 8; ++block) {
      bool memory = false;
      bool disk = false;
      for (const auto& [number, of] : slots) {
        const int first = have[{number, block, 0}];
        const int second = have[{number, block, 1}];
        if (!of.second) continue;
        memory = memory || (first & second & 1) != 0;
        disk = disk || (first != 0 && second != 0 && ((first | second) & 2) != 0);
      }
      ASSERT_EQ(InMemory(block), memory) << step;
      ASSERT_EQ(OnDisk(block), disk) << step;
    }
    if (step % 100 != 0) continue;
    Index late;
    late.Take(catalogue_.Snapshot());
    ASSERT_EQ(late, index_) << step;
  }
}

TEST_F(CatalogueTest, ABlockOfManyAdaptersHasABound) {
  const std::string key = "g0.h0of1@0000000000000007+";
  for (std::size_t i = 0; i < Catalogue::kMostValues + 10; ++i) {
    catalogue_.PutMemory(kSlot, key + std::to_string(i));
  }
  EXPECT_EQ(catalogue_.left_out(), 10U);
  EXPECT_TRUE(InMemory(7));
  catalogue_.DropMemory(kSlot, key + std::to_string(Catalogue::kMostValues));
  EXPECT_TRUE(InMemory(7)) << "one that was left out takes nothing with it";
  for (std::size_t i = 0; i < Catalogue::kMostValues; ++i) {
    catalogue_.DropMemory(kSlot, key + std::to_string(i));
  }
  EXPECT_FALSE(InMemory(7));
  EXPECT_EQ(catalogue_.blocks(), 0U);
}

}  // namespace
}  // namespace kvcove::kvevents
