// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/directory/directory_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace kvcove::master {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr SlotId kServedSlot = 3;
constexpr std::uint64_t kFirst = 4ULL << 40;

class DirectoryServiceTest : public testing::Test {
 protected:
  DirectoryServiceTest() {
    standings_.SetSlot({.slot = kServedSlot, .generation = 5, .name = QualifiedName("acme", "m")});
    for (wire::OwnerNumber owner = 0; owner < 40; ++owner) Welcome(owner, 1);
  }
  void Welcome(wire::OwnerNumber owner, std::uint32_t epoch) {
    Standings::Owner& of = standings_.owner(owner);
    if (of.first_epoch == 0) of.first_epoch = epoch;
    of.epoch = epoch;
    of.live_until_ns = clock_.NowNs() + 1000 * kSecond;
    of.present_until_ns = clock_.NowNs() + 1000 * kSecond;
  }
  static wire::ListItem Item(const std::string& key, std::uint64_t removals = kFirst,
                             std::uint64_t copied_at = 0) {
    return {.hash = DirectoryHash(kServedSlot, key),
            .generation = 5,
            .size_bytes = 10,
            .group = 1,
            .slot = kServedSlot,
            .removals = removals,
            .copied_at = copied_at};
  }
  static wire::ListItem Gone(const std::string& key) {
    wire::ListItem item = Item(key);
    item.gone = true;
    return item;
  }
  static wire::ListItem Told(const std::string& key) {
    wire::ListItem item = Item(key);
    item.inventory = true;
    return item;
  }
  Result<wire::ListReply> List(std::vector<wire::ListItem> items, std::uint64_t sequence,
                               wire::OwnerNumber owner = 0, std::uint32_t epoch = 1,
                               std::span<const SlotId> drops = {}, std::uint64_t applied = 0) {
    DirectoryService::OwnerSlots to_bar;
    const wire::ListRequest request{.number = owner,
                                    .epoch = epoch,
                                    .sequence = sequence,
                                    .applied = applied,
                                    .items = std::move(items)};
    while (true) {
      to_bar.clear();
      auto reply = service_.List(request, drops, to_bar);
      if (reply || reply.error().code != Code::kInProgress) return reply;
      // As the master does, once the store holds the barriers.
      for (const auto& [number, slot] : to_bar) standings_.SetBarred(number, slot, true);
    }
  }
  bool Found(const std::string& key) const {
    return service_.Find(kServedSlot, key).owner != wire::kNoOwner;
  }

  FakeClock clock_;
  Standings standings_{clock_};
  DirectoryService service_{
      {.first_removal = kFirst, .inventory_batch = 4096, .tellers = 16}, standings_, clock_};
};

// ---- prefixes

class PrefixTest : public DirectoryServiceTest {
 protected:
  PrefixShares Prefix(const std::vector<std::string>& keys) const {
    std::vector<Id128> hashes;
    for (const std::string& key : keys) hashes.push_back(DirectoryHash(kServedSlot, key));
    PrefixCount count;
    service_.CountPrefix(kServedSlot, hashes, count);
    return count.Shares();
  }
};

TEST_F(PrefixTest, EachOwnerHasItsPart) {
  wire::ListItem on_disk = Item("b");
  on_disk.tier = Tier::kDisk;
  ASSERT_TRUE(List({Item("a"), Item("b"), Item("d")}, 1, /*owner=*/2));
  ASSERT_TRUE(List({Item("a"), on_disk, Item("c")}, 1, /*owner=*/5));
  const PrefixShares shares = Prefix({"a", "b", "c", "d", "e"});
  EXPECT_EQ(shares.keys, 4U);
  EXPECT_EQ(shares.reason, MissReason::kNeverPut);
  EXPECT_THAT(
      shares.owners,
      ElementsAre(
          PrefixShare{.owner = 5, .prefix = 3, .memory_prefix = 1, .memory = 2, .disk = 1},
          PrefixShare{.owner = 2, .prefix = 2, .memory_prefix = 2, .memory = 3, .disk = 0}));
  EXPECT_EQ(service_.lookups(), 0U) << "nobody wants the values";
  EXPECT_FALSE(service_.Why(kServedSlot, "e"));
  EXPECT_EQ(Prefix({"a", "b"}).reason, MissReason::kNone) << "each key has an owner";
}

