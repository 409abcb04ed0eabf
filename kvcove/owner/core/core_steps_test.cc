// SPDX-License-Identifier: Apache-2.0
// What a call costs beside much of something else, in steps: never in time.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kNamed = 1;
constexpr SlotId kUnnamed = 2;
constexpr std::uint64_t kMany = 1'000'000;

std::string Key(std::uint64_t number) { return fmt::format("key-{}", number); }

Steps operator-(const Steps& a, const Steps& b) {
  return {.objects = a.objects - b.objects,
          .reservations = a.reservations - b.reservations,
          .holds = a.holds - b.holds,
          .pages = a.pages - b.pages,
          .withdrawn = a.withdrawn - b.withdrawn,
          .spaces = a.spaces - b.spaces,
          .scratch_bytes = a.scratch_bytes};
}

// A segment that a million objects of one granule fill, each put whole.
class CoreStepsTest : public testing::Test {
 protected:
  explicit CoreStepsTest(std::uint64_t objects = kMany)
      : test_({.payload_bytes = objects * segment::kLeastGranule,
               .max_objects = objects + 1000,
               .policy = "lru"}) {
    test_.SetSlot(kNamed, kFirst);
    test_.SetSlot(kUnnamed, kFirst);
  }
  void Fill(SlotId slot, std::uint64_t from, std::uint64_t to) {
    const std::vector<std::byte> value(8);
    const Token token = test_.TokenOf(slot);
    for (std::uint64_t i = from; i < to; ++i) {
      const std::string key = Key(i);
      const PutItem item{.key = key, .size_bytes = 8, .value = value, .after = {}};
      ASSERT_EQ(test_.core->Put(test_.session, token, {&item, 1}).front().code, Code::kOk);
    }
  }
  template <typename Call>
  Steps StepsOf(const Call& call) {
    const Steps before = test_.core->steps();
    call();
    return test_.core->steps() - before;
  }
  TestCore test_;
};

TEST_F(CoreStepsTest, APutLooksAtItsOwnVictimBesideAMillionObjectsAndAHardPinInAnUnnamedVersion) {
  Fill(kUnnamed, 0, 1);
  Fill(kNamed, 1, kMany);
  ASSERT_EQ(test_.core->Pin(kUnnamed, Key(0), PinKind::kHard, 0), Code::kOk);
  test_.SetSlot(kUnnamed, kFirst, "m", /*named=*/false);
  // Sessions of other hosts have nothing to scan.
  for (int i = 0; i < 4000; ++i) test_.core->AddSession(nullptr, 1);
  const Steps put = StepsOf([&] { Fill(kNamed, kMany, kMany + 1); });
  EXPECT_EQ(put.objects, 1U);
  EXPECT_EQ(put.withdrawn, 1U);
  EXPECT_EQ(put.spaces, 1U);
  EXPECT_EQ(put.pages, 1U);
  EXPECT_EQ(put.reservations, 0U);
  EXPECT_TRUE(test_.Has(kUnnamed, Key(0)));

  // A reset looks at nothing, and its sweep at a slice a tick, of its own objects only.
  Fill(kUnnamed, kMany, kMany + 10);
  EXPECT_EQ(StepsOf([&] { test_.SetSlot(kUnnamed, kLater, "other"); }).objects, 0U);
  const Steps few = StepsOf([&] { EXPECT_FALSE(test_.core->Tick()); });
  EXPECT_LE(few.objects, 11U);
  EXPECT_EQ(StepsOf([&] { test_.SetSlot(kNamed, kLater, "another"); }).objects, 0U);
  std::uint64_t ticks = 0;
  for (bool more = true; more; ++ticks) {
    const Steps tick = StepsOf([&] { more = test_.core->Tick(); });
    ASSERT_LE(tick.objects, 512U);
    ASSERT_LE(tick.scratch_bytes, 64U * kKiB);
  }
  EXPECT_GE(ticks, 900U);
  EXPECT_EQ(test_.core->Stat().object_bytes, 0U);
  test_.core->CheckInvariants();
}

