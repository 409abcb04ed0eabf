// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/objects.h"

#include <gtest/gtest.h>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

class ObjectsTest : public testing::Test {
 protected:
  ObjectId Insert(SlotId slot, const std::string& key) {
    const Extent extent{.start = 0, .count = 1};
    return *objects_.Insert({.key = key,
                             .hash = objects_.view().HashKey(slot, key),
                             .slot = slot,
                             .generation = objects_.slot(slot).generation,
                             .size_bytes = 10,
                             .extents = {&extent, 1}},
                            /*space=*/4);
  }
  TestSegment segment_{1000, kMiB};
  Objects objects_{segment_.view};
};

TEST_F(ObjectsTest, AResetMovesAllOfASlotAndNothingElse) {
  objects_.SetGeneration(1, kFirst);
  objects_.SetGeneration(2, kFirst);
  const ObjectId plain = Insert(1, "a");
  const ObjectId pinned = Insert(1, "b");
  const ObjectId other = Insert(2, "a");
  objects_.SetHardPinned(pinned, true);
  EXPECT_EQ(objects_.slot(1).current(), 2U);
  const std::uint64_t bytes = objects_.Bytes(plain) + objects_.Bytes(pinned);
  EXPECT_EQ(objects_.slot(1).current_bytes, bytes);
  EXPECT_EQ(objects_.AnyDead(), kNoObject);
  objects_.SetGeneration(1, kLater);
  EXPECT_EQ(objects_.slot(1).voided, 2U);
  EXPECT_EQ(objects_.slot(1).voided_bytes, bytes);
  EXPECT_EQ(objects_.slot(1).current_bytes, 0U);
  EXPECT_EQ(objects_.slot(1).current(), 0U);
  EXPECT_EQ(objects_.dead(), 2U);
  EXPECT_FALSE(objects_.Current(plain));
  EXPECT_TRUE(objects_.Current(other));
  EXPECT_EQ(objects_.AnyDead(), pinned) << "a reset voids hard pins, too";
  const Objects::Removed removed =
      objects_.Withdraw(pinned, objects_.HashOf(pinned), MissReason::kReset);
  EXPECT_TRUE(removed.dead);
  EXPECT_TRUE(removed.hard_pinned);
  EXPECT_EQ(removed.space, 4);
  EXPECT_EQ(objects_.AnyDead(), plain);
  EXPECT_FALSE(objects_.Withdraw(plain, objects_.HashOf(plain), MissReason::kReset).hard_pinned);
  EXPECT_EQ(objects_.AnyDead(), kNoObject);
  EXPECT_EQ(objects_.dead(), 0U);
}

TEST_F(ObjectsTest, TheOldestVersionThatNobodyNamesIsSweptFirstAndNoPinInIt) {
  objects_.SetGeneration(1, kLater);
  objects_.SetGeneration(2, kFirst);
  const ObjectId younger = Insert(1, "a");
  const ObjectId pinned = Insert(2, "a");
  const ObjectId older = Insert(2, "b");
  objects_.SetHardPinned(pinned, true);
  EXPECT_EQ(objects_.AnyUnnamed(), kNoObject);
  objects_.SetNamed(1, false);
  objects_.SetNamed(2, false);
  EXPECT_EQ(objects_.AnyUnnamed(), older);
  (void)objects_.Withdraw(older, objects_.HashOf(older), MissReason::kEvicted);
  EXPECT_EQ(objects_.AnyUnnamed(), younger);
  objects_.SetNamed(1, true);
  EXPECT_EQ(objects_.AnyUnnamed(), kNoObject);
  objects_.SetHardPinned(pinned, false);
  EXPECT_EQ(objects_.AnyUnnamed(), pinned);
}

TEST_F(ObjectsTest, NumbersAreReusedAndVersionsAreNot) {
  objects_.SetGeneration(1, kFirst);
  const ObjectId first = Insert(1, "a");
  const Version version = objects_.VersionOf(first);
  const Place place = objects_[first].place;
  EXPECT_EQ(objects_.Named(place, version), first);
  (void)objects_.Withdraw(first, objects_.HashOf(first), MissReason::kRemoved);
  EXPECT_FALSE(objects_.Has(first));
  EXPECT_EQ(objects_.slot(1).current_bytes, 0U);
  EXPECT_EQ(objects_.Named(place, version), kNoObject);
  EXPECT_EQ(objects_.view().GhostReason(objects_.view().HashKey(1, "a")), MissReason::kRemoved);
  const ObjectId second = Insert(1, "b");
  EXPECT_EQ(second, first);
  EXPECT_NE(objects_.VersionOf(second), version);
  EXPECT_FALSE(objects_.Has(second, version));
  EXPECT_EQ(objects_.end(), 1U);
}

TEST_F(ObjectsTest, ReadersFindNoGenerationInAHiddenSlot) {
  objects_.SetGeneration(1, kFirst);
  objects_.SetHidden(1, true);
  EXPECT_EQ(segment_.view.generation(1), 0U);
  objects_.SetGeneration(1, kLater);
  EXPECT_EQ(segment_.view.generation(1), 0U);
  objects_.SetHidden(1, false);
  EXPECT_EQ(segment_.view.generation(1), kLater);
}

TEST_F(ObjectsTest, WhatASessionMakesUpNamesNothing) {
  objects_.SetGeneration(1, kFirst);
  const ObjectId id = Insert(1, "a");
  EXPECT_EQ(objects_.Named(0, objects_.VersionOf(id)), kNoObject);
  EXPECT_EQ(objects_.Named(0xFFFFFFFF, 1), kNoObject);
  EXPECT_EQ(objects_.Named(objects_[id].place, 0), kNoObject);
  EXPECT_EQ(objects_.Named(objects_[id].place + 1, objects_.VersionOf(id)), kNoObject);
}

// The count takes five bits of what is kept for each value.
TEST_F(ObjectsTest, HoldsAreCountedUpToABound) {
  objects_.SetGeneration(1, kFirst);
  const ObjectId id = Insert(1, "k");
  for (std::uint32_t i = 0; i < Objects::kMostHolds; ++i) EXPECT_TRUE(objects_.Hold(id));
  EXPECT_FALSE(objects_.Hold(id));
  for (std::uint32_t i = 0; i < Objects::kMostHolds; ++i) {
    EXPECT_GT(objects_[id].held, 0U);
    objects_.Unhold(id);
  }
  EXPECT_EQ(objects_[id].held, 0U);
  objects_.Unhold(id);
  EXPECT_EQ(objects_[id].held, 0U);
}

}  // namespace
}  // namespace kvcove::owner