TEST_F(PrefixTest, AnOwnerThatIsAwayHasNothing) {
  ASSERT_TRUE(List({Item("a"), Item("b")}, 1, /*owner=*/2));
  ASSERT_TRUE(List({Item("a")}, 1, /*owner=*/5));
  standings_.owner(2).live_until_ns = clock_.NowNs() - 1;
  const PrefixShares shares = Prefix({"a", "b"});
  EXPECT_EQ(shares.keys, 1U);
  EXPECT_EQ(shares.reason, MissReason::kOwnerGone);
  ASSERT_EQ(shares.owners.size(), 1U);
  EXPECT_EQ(shares.owners.front().owner, 5U);
}

TEST_F(PrefixTest, APrefixEndsWhereAnotherShardKnowsMore) {
  ASSERT_TRUE(List({Item("a")}, 1));
  for (const wire::SliceState state : {wire::SliceState::kNone, wire::SliceState::kLeft}) {
    service_.SetSlices(std::vector(wire::kSlices, state), 2);
    EXPECT_EQ(Prefix({"b"}).reason, MissReason::kShardAway);
  }
}

// Many more entries than one hold of the lock covers.
TEST_F(PrefixTest, ALongPrefixOfManyOwnersIsCountedWhole) {
  std::vector<std::string> keys;
  std::vector<wire::ListItem> items;
  for (int i = 0; i < 3000; ++i) {
    keys.push_back("key" + std::to_string(i));
    items.push_back(Item(keys.back()));
  }
  for (wire::OwnerNumber owner = 0; owner < 7; ++owner) ASSERT_TRUE(List(items, 1, owner));
  const PrefixShares shares = Prefix(keys);
  EXPECT_EQ(shares.keys, 3000U);
  ASSERT_EQ(shares.owners.size(), 7U);
  for (const PrefixShare& share : shares.owners) EXPECT_EQ(share.memory_prefix, 3000U);
}

// ---- saves under way

class SavesTest : public DirectoryServiceTest {
 protected:
  // What a connection says of a key.
  void Note(const std::string& key, SaveNotice notice, std::uint64_t connection = 1) {
    const Id128 hash = DirectoryHash(kServedSlot, key);
    (void)service_.NoteSaves(connection, kToken, {&hash, 1}, notice);
  }
  bool UnderWay(const std::string& key, Generation generation = kToken.generation) {
    const Id128 hash = DirectoryHash(kServedSlot, key);
    return service_.Lookup(kServedSlot, {&hash, 1}, generation).front().under_way;
  }
  static constexpr Token kToken{.generation = 5, .slot = kServedSlot};
};

TEST_F(SavesTest, AnAnnouncedKeyIsUnderWayUntilItIsListed) {
  EXPECT_FALSE(UnderWay("a"));
  Note("a", SaveNotice::kBegin);
  EXPECT_TRUE(UnderWay("a"));
  EXPECT_FALSE(UnderWay("b"));
  ASSERT_TRUE(List({Item("a")}, 1));
  EXPECT_FALSE(UnderWay("a")) << "it is there";
  ASSERT_TRUE(List({Gone("a")}, 2));
  EXPECT_FALSE(UnderWay("a")) << "it was evicted, and nobody saves it";
}

TEST_F(SavesTest, AStoredKeyIsNotAnnounced) {
  ASSERT_TRUE(List({Item("a")}, 1));
  Note("a", SaveNotice::kBegin);
  ASSERT_TRUE(List({Gone("a")}, 2));
  EXPECT_FALSE(UnderWay("a"));
}

TEST_F(SavesTest, AKeyOfAnotherShardIsNotAnnounced) {
  for (const wire::SliceState state : {wire::SliceState::kNone, wire::SliceState::kLeft}) {
    service_.SetSlices(std::vector(wire::kSlices, state), 2);
    Note("a", SaveNotice::kBegin);
    service_.SetSlices(std::vector(wire::kSlices, wire::SliceState::kServes), 2);
    EXPECT_FALSE(UnderWay("a"));
  }
}

