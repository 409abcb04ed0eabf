// SPDX-License-Identifier: Apache-2.0
// How room is made, through the core that drives it.
#include "kvcove/owner/core/room.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kRoomSlot = 1;
constexpr SlotId kOther = 2;
constexpr std::uint64_t kObjects = 64;  // fill the payload
constexpr std::uint32_t kSize = 1024;

class RoomTest : public testing::Test {
 protected:
  RoomTest() {
    test_.SetSlot(kRoomSlot, kFirst);
    test_.SetSlot(kOther, kFirst);
  }
  static std::string Key(std::uint64_t i) { return fmt::format("key-{}", i); }
  void Fill(SlotId slot, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t i = from; i < to; ++i) ASSERT_EQ(test_.Put(slot, Key(i), kSize), Code::kOk);
  }
  std::uint64_t Left(SlotId slot) {
    std::uint64_t left = 0;
    for (std::uint64_t i = 0; i < kObjects; ++i) left += test_.Has(slot, Key(i)) ? 1 : 0;
    return left;
  }
  TestCore test_{{.payload_bytes = kObjects * kSize, .max_objects = 1000, .policy = "lru"}};
};

TEST_F(RoomTest, DeadObjectsGoBeforeLiveOnes) {
  Fill(kOther, 0, 2);
  Fill(kRoomSlot, 2, kObjects);
  test_.SetSlot(kRoomSlot, kLater);
  ASSERT_EQ(test_.Put(kRoomSlot, "new", kSize), Code::kOk);
  EXPECT_EQ(Left(kOther), 2U);
  EXPECT_EQ(test_.core->Stat().evictions, 0U);
}

TEST_F(RoomTest, VersionsThatNobodyNamesGoBeforeOthersButNotTheirHardPins) {
  Fill(kRoomSlot, 0, 32);
  Fill(kOther, 32, kObjects);
  ASSERT_EQ(test_.core->Pin(kOther, Key(40), PinKind::kHard, 0), Code::kOk);
  test_.SetSlot(kOther, kFirst, "m", /*named=*/false);
  for (int i = 0; i < 31; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(1000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 32U);
  EXPECT_EQ(Left(kOther), 1U);
  EXPECT_TRUE(test_.Has(kOther, Key(40)));
  EXPECT_EQ(test_.core->Stat().evictions, 0U);
}

TEST_F(RoomTest, HardPinsStayAndTakeAtMostHalf) {
  Fill(kRoomSlot, 0, kObjects);
  for (std::uint64_t i = 0; i < 32; ++i) {
    ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(i), PinKind::kHard, 0), Code::kOk);
  }
  EXPECT_EQ(test_.core->Pin(kRoomSlot, Key(32), PinKind::kHard, 0), Code::kLimit);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(1000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 32U);
  EXPECT_EQ(test_.core->Unpin(kRoomSlot, Key(0)), Code::kOk);
  EXPECT_EQ(test_.core->Pin(kRoomSlot, Key(1), PinKind::kHard, 0), Code::kOk) << "it is already";
  for (int i = 0; i < 200; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(2000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 31U);
  test_.core->CheckInvariants();
}

TEST_F(RoomTest, HardPinsOfADeadGenerationLeaveTheirHalfToOthersBeforeTheyAreSwept) {
  Fill(kRoomSlot, 0, 32);
  for (std::uint64_t i = 0; i < 32; ++i) {
    ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(i), PinKind::kHard, 0), Code::kOk);
  }
  test_.SetSlot(kRoomSlot, kLater);
  Fill(kRoomSlot, 32, kObjects);
  ASSERT_EQ(test_.core->Stat().pinned_bytes, 32 * kSize) << "no put had to sweep";
  for (std::uint64_t i = 32; i < kObjects; ++i) {
    EXPECT_EQ(test_.core->Pin(kRoomSlot, Key(i), PinKind::kHard, 0), Code::kOk) << i;
  }
  EXPECT_EQ(test_.core->Stat().refused_pins, 0U);
  EXPECT_EQ(test_.core->Stat().pinned_bytes, 32 * kSize);
  test_.core->CheckInvariants();
}