class CoreWalksTest : public CoreStepsTest {
 protected:
  CoreWalksTest() : CoreStepsTest(200'000) {}
};

TEST_F(CoreWalksTest, ARemovalByPatternAndADroppedSlotGoInSlices) {
  Fill(kNamed, 0, 100'000);
  Fill(kUnnamed, 0, 100'000);
  std::uint64_t removed = 0;
  for (Core::Walk walk; !walk.done;) {
    const Steps slice =
        StepsOf([&] { removed += test_.core->RemoveMatching(kNamed, "key-*", walk); });
    ASSERT_LE(slice.objects, 512U);
    ASSERT_LE(slice.pages, 1U) << "one scan for all of a slice";
    ASSERT_LE(slice.scratch_bytes, 64U * kKiB);
  }
  EXPECT_EQ(removed, 100'000U);
  for (Core::Walk walk; !walk.done;) {
    ASSERT_LE(StepsOf([&] { test_.core->DropSlot(kUnnamed, walk); }).objects, 512U);
  }
  EXPECT_EQ(test_.core->Stat().objects, 0U);
}

TEST_F(CoreStepsTest, APutAndATickLookAtNoOtherPutThatIsUnderWay) {
  constexpr std::uint64_t kOpen = 100'000;
  std::vector<std::uint64_t> reservations;
  for (std::uint64_t i = 0; i < kOpen; ++i) {
    reservations.push_back(test_.Reserve(test_.session, kNamed, Key(i), 64).reservation);
    ASSERT_NE(reservations.back(), 0U);
  }
  EXPECT_EQ(StepsOf([&] { test_.Put(kNamed, "one more"); }).reservations, 0U);
  EXPECT_EQ(StepsOf([&] { test_.core->Tick(); }).reservations, 0U);
  // Every claim is past its deadline now. A put looks only at the claim of its own key.
  test_.clock.AdvanceNs(2 * kSecond);
  EXPECT_EQ(StepsOf([&] { test_.core->Tick(); }).reservations, 0U);
  EXPECT_EQ(StepsOf([&] { EXPECT_EQ(test_.Put(kNamed, Key(7)), Code::kOk); }).reservations, 1U);
  EXPECT_EQ(test_.Finish(test_.session, reservations[7]), Code::kTimeout);
  EXPECT_EQ(test_.Finish(test_.session, reservations[8]), Code::kTimeout);
  // A removal walks over them in slices, and one that names a key does not.
  Core::Walk walk;
  EXPECT_LE(StepsOf([&] { test_.core->RemoveMatching(kNamed, "*", walk); }).reservations, 512U);
  EXPECT_LE(StepsOf([&] { test_.core->Remove(kNamed, Key(9)); }).reservations, 1U);
  EXPECT_EQ(StepsOf([&] {
              Core::Walk drop;
              test_.core->DropSlot(kNamed, drop);
            }).reservations,
            0U);
  // A session that ends gives back a slice at a time.
  const Steps end = StepsOf([&] { test_.core->EndSession(test_.session); });
  EXPECT_LE(end.reservations, 1024U);
  std::uint64_t ticks = 0;
  while (test_.core->Tick()) ++ticks;
  EXPECT_GE(ticks, 90U);
  EXPECT_EQ(test_.core->Stat().reserved_bytes, 0U);
  test_.core->CheckInvariants();
}

class CoreHoldsTest : public CoreStepsTest {
 protected:
  CoreHoldsTest() : CoreStepsTest(200'000) {}
};

TEST_F(CoreHoldsTest, AnEvictionPassesOverABoundedNumberOfHolds) {
  constexpr std::uint64_t kHeld = 10'000;
  Fill(kNamed, 0, 200'000);
  for (std::uint64_t i = 0; i < kHeld; ++i) {
    const segment::Found found = test_.Find(kNamed, Key(i));
    segment::PushEvent(*test_.page, {.kind = segment::EventKind::kHold,
                                     .hold_until_ms = test_.clock.NowNs() / kMillisecond + 1 +
                                                      static_cast<std::int64_t>(i % 1000),
                                     .place = found.place,
                                     .version = found.version});
    if (i % 1000 == 999) test_.core->DrainEvents();
  }
  EXPECT_TRUE(test_.core->StatObject(kNamed, Key(0))->held);
  const Steps put = StepsOf([&] { Fill(kNamed, 200'000, 200'001); });
  EXPECT_LE(put.objects, Room::kMaxRefused + 1);
  EXPECT_EQ(put.holds, 0U);
  // Each ends at its own time.
  test_.clock.AdvanceNs(500 * kMillisecond);
  const Steps tick = StepsOf([&] { EXPECT_TRUE(test_.core->Tick()); });
  EXPECT_LE(tick.holds, 2048U);
  while (test_.core->Tick()) {
  }
  EXPECT_FALSE(test_.core->StatObject(kNamed, Key(1499))->held);
  EXPECT_TRUE(test_.core->StatObject(kNamed, Key(1500))->held);
}

TEST_F(CoreHoldsTest, AHoldCountsFromTheReadNotFromWhenTheOwnerHearsOfIt) {
  Fill(kNamed, 0, 2);
  const std::int64_t read_ms = test_.clock.NowNs() / kMillisecond;
  for (const std::uint64_t i : {0, 1}) {
    const segment::Found found = test_.Find(kNamed, Key(i));
    segment::PushEvent(*test_.page,
                       {.kind = segment::EventKind::kHit,
                        .hold_until_ms = read_ms + 500 + static_cast<std::int64_t>(i) * 1000,
                        .place = found.place,
                        .version = found.version});
  }
  test_.clock.AdvanceNs(850 * kMillisecond);
  test_.core->DrainEvents();
  EXPECT_FALSE(test_.core->StatObject(kNamed, Key(0))->held) << "it has ended before it was heard";
  EXPECT_TRUE(test_.core->StatObject(kNamed, Key(1))->held);
  test_.clock.AdvanceNs(650 * kMillisecond);
  test_.core->DrainEvents();
  EXPECT_FALSE(test_.core->StatObject(kNamed, Key(1))->held);
}

TEST_F(CoreHoldsTest, NoHoldOutlastsADay) {
  Fill(kNamed, 0, 1);
  const segment::Found found = test_.Find(kNamed, Key(0));
  segment::PushEvent(*test_.page,
                     {.kind = segment::EventKind::kHold,
                      .hold_until_ms = test_.clock.NowNs() / kMillisecond + 100LL * 3'600'000,
                      .place = found.place,
                      .version = found.version});
  test_.core->DrainEvents();
  test_.clock.AdvanceNs(24 * 3600 * kSecond - kSecond);
  test_.core->DrainEvents();
  EXPECT_TRUE(test_.core->StatObject(kNamed, Key(0))->held);
  test_.clock.AdvanceNs(2 * kSecond);
  test_.core->DrainEvents();
  EXPECT_FALSE(test_.core->StatObject(kNamed, Key(0))->held);
}

}  // namespace
}  // namespace kvcove::owner