TEST_F(SavesTest, ASaveEndsWithItsWriterItsTimeAndItsGeneration) {
  for (const std::string key : {"a", "b", "c"}) Note(key, SaveNotice::kBegin, key == "a" ? 1 : 2);
  Note("b", SaveNotice::kEnd, 2);
  EXPECT_FALSE(UnderWay("b")) << "it was dropped";
  service_.EndSaves(1);
  EXPECT_FALSE(UnderWay("a")) << "its connection has ended";
  EXPECT_TRUE(UnderWay("c"));
  EXPECT_FALSE(UnderWay("c", 6)) << "a reset came";
  clock_.AdvanceNs(2 * kSecond);
  EXPECT_FALSE(UnderWay("c"));
}

// ---- sequence numbers

TEST_F(DirectoryServiceTest, ARepeatedListingGetsTheSameAnswerAndIsDoneOnce) {
  ASSERT_THAT(List({Item("a")}, 1, 1)->codes, ElementsAre(Code::kOk));
  wire::ListItem other = Item("a");
  other.group = 2;
  EXPECT_THAT(List({other}, 1)->codes, ElementsAre(Code::kExists));
  service_.Remove(kServedSlot, 5, std::vector<std::string>{"a"}, kFirst + 1);
  EXPECT_THAT(List({other}, 1)->codes, ElementsAre(Code::kExists)) << "as it was answered";
  EXPECT_FALSE(Found("a"));
}

TEST_F(DirectoryServiceTest, AGapIsStaleAndDoesNothing) {
  ASSERT_TRUE(List({Item("a")}, 1));
  const auto gap = List({Item("b")}, 3);
  ASSERT_FALSE(gap);
  EXPECT_EQ(gap.error().code, Code::kStale);
  EXPECT_FALSE(Found("b"));
  EXPECT_FALSE(List({Item("b"), Item("c")}, 1)) << "another request under an old number";
  EXPECT_TRUE(List({Item("b")}, 2));
}

TEST_F(DirectoryServiceTest, AnEpochBeginsItsNumbersAnew) {
  ASSERT_TRUE(List({Item("a")}, 1));
  EXPECT_EQ(List({Item("b")}, 2, 0, 2).error().code, Code::kStale) << "no epoch of its";
  Welcome(0, 2);
  EXPECT_EQ(List({Item("b")}, 2, 0, 1).error().code, Code::kStale) << "an epoch that has ended";
  EXPECT_FALSE(List({Item("b")}, 2, 0, 2));
  EXPECT_TRUE(List({Item("b")}, 1, 0, 2));
}

// What another owner had of a key while a disk was away is younger than what the disk has of it.
TEST_F(DirectoryServiceTest, WhatReturnsWithADiskIsOlderThanWhatWentMeanwhile) {
  wire::ListItem mine = Told("a");
  mine.tier = Tier::kDisk;
  ASSERT_TRUE(List({mine}, 1));
  standings_.untold = 1;
  Welcome(0, 2);
  standings_.owner(0).told_epoch = 2;  // all but what lies on the disk
  wire::ListItem other = Item("a");
  other.group = 2;
  EXPECT_THAT(List({other}, 1, 1)->codes, ElementsAre(Code::kOk));
  other.gone = true;
  ASSERT_TRUE(List({other}, 2, 1));
  wire::ListItem untouched = Told("b");
  mine.returns = untouched.returns = true;
  EXPECT_THAT(List({mine, untouched}, 1, 0, 2)->codes, ElementsAre(Code::kExists, Code::kOk));
}

// The slice may have been elsewhere in between, where another value was put.
TEST_F(DirectoryServiceTest, WhatWentIsForgottenOnceAllIsTold) {
  standings_.untold = 1;
  ASSERT_TRUE(List({Item("k")}, 1));
  ASSERT_TRUE(List({Gone("k")}, 2));
  wire::ListItem other = Told("k");
  other.group = 2;
  EXPECT_THAT(List({other}, 1, 1)->codes, ElementsAre(Code::kExists));
  standings_.untold = 0;
  service_.Tick();
  standings_.untold = 1;
  EXPECT_THAT(List({other}, 2, 1)->codes, ElementsAre(Code::kOk));
}