TEST_F(RoomTest, AHardPinEndsWithItsTimeToLiveUnlessItIsRenewed) {
  Fill(kRoomSlot, 0, kObjects);
  for (std::uint64_t i = 0; i < 32; ++i) {
    ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(i), PinKind::kHard, kSecond), Code::kOk);
  }
  EXPECT_EQ(test_.core->Pin(kRoomSlot, Key(32), PinKind::kHard, kSecond), Code::kLimit);
  EXPECT_EQ(test_.core->Stat().refused_pins, 1U);
  EXPECT_EQ(test_.core->Stat().timed_pin_bytes, 32 * kSize);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(1000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 32U);
  test_.clock.AdvanceNs(kSecond - 1);
  test_.core->Tick();
  EXPECT_TRUE(test_.core->StatObject(kRoomSlot, Key(1))->hard_pinned);
  ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(0), PinKind::kHard, kSecond), Code::kOk);
  test_.clock.AdvanceNs(1);
  test_.core->Tick();
  EXPECT_TRUE(test_.core->StatObject(kRoomSlot, Key(0))->hard_pinned);
  EXPECT_FALSE(test_.core->StatObject(kRoomSlot, Key(1))->hard_pinned);
  EXPECT_EQ(test_.core->Stat().ended_pins, 31U);
  EXPECT_EQ(test_.core->Stat().pinned_bytes, kSize);
  EXPECT_EQ(test_.core->Stat().timed_pin_bytes, kSize);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(2000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 1U);
  EXPECT_TRUE(test_.Has(kRoomSlot, Key(0)));
  test_.core->CheckInvariants();
}

// A session that maps the memory writes events without a call, and a pin's time passes by itself.
TEST_F(RoomTest, NothingBecomesDueByItselfWithoutSessionsAndEndsOfPins) {
  Fill(kRoomSlot, 0, 1);
  ASSERT_FALSE(test_.core->Tick());
  EXPECT_FALSE(test_.core->MayRest());
  test_.core->EndSession(test_.session);
  ASSERT_FALSE(test_.core->Tick());
  EXPECT_TRUE(test_.core->MayRest());
  ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(0), PinKind::kHard, kSecond), Code::kOk);
  test_.clock.AdvanceNs(kSecond - 1);
  ASSERT_FALSE(test_.core->Tick());
  EXPECT_FALSE(test_.core->MayRest());
  test_.clock.AdvanceNs(1);
  ASSERT_FALSE(test_.core->Tick());
  EXPECT_TRUE(test_.core->MayRest());
  ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(0), PinKind::kHard, 0), Code::kOk);
  EXPECT_TRUE(test_.core->MayRest()) << "it has no end";
}

TEST_F(RoomTest, OfTwoHardPinsOfAnObjectTheLaterEndHolds) {
  Fill(kRoomSlot, 0, 1);
  const auto pin = [&](std::int64_t duration_ns) {
    ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(0), PinKind::kHard, duration_ns), Code::kOk);
  };
  const auto pinned_after = [&](std::int64_t ns) {
    test_.clock.AdvanceNs(ns);
    test_.core->Tick();
    return test_.core->StatObject(kRoomSlot, Key(0))->hard_pinned;
  };
  pin(2 * kSecond);
  pin(kSecond);
  EXPECT_TRUE(pinned_after(kSecond)) << "a shorter one";
  EXPECT_FALSE(pinned_after(kSecond));
  pin(kSecond);
  pin(0);
  EXPECT_TRUE(pinned_after(kSecond)) << "one without an end";
  EXPECT_EQ(test_.core->Stat().timed_pin_bytes, 0U);
  pin(kSecond);
  EXPECT_TRUE(pinned_after(kSecond)) << "it has no end yet";
  EXPECT_EQ(test_.core->Unpin(kRoomSlot, Key(0)), Code::kOk);
  EXPECT_FALSE(pinned_after(0));
  pin(kSecond);
  EXPECT_EQ(test_.core->Unpin(kRoomSlot, Key(0)), Code::kOk);
  EXPECT_EQ(test_.core->Stat().timed_pin_bytes, 0U);
  EXPECT_EQ(test_.core->Stat().pinned_bytes, 0U);
}

