// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/asks.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"
#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

using policy::Access;
using Kind = Access::Kind;

class AsksTest : public testing::Test {
 protected:
  static Asks::Object Object(ObjectId id) {
    return {.id = id, .hash = Mix64(id), .bytes = 64, .slot = 3, .generation = kFirst};
  }
  void Store(ObjectId id, ObjectId parent = kNoObject) {
    asks_.Stored(Object(id), parent, parent == kNoObject ? 0 : Mix64(parent));
  }
  std::vector<Access> Take() {
    std::vector<Access> accesses;
    asked_ = asks_.Take(accesses);
    return accesses;
  }

  Asks asks_;
  std::uint64_t asked_ = 0;
};

TEST_F(AsksTest, SaysInOrderWhatHappenedToAnObject) {
  Store(1);
  asks_.Hit(Object(1));
  asks_.Touched(Object(1));
  asks_.RequestEnded(1);
  asks_.Gone(Object(1), MissReason::kRemoved, /*went_down=*/false);
  asks_.SlotVoided(3);
  const std::vector<Access> accesses = Take();
  const std::vector<Kind> kinds = {Kind::kStored,     Kind::kRead,    Kind::kTouched,
                                   Kind::kRequestEnd, Kind::kRemoved, Kind::kVoided};
  ASSERT_EQ(accesses.size(), kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(accesses[i].kind, kinds[i]) << i;
    if (kinds[i] == Kind::kVoided) continue;
    EXPECT_EQ(accesses[i].key, accesses[0].key) << i;
  }
  EXPECT_EQ(accesses[0].bytes, 64U);
  EXPECT_EQ(accesses[0].slot, 3);
  EXPECT_EQ(asked_, 2U);
  EXPECT_TRUE(Take().empty());
  EXPECT_EQ(asked_, 0U);
}

// The read that a promotion is for is the one that was asked: the promotion itself was not.
TEST_F(AsksTest, APromotionIsNoQuestionAndTheReadAfterItOfTheDisk) {
  asks_.CameUp(Object(1), kNoObject, 0);
  asks_.Hit(Object(1));
  asks_.Hit(Object(1));
  asks_.Gone(Object(1), MissReason::kEvicted, /*went_down=*/true);
  const std::vector<Access> accesses = Take();
  ASSERT_EQ(accesses.size(), 3U);
  EXPECT_EQ(accesses[0].kind, Kind::kReadUp);
  EXPECT_EQ(accesses[1].kind, Kind::kRead);
  EXPECT_EQ(accesses[2].kind, Kind::kWentDown);
  EXPECT_EQ(asked_, 2U);
}

TEST_F(AsksTest, ASampledObjectNamesTheNearestSampledOneBeforeIt) {
  constexpr unsigned kShift = 3;
  asks_.SetShift(kShift);
  for (ObjectId id = 0; id < 200; ++id) Store(id, id == 0 ? kNoObject : id - 1);
  const std::vector<Access> accesses = Take();
  EXPECT_EQ(asked_, 200U);
  ASSERT_GT(accesses.size(), 10U);
  ASSERT_LT(accesses.size(), 50U);
  std::uint32_t before = 0;
  for (const Access& access : accesses) {
    EXPECT_TRUE(policy::WhatIf::Sampled(access.key, kShift));
    EXPECT_EQ(access.parent, before);
    before = access.key;
  }
}

TEST_F(AsksTest, WhatIsBeyondTheBoundCountsNowhere) {
  for (std::size_t i = 0; i < Asks::kMostNoted + 1000; ++i) Store(7);
  EXPECT_EQ(Take().size(), Asks::kMostNoted);
  EXPECT_EQ(asked_, Asks::kMostNoted);
}

// A lost one would leave hits in the estimate that nobody can have.
TEST_F(AsksTest, ResetsBeyondTheBoundAreNotedOnceForEachSlot) {
  for (std::size_t i = 0; i < Asks::kMostNoted; ++i) Store(7);
  for (int i = 0; i < 1000; ++i) {
    asks_.SlotVoided(3);
    asks_.SlotVoided(4);
    Store(7);
  }
  EXPECT_EQ(Take().size(), Asks::kMostNoted + 2);
  for (int i = 0; i < 1000; ++i) asks_.SlotVoided(3);
  EXPECT_EQ(Take().size(), 1U) << "resets of which nobody stored anything";
}

TEST_F(AsksTest, AnObjectThatIsNotKnownIsLearnedWhenItIsRead) {
  EXPECT_FALSE(asks_.Knows(5));
  asks_.Hit(Object(5));
  EXPECT_TRUE(asks_.Knows(5));
  asks_.SetNow(100 * kSecond);
  asks_.Gone(Object(5), MissReason::kEvicted, false);
  EXPECT_EQ(asks_.residence().sum_s, 0U) << "nobody knows when it was stored";
  EXPECT_EQ(asked_ + Take().size(), 1U);
  EXPECT_EQ(asks_.distinct(), 1U);
}

TEST_F(AsksTest, TellsHowLongEvictedObjectsWereThere) {
  asks_.SetNow(10 * kSecond);
  Store(1);
  Store(2);
  Store(3);
  asks_.SetNow(12 * kSecond);
  asks_.Gone(Object(1), MissReason::kEvicted, false);
  asks_.SetNow(310 * kSecond);
  asks_.Gone(Object(2), MissReason::kEvicted, false);
  asks_.Gone(Object(3), MissReason::kRemoved, false);
  EXPECT_EQ(asks_.residence().sum_s, 302U);
  EXPECT_EQ(asks_.residence().counts[1], 1U) << "2 s: below 4";
  EXPECT_EQ(asks_.residence().counts[5], 1U) << "300 s: below 1024";
}

// ---- what a core reports

TEST(CoreAsksTest, PutsHitsEvictionsAndResetsOfACore) {
  TestCore test({.payload_bytes = 4096, .max_objects = 1000});
  test.SetSlot(0, kFirst);
  test.core->Tick();
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(test.Put(0, std::to_string(i)), Code::kOk);
  }
  const std::string last = "99";
  const std::string_view key = last;
  test.core->Return(test.core->Lend(test.TokenOf(0), {&key, 1}));
  EXPECT_EQ(test.Put(0, last), Code::kExists);
  ASSERT_EQ(test.core->Remove(0, last), Code::kOk);
  test.SetSlot(0, kLater);
  std::vector<Access> accesses;
  EXPECT_EQ(test.core->asks().Take(accesses), 101U) << "100 puts and a read";
  const auto count = [&](Kind kind) { return std::ranges::count(accesses, kind, &Access::kind); };
  EXPECT_EQ(count(Kind::kStored), 100);
  EXPECT_EQ(count(Kind::kRead), 1);
  EXPECT_EQ(count(Kind::kTouched), 1);
  EXPECT_EQ(count(Kind::kRemoved), 1);
  EXPECT_EQ(count(Kind::kVoided), 1);
  EXPECT_EQ(accesses.back().kind, Kind::kVoided);
  const PoolStat stat = test.core->Stat();
  EXPECT_NEAR(static_cast<double>(stat.distinct), 100, 5);
  std::uint64_t evicted = 0;
  for (const std::uint64_t bucket : test.core->asks().residence().counts) evicted += bucket;
  EXPECT_EQ(evicted, stat.evictions);
  EXPECT_EQ(evicted, 36U) << "64 of 100 have room";
}

}  // namespace
}  // namespace kvcove::owner