TEST_F(DirectoryServiceTest, ASliceThatHasLeftIsFoundButNotCalledUnknown) {
  ASSERT_TRUE(List({Item("k")}, 1));
  service_.SetSlices(std::vector(wire::kSlices, wire::SliceState::kLeft), 2);
  const std::vector<Id128> hashes = {DirectoryHash(kServedSlot, "k"),
                                     DirectoryHash(kServedSlot, "new")};
  const auto places = service_.Lookup(kServedSlot, hashes);
  EXPECT_EQ(places[0].owner, 0);
  EXPECT_EQ(places[1].reason, MissReason::kShardAway);
  DirectoryService::OwnerSlots to_bar;
  const wire::ListRequest request{.number = 0, .epoch = 1, .sequence = 2, .items = {Item("new")}};
  EXPECT_EQ(service_.List(request, {}, to_bar).error().code, Code::kInProgress);
  const std::vector<std::pair<SlotId, Id128>> keys = {{kServedSlot, hashes[0]},
                                                      {kServedSlot, hashes[1]}};
  const auto held = service_.Held(keys);
  EXPECT_THAT(held[0].holders, ElementsAre(std::pair(wire::OwnerNumber{0}, Tier::kMemory)));
  EXPECT_EQ(held[1].reason, MissReason::kShardAway);
}

TEST_F(DirectoryServiceTest, NothingReturnsWithADiskOnceMoreWentThanIsRemembered) {
  standings_.untold = 1;
  std::uint64_t sequence = 0;
  for (int part = 0; part < 70; ++part) {
    std::vector<wire::ListItem> come;
    std::vector<wire::ListItem> go;
    for (int i = 0; i < 4000; ++i) {
      come.push_back(Item("x" + std::to_string(part * 4000 + i)));
      go.push_back(Gone("x" + std::to_string(part * 4000 + i)));
    }
    ASSERT_TRUE(List(std::move(come), ++sequence));
    ASSERT_TRUE(List(std::move(go), ++sequence));
  }
  wire::ListItem one = Told("a");
  EXPECT_THAT(List({one}, 1, 1)->codes, ElementsAre(Code::kOk)) << "it was not away";
  wire::ListItem returns = Told("b");
  returns.returns = true;
  EXPECT_THAT(List({returns}, 2, 1)->codes, ElementsAre(Code::kExists));
}

TEST_F(DirectoryServiceTest, AnOwnerNumberThatCannotBeIsCorrupt) {
  EXPECT_EQ(List({}, 1, wire::kMaxOwners).error().code, Code::kCorrupt);
}

TEST_F(DirectoryServiceTest, ALargeListingAndAllOfItsAnswersSurviveItsSlices) {
  std::vector<wire::ListItem> items;
  for (int i = 0; i < 5000; ++i) items.push_back(Item("k" + std::to_string(i)));
  const auto reply = List(items, 1);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->codes.size(), 5000U);
  EXPECT_THAT(reply->codes, Each(Code::kOk));
  EXPECT_EQ(service_.entries(), 5000U);
  EXPECT_EQ(List(items, 1)->codes.size(), 5000U);
  EXPECT_TRUE(List({}, 2));
}