// Numbers of objects are reused: an end that is left over would unpin another object.
TEST_F(RoomTest, TheEndOfAPinGoesWithItsObject) {
  Fill(kRoomSlot, 0, 2);
  for (const int i : {0, 1}) {
    ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(i), PinKind::kHard, kSecond), Code::kOk);
  }
  ASSERT_EQ(test_.core->Remove(kRoomSlot, Key(0)), Code::kOk);
  EXPECT_EQ(test_.core->Stat().timed_pin_bytes, kSize);
  Fill(kRoomSlot, 2, 3);
  ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(2), PinKind::kHard, 0), Code::kOk);
  test_.clock.AdvanceNs(kSecond);
  test_.core->Tick();
  EXPECT_TRUE(test_.core->StatObject(kRoomSlot, Key(2))->hard_pinned);
  EXPECT_EQ(test_.core->Stat().ended_pins, 1U);
  // A reset voids the object. Its pin's end finds it dead, or not at all.
  ASSERT_EQ(test_.core->Pin(kRoomSlot, Key(1), PinKind::kHard, kSecond), Code::kOk);
  test_.SetSlot(kRoomSlot, kLater);
  test_.clock.AdvanceNs(kSecond);
  while (test_.core->Tick()) {
  }
  EXPECT_EQ(test_.core->Stat().objects, 0U);
  EXPECT_EQ(test_.core->Stat().ended_pins, 1U);
  EXPECT_EQ(test_.core->Stat().pinned_bytes, 0U);
  EXPECT_EQ(test_.core->Stat().timed_pin_bytes, 0U);
  test_.core->CheckInvariants();
}

TEST_F(RoomTest, AVersionThatNobodyNamesIsReclaimedWhenItsPinsHaveEnded) {
  Fill(kRoomSlot, 0, 32);
  Fill(kOther, 32, kObjects);
  ASSERT_EQ(test_.core->Pin(kOther, Key(40), PinKind::kHard, kSecond), Code::kOk);
  test_.SetSlot(kOther, kFirst, "m", /*named=*/false);
  for (int i = 0; i < 31; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(1000 + i), kSize), Code::kOk);
  EXPECT_TRUE(test_.Has(kOther, Key(40)));
  test_.clock.AdvanceNs(kSecond);
  test_.core->Tick();
  ASSERT_EQ(test_.Put(kRoomSlot, Key(2000), kSize), Code::kOk);
  EXPECT_FALSE(test_.Has(kOther, Key(40)));
  EXPECT_EQ(Left(kRoomSlot), 32U);
}

TEST_F(RoomTest, ABatchMakesItsRoomAtOnceAndNoMore) {
  Fill(kRoomSlot, 0, kObjects);
  const std::vector<std::byte> value(kSize);
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < 20; ++i) keys.push_back(i < 4 ? Key(60 + i) : Key(1000 + i));
  std::vector<PutItem> batch;
  for (const std::string& key : keys) {
    batch.push_back({.key = key, .size_bytes = kSize, .value = value, .after = {}});
  }
  batch[6].size_bytes = 0xFFFFFFFF;  // is refused: no room is made for it
  const std::uint64_t pages = test_.core->steps().pages;
  const std::vector<PutResult> results =
      test_.core->Put(test_.session, test_.TokenOf(kRoomSlot), batch, /*evict=*/true);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Code expected = i < 4 ? Code::kExists : i == 6 ? Code::kInvalid : Code::kOk;
    EXPECT_EQ(results[i].code, expected) << i;
  }
  EXPECT_EQ(test_.core->steps().pages - pages, 1U) << "one look at the readers' page";
  EXPECT_EQ(test_.core->Stat().evictions, 15U);
  EXPECT_EQ(Left(kRoomSlot), kObjects - 15);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(test_.Has(kRoomSlot, Key(60 + i)));
  test_.core->CheckInvariants();
}

// What removes all that is not pinned asks by these.
TEST_F(RoomTest, ASoftPinThatHasEndedIsNotListedAsOne) {
  Fill(kRoomSlot, 0, 1);
  const auto pinned = [&] {
    const auto stat = test_.core->StatObject(kRoomSlot, Key(0));
    const auto page = test_.core->Page({.at_most = 10, .slot = kRoomSlot, .prefix = {}});
    EXPECT_EQ(page.objects.size(), 1U);
    EXPECT_EQ(stat->soft_pinned, page.objects[0].soft_pinned);
    return stat->soft_pinned;
  };
  EXPECT_FALSE(pinned());
  test_.core->Pin(kRoomSlot, Key(0), PinKind::kSoft, kSecond / 2);
  EXPECT_TRUE(pinned());
  test_.clock.AdvanceNs(kSecond / 2);
  EXPECT_FALSE(pinned());
}