// A connection breaks while a large listing is being done; the owner repeats it over another one.
TEST_F(DirectoryServiceTest, AListingThatNobodyWaitsForDoesNotMixWithLaterOnes) {
  std::vector<wire::ListItem> items;
  for (int i = 0; i < 20'000; ++i) items.push_back(Item("k" + std::to_string(i)));
  for (std::uint32_t epoch = 2; epoch < 12; ++epoch) {
    Welcome(0, epoch);
    std::thread abandoned([&] { (void)List(items, 1, 0, epoch); });
    EXPECT_TRUE(List(items, 1, 0, epoch));
    EXPECT_TRUE(List({Item("new")}, 2, 0, epoch));
    abandoned.join();
    EXPECT_TRUE(List({Gone("new")}, 3, 0, epoch)) << "the numbers went back";
  }
}

TEST_F(DirectoryServiceTest, WhatIsGoneIsUnlistedBeforeWhatCameIsListed) {
  ASSERT_TRUE(List({Item("a")}, 1));
  EXPECT_THAT(List({Gone("a"), Item("a")}, 2)->codes, ElementsAre(Code::kOk, Code::kOk));
  EXPECT_TRUE(Found("a"));
  ASSERT_TRUE(List({Gone("a")}, 3));
  EXPECT_FALSE(Found("a"));
}

// ---- credits

TEST_F(DirectoryServiceTest, OnlySoManyOwnersTellTheirInventoryAtATime) {
  for (wire::OwnerNumber owner = 0; owner < 16; ++owner) {
    EXPECT_EQ(List({}, 1, owner)->credit, 4096U);
  }
  EXPECT_EQ(List({}, 1, 16)->credit, 0U);
  EXPECT_EQ(List({Told("a")}, 2, 0)->credit, 4096U) << "those go on";
  EXPECT_EQ(List({Item("b")}, 2, 1)->credit, 4096U) << "this one has told all";
  EXPECT_EQ(List({}, 2, 16)->credit, 4096U) << "and made room";
  EXPECT_EQ(List({}, 1, 17)->credit, 0U);
}

TEST_F(DirectoryServiceTest, ATellerThatHasComeToItsEndGivesWayAtOnce) {
  for (OwnerNumber owner = 0; owner < 16; ++owner) (void)List({}, 1, owner);
  EXPECT_EQ(List({Told("a")}, 2, 0)->credit, 4096U) << "it may go on";
  EXPECT_EQ(List({}, 1, 16)->credit, 0U);
  clock_.AdvanceNs(11 * kMillisecond);
  EXPECT_EQ(List({}, 2, 16)->credit, 4096U) << "one more tells in its place";
  EXPECT_EQ(List({}, 1, 17)->credit, 0U) << "the others have not begun yet";
  EXPECT_EQ(List({Told("b")}, 3, 0)->credit, 0U) << "it had not come to its end, and waits";
}

TEST_F(DirectoryServiceTest, ATellerThatIsSilentGivesWay) {
  for (wire::OwnerNumber owner = 0; owner < 16; ++owner) ASSERT_TRUE(List({}, 1, owner));
  clock_.AdvanceNs(2 * kSecond);
  EXPECT_EQ(List({}, 1, 16)->credit, 4096U);
}

TEST_F(DirectoryServiceTest, NewValuesAreListedWhoeverTells) {
  for (wire::OwnerNumber owner = 0; owner < 16; ++owner) ASSERT_TRUE(List({}, 1, owner));
  EXPECT_THAT(List({Item("a")}, 1, 20)->codes, ElementsAre(Code::kOk));
}

// ---- which listings are accepted

TEST_F(DirectoryServiceTest, AnOwnerOfOneTenantListsNothingForAnother) {
  standings_.SetSlot(
      {.slot = kServedSlot + 1, .generation = 5, .name = QualifiedName("other", "m")});
  standings_.SetSlot({.slot = kServedSlot + 2, .generation = 5, .name = "m"});
  standings_.owner(0).tenant = TenantTag("acme");
  std::vector<wire::ListItem> items = {Item("a"), Item("a"), Item("a")};
  items[1].slot = kServedSlot + 1;
  items[2].slot = kServedSlot + 2;
  EXPECT_THAT(List(items, 1)->codes, ElementsAre(Code::kOk, Code::kDenied, Code::kDenied));
  EXPECT_EQ(service_.rejected(), 2U);
}

TEST_F(DirectoryServiceTest, ASlotThatMustBeDroppedFirstIsNotListed) {
  const std::vector<SlotId> drops = {kServedSlot};
  EXPECT_THAT(List({Item("a"), Gone("b")}, 1, 0, 1, drops)->codes,
              ElementsAre(Code::kStale, Code::kOk));
  EXPECT_THAT(List({Item("a")}, 2)->codes, ElementsAre(Code::kOk));
}

TEST_F(DirectoryServiceTest, ATenantListsAtMostItsShare) {
  DirectoryService service({.first_removal = kFirst, .max_entries = 100, .tenant_entries = 10},
                           standings_, clock_);
  standings_.SetSlot(
      {.slot = kServedSlot + 1, .generation = 5, .name = QualifiedName("other", "m")});
  std::uint64_t sequence = 0;
  const auto list = [&](const std::string& prefix, int count, SlotId slot = kServedSlot) {
    wire::ListRequest request{.number = 0, .epoch = 1, .sequence = ++sequence, .items = {}};
    for (int i = 0; i < count; ++i) {
      request.items.push_back(Item(prefix + std::to_string(i)));
      request.items.back().slot = slot;
    }
    DirectoryService::OwnerSlots to_bar;
    const auto reply = service.List(request, {}, to_bar);
    clock_.AdvanceNs(100 * kMillisecond);
    service.Tick();
    return std::ranges::count(reply->codes, Code::kOk);
  };
  EXPECT_EQ(list("a", 12), 12) << "a moment's listings may be over it";
  EXPECT_EQ(list("b", 3), 0);
  EXPECT_EQ(service.refused(), 3U);
  EXPECT_EQ(list("a", 12), 12) << "what is listed already may be told again";
  EXPECT_EQ(list("c", 5, kServedSlot + 1), 5) << "another tenant's share";
  // A reset makes all of it void: once it is swept there is room again.
  standings_.SetSlot({.slot = kServedSlot, .generation = 6, .name = QualifiedName("acme", "m")});
  for (std::size_t i = 0; i < Directory::kShards; ++i) service.Tick();
  clock_.AdvanceNs(100 * kMillisecond);
  service.Tick();
  EXPECT_EQ(service.EntriesBySlot()[kServedSlot], 0U);
  EXPECT_EQ(service.EntriesBySlot()[kServedSlot + 1], 5U);
  EXPECT_EQ(service.entries(), 5U);
  standings_.SetSlot({.slot = kServedSlot, .generation = 5, .name = QualifiedName("acme", "m")});
  EXPECT_EQ(list("d", 5), 5);
}

TEST_F(DirectoryServiceTest, BeyondItsBoundTheDirectoryTakesNothingNew) {
  DirectoryService service({.first_removal = kFirst, .max_entries = 4}, standings_, clock_);
  standings_.SetSlot({.slot = kServedSlot, .generation = 5, .name = "without a tenant"});
  DirectoryService::OwnerSlots to_bar;
  const auto list = [&](std::uint64_t sequence, const std::string& key) {
    const wire::ListRequest request{
        .number = 0, .epoch = 1, .sequence = sequence, .items = {Item(key)}};
    clock_.AdvanceNs(100 * kMillisecond);
    service.Tick();
    return service.List(request, {}, to_bar)->codes.front();
  };
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_EQ(list(i, std::to_string(i)), Code::kOk);
  EXPECT_EQ(list(5, "5"), Code::kLimit);
}

TEST_F(DirectoryServiceTest, WithoutABarrierAnAbsentOwnersValueStays) {
  ASSERT_THAT(List({Item("a"), Item("b")}, 1)->codes, Each(Code::kOk));
  standings_.owner(0).present_until_ns = 0;
  wire::ListItem put = Item("a");
  wire::ListItem told = Told("b");
  put.group = told.group = 2;
  DirectoryService::OwnerSlots to_bar;
  const wire::ListRequest request{
      .number = 1, .epoch = 1, .sequence = 1, .items = {put, told, Item("c")}};
  ASSERT_EQ(service_.List(request, {}, to_bar).error().code, Code::kInProgress);
  to_bar.clear();
  const auto reply = service_.List(request, {}, to_bar, /*may_bar=*/false);
  ASSERT_TRUE(reply);
  EXPECT_THAT(reply->codes, ElementsAre(Code::kExists, Code::kExists, Code::kOk));
  EXPECT_FALSE(standings_.owner(0).overtaken);
}

TEST_F(DirectoryServiceTest, WhatIsToldAgainTakesNoOtherValuesPlace) {
  ASSERT_THAT(List({Item("a"), Item("b")}, 1)->codes, Each(Code::kOk));
  standings_.owner(0).present_until_ns = 0;
  wire::ListItem other = Told("a");
  wire::ListItem same = Told("b");
  other.group = 2;
  DirectoryService::OwnerSlots to_bar;
  const auto reply =
      service_.List({.number = 1, .epoch = 1, .sequence = 1, .items = {other, same}}, {}, to_bar);
  ASSERT_TRUE(reply);
  EXPECT_THAT(reply->codes, ElementsAre(Code::kExists, Code::kOk))
      << "it may be the older one; a replica of the same put may stand beside it";
  EXPECT_TRUE(to_bar.empty()) << "nobody is barred for it";
}

TEST_F(DirectoryServiceTest, AnOldGenerationIsStale) {
  wire::ListItem item = Item("a");
  item.generation = 4;
  EXPECT_THAT(List({item}, 1)->codes, ElementsAre(Code::kStale));
}

// ---- removals

TEST_F(DirectoryServiceTest, AListingThatWasBegunBeforeARemovalIsRefused) {
  ASSERT_TRUE(List({Item("a")}, 1));
  EXPECT_THAT(service_.Remove(kServedSlot, 5, std::vector<std::string>{"a", "b"}, kFirst + 1),
              ElementsAre(Code::kOk, Code::kMiss));
  EXPECT_THAT(List({Item("a", kFirst), Item("b", kFirst), Item("c", kFirst)}, 2)->codes,
              ElementsAre(Code::kStale, Code::kStale, Code::kOk));
  EXPECT_THAT(List({Item("a", kFirst + 1)}, 3)->codes, ElementsAre(Code::kOk)) << "put after it";
}

// It was asked for before a reset, and comes while its keys are stored anew. Owners keep those.
TEST_F(DirectoryServiceTest, ARemovalOfAnEarlierGenerationUnlistsNothingOfTheCurrentOne) {
  standings_.SetSlot({.slot = kServedSlot, .generation = 6, .name = QualifiedName("acme", "m")});
  wire::ListItem item = Item("a");
  item.generation = 6;
  ASSERT_THAT(List({item}, 1)->codes, ElementsAre(Code::kOk));
  service_.Remove(kServedSlot, 5, std::vector<std::string>{"a"}, kFirst + 1);
  EXPECT_TRUE(Found("a"));
  service_.Remove(kServedSlot, 6, std::vector<std::string>{"a"}, kFirst + 2);
  EXPECT_FALSE(Found("a"));
}

TEST_F(DirectoryServiceTest, ANumberOfAnEarlierMasterCountsAsTheFirstOfThisOne) {
  EXPECT_THAT(List({Item("a", 17)}, 1)->codes, ElementsAre(Code::kOk));
  service_.Remove(kServedSlot, 5, std::vector<std::string>{"a"}, kFirst + 1);
  EXPECT_THAT(List({Item("a", 17)}, 2)->codes, ElementsAre(Code::kStale));
}

TEST_F(DirectoryServiceTest, ACopyIsRefusedWhenSomethingMayHaveRemovedItMeanwhile) {
  EXPECT_THAT(List({Item("a", kFirst + 9, kFirst - 1)}, 1)->codes, ElementsAre(Code::kStale))
      << "read under an earlier master";
  service_.Remove(kServedSlot, 5, std::vector<std::string>{"b"}, kFirst + 5);
  EXPECT_THAT(List({Item("b", kFirst + 9, kFirst + 4)}, 2)->codes, ElementsAre(Code::kStale));
  EXPECT_THAT(List({Item("b", kFirst + 9, kFirst + 5)}, 3)->codes, ElementsAre(Code::kOk));
  service_.RemovePattern(kServedSlot, kFirst + 6);
  EXPECT_THAT(
      List({Item("c", kFirst + 9, kFirst + 5), Item("d", kFirst + 9, kFirst + 6)}, 4)->codes,
      ElementsAre(Code::kStale, Code::kOk));
}

// ---- look-ups

TEST_F(DirectoryServiceTest, ALookUpAnswersEveryKeyInItsPlace) {
  ASSERT_TRUE(List({Item("a"), Item("c")}, 1));
  std::vector<Id128> hashes;
  for (const char* key : {"a", "b", "c"}) hashes.push_back(DirectoryHash(kServedSlot, key));
  const auto places = service_.Lookup(kServedSlot, hashes);
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[0].owner, 0);
  EXPECT_EQ(places[1].owner, wire::kNoOwner);
  EXPECT_EQ(places[1].reason, MissReason::kNeverPut);
  EXPECT_EQ(places[2].owner, 0);
  EXPECT_EQ(service_.lookups(), 3U);
}

TEST_F(DirectoryServiceTest, RemembersWhyLookUpsMissed) {
  EXPECT_FALSE(service_.Why(kServedSlot, "a"));
  const std::vector<Id128> hashes = {DirectoryHash(kServedSlot, "a")};
  for (int i = 0; i < 3; ++i) {
    service_.RememberMisses(kServedSlot, hashes, service_.Lookup(kServedSlot, hashes));
  }
  clock_.AdvanceNs(kSecond);
  const auto why = service_.Why(kServedSlot, "a");
  ASSERT_TRUE(why);
  EXPECT_EQ(why->reason, MissReason::kNeverPut);
  EXPECT_EQ(why->count, 3U);
  EXPECT_EQ(why->age_ns, kSecond);
  EXPECT_FALSE(service_.Why(kServedSlot + 1, "a")) << "of another slot";
}

TEST_F(DirectoryServiceTest, AnOwnerListsNoPutThatAPatternItHasYetToApplyMayTakeAway) {
  service_.RemovePattern(kServedSlot, kFirst + 6);
  EXPECT_THAT(
      List({Item("a", kFirst + 5), Told("b"), Item("c", kFirst + 6)}, 1, 0, 1, {}, kFirst + 5)
          ->codes,
      ElementsAre(Code::kStale, Code::kOk, Code::kOk));
  EXPECT_THAT(List({Item("a", kFirst + 5)}, 2, 0, 1, {}, kFirst + 6)->codes, ElementsAre(Code::kOk))
      << "it has applied the pattern, to what was being stored, too";
}