TEST_F(RoomTest, SoftPinsGoLast) {
  Fill(kRoomSlot, 0, kObjects);
  for (std::uint64_t i = 0; i < 8; ++i) test_.core->Pin(kRoomSlot, Key(i), PinKind::kSoft, kSecond);
  for (int i = 0; i < 56; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(1000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 8U);
  test_.clock.AdvanceNs(kSecond);
  for (int i = 0; i < 64; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(2000 + i), kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), 0U);
}

TEST_F(RoomTest, SparedObjectsGiveWayWhenNothingElseIsLeft) {
  Fill(kRoomSlot, 0, kObjects);
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    test_.core->Pin(kRoomSlot, Key(i), PinKind::kSoft, kSecond);
  }
  EXPECT_EQ(test_.Put(kRoomSlot, "new", kSize), Code::kOk);
  EXPECT_EQ(Left(kRoomSlot), kObjects - 1);
}

TEST_F(RoomTest, WhatAReaderProtectsIsNotGivenOut) {
  Fill(kRoomSlot, 0, kObjects);
  segment::ReadWindow window(test_.segment.view, (*test_.page).lanes[0]);
  window.Announce(test_.Find(kRoomSlot, Key(0)));
  const std::uint32_t granule = test_.Find(kRoomSlot, Key(0)).first_granule;
  for (int i = 0; i < 200; ++i) ASSERT_EQ(test_.Put(kRoomSlot, Key(1000 + i), kSize), Code::kOk);
  for (int i = 137; i < 200; ++i) {
    EXPECT_NE(test_.Find(kRoomSlot, Key(1000 + i)).first_granule, granule) << i;
  }
  EXPECT_EQ(test_.core->Stat().withdrawn_bytes, kSize);
  window.Clear();
  test_.core->Tick();
  EXPECT_EQ(test_.core->Stat().withdrawn_bytes, 0U);
  test_.core->CheckInvariants();
}

TEST_F(RoomTest, WithoutEvictionNothingVisibleGivesWay) {
  Fill(kRoomSlot, 0, kObjects);
  EXPECT_EQ(test_.Reserve(test_.session, kRoomSlot, "new", kSize, /*evict=*/false).code,
            Code::kNoSpace);
  EXPECT_EQ(Left(kRoomSlot), kObjects);
  test_.core->Remove(kRoomSlot, Key(3));
  EXPECT_EQ(test_.Reserve(test_.session, kRoomSlot, "new", kSize, /*evict=*/false).code, Code::kOk);
}

TEST(RoomQuotaTest, ASpaceAtItsMaximumGivesItsOwn) {
  TestCore test({.payload_bytes = kMiB,
                 .max_objects = 1000,
                 .policy = "lru",
                 .quotas = {{"small", {.maximum_bytes = 8 * 1024}}}});
  test.SetSlot(kRoomSlot, kFirst, "small");
  test.SetSlot(kOther, kFirst, "large");
  EXPECT_EQ(test.Put(kOther, "a", kSize), Code::kOk);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(test.Put(kRoomSlot, fmt::format("key-{}", i), kSize), Code::kOk);
  }
  EXPECT_TRUE(test.Has(kOther, "a"));
  EXPECT_EQ(test.core->Stat().evictions, 12U);
  EXPECT_EQ(test.Put(kRoomSlot, "too large", 9 * 1024), Code::kNoSpace);
  // What is being written counts, so no number of sessions gets around it.
  int reserved = 0;
  for (int i = 0; i < 20; ++i) {
    const SessionNumber session = test.core->AddSession(nullptr, 1);
    const Code code = test.Reserve(session, kRoomSlot, fmt::format("more-{}", i), kSize).code;
    reserved += code == Code::kOk ? 1 : 0;
  }
  EXPECT_EQ(reserved, 8);
}