// It was listed by the master that had its slice before, and its answer was lost or is not enough.
TEST_F(DirectoryServiceTest, APutThatIsRefusedAtItsRepetitionIsNotListedFromBefore) {
  ASSERT_THAT(List({Item("a")}, 1)->codes, ElementsAre(Code::kOk));
  ASSERT_THAT(List({Item("b")}, 2)->codes, ElementsAre(Code::kOk));
  const SlotId drop = kServedSlot;
  EXPECT_THAT(List({Item("a")}, 3, 0, 1, {&drop, 1})->codes, ElementsAre(Code::kStale));
  EXPECT_FALSE(Found("a"));
  EXPECT_TRUE(Found("b"));
  // Another put of the key, or another owner's, stays.
  wire::ListItem other = Item("b");
  other.group = 2;
  EXPECT_THAT(List({other}, 4, 0, 1, {&drop, 1})->codes, ElementsAre(Code::kStale));
  EXPECT_THAT(List({Item("b")}, 1, 7, 1, {&drop, 1})->codes, ElementsAre(Code::kStale));
  EXPECT_TRUE(Found("b"));
}

TEST_F(DirectoryServiceTest, APutThatIsRefusedForAPatternIsNotListedFromBefore) {
  // The answer to the first is lost, and the pattern comes before it is told again.
  EXPECT_THAT(List({Item("a", kFirst + 5)}, 1, 0, 1, {}, kFirst + 5)->codes,
              ElementsAre(Code::kOk));
  service_.RemovePattern(kServedSlot, kFirst + 6);
  EXPECT_THAT(List({Item("a", kFirst + 5)}, 2, 0, 1, {}, kFirst + 5)->codes,
              ElementsAre(Code::kStale));
  EXPECT_FALSE(Found("a"));
}

}  // namespace
}  // namespace kvcove::master