TEST(RoomQuotaTest, ReservationsOfManySessionsLeaveAGuaranteeAlone) {
  TestCore test({.payload_bytes = kObjects * kSize,
                 .max_objects = 1000,
                 .policy = "lru",
                 .quotas = {{"sure", {.guaranteed_bytes = 20 * kSize}}}});
  test.SetSlot(kRoomSlot, kFirst, "sure");
  test.SetSlot(kOther, kFirst, "greedy");
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(test.Put(kRoomSlot, fmt::format("key-{}", i), kSize), Code::kOk);
  }
  std::uint64_t reserved = 0;
  for (int i = 0; i < 100; ++i) {
    const SessionNumber session = test.core->AddSession(nullptr, 1);
    const Code code = test.Reserve(session, kOther, fmt::format("key-{}", i), kSize).code;
    reserved += code == Code::kOk ? 1 : 0;
  }
  EXPECT_EQ(reserved, kObjects / 2);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(test.Has(kRoomSlot, fmt::format("key-{}", i))) << i;
  // It gets back what others had of its share, for all that they write.
  for (int i = 0; i < 20; ++i) test.core->Remove(kRoomSlot, fmt::format("key-{}", i));
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(test.Put(kRoomSlot, fmt::format("again-{}", i), kSize), Code::kOk) << i;
  }
}

class RoomRequestsTest : public testing::Test {
 protected:
  RoomRequestsTest() { test_.SetSlot(kRoomSlot, kFirst); }
  // One batch of (key, chunk before it).
  void Put(const std::vector<std::pair<std::string, std::string>>& chunks, bool goes_on) {
    const std::vector<std::byte> value(kSize);
    std::vector<PutItem> items;
    for (const auto& [key, after] : chunks) {
      items.push_back({.key = key,
                       .size_bytes = kSize,
                       .value = value,
                       .after = after,
                       .hints = {.request_goes_on = goes_on}});
    }
    for (const PutResult& result :
         test_.core->Put(test_.session, test_.TokenOf(kRoomSlot), items, /*evict=*/true)) {
      EXPECT_EQ(result.code, Code::kOk);
    }
  }
  bool Has(const std::string& key) const { return test_.Has(kRoomSlot, key); }

  TestCore test_{{.payload_bytes = 8 * kSize, .max_objects = 1000}};
};

// A batch is a request, unless its caller says that more follows: what is open is spared.
TEST_F(RoomRequestsTest, ABatchIsARequest) {
  Put({{"a0", ""}, {"a1", "a0"}, {"a2", "a1"}, {"a3", "a2"}}, /*goes_on=*/false);
  Put({{"b0", ""}, {"b1", "b0"}, {"b2", "b1"}, {"b3", "b2"}}, /*goes_on=*/true);
  Put({{"c", ""}}, false);
  EXPECT_FALSE(Has("a3"));
  EXPECT_TRUE(Has("b3"));
}
TEST_F(RoomRequestsTest, ARequestThatGoesOnIsSpared) {
  Put({{"a0", ""}, {"a1", "a0"}, {"a2", "a1"}, {"a3", "a2"}}, /*goes_on=*/true);
  Put({{"b0", ""}, {"b1", "b0"}, {"b2", "b1"}, {"b3", "b2"}}, /*goes_on=*/false);
  Put({{"c", ""}}, false);
  EXPECT_TRUE(Has("a3"));
  EXPECT_FALSE(Has("b3"));
}

// Two chains that take turns in a batch both end with it.
TEST_F(RoomRequestsTest, ChainsThatTakeTurnsInABatchBothEnd) {
  Put({{"a0", ""}, {"b0", ""}, {"a1", "a0"}, {"b1", "b0"}}, /*goes_on=*/false);
  Put({{"c0", ""}, {"c1", "c0"}, {"c2", "c1"}, {"c3", "c2"}}, /*goes_on=*/true);
  Put({{"d0", ""}, {"d1", "d0"}}, /*goes_on=*/true);
  EXPECT_FALSE(Has("a1"));
  EXPECT_FALSE(Has("b1"));
  EXPECT_TRUE(Has("c3"));
}

}  // namespace
}  // namespace kvcove::owner
