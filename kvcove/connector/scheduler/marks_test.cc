// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/marks.h"

#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

constexpr BlockId kMarked = 3;
constexpr std::uint64_t kLora = 7;

TEST(BlockMarksTest, ABlockIsSavedOnceAnEpoch) {
  Marks marks(16);
  EXPECT_FALSE(marks.BeginSave(kMarked)) << "nothing is known of it";
  marks.Computed(kMarked, /*storable=*/true, kLora);
  EXPECT_TRUE(marks.BeginSave(kMarked));
  EXPECT_FALSE(marks.BeginSave(kMarked));
  marks.Unstored(kMarked);
  EXPECT_TRUE(marks.BeginSave(kMarked)) << "the save failed";
}

TEST(BlockMarksTest, AnEpochVoidsEveryMark) {
  Marks marks(16);
  marks.Computed(kMarked, true, kLora);
  marks.Loaded(kMarked + 1, kLora);
  marks.BeginEpoch();
  EXPECT_EQ(marks.epoch(), 2U);
  EXPECT_FALSE(marks.BeginSave(kMarked));
  EXPECT_FALSE(marks.MayBeginOn(kMarked, kLora, 0));
  EXPECT_FALSE(marks.MayBeginOn(kMarked + 1, kLora, 0));
  marks.Computed(kMarked, true, kLora);
  EXPECT_TRUE(marks.BeginSave(kMarked));
}

TEST(BlockMarksTest, ASaveOfAnEarlierEpochThatFailsChangesNothing) {
  Marks marks(16);
  marks.Computed(kMarked, true, kLora);
  ASSERT_TRUE(marks.BeginSave(kMarked));
  marks.BeginEpoch();
  marks.Unstored(kMarked);
  EXPECT_FALSE(marks.BeginSave(kMarked));
}

TEST(BlockMarksTest, NothingBeginsOnWhatMayNotBeStored) {
  Marks marks(16);
  EXPECT_FALSE(marks.MayBeginOn(kMarked, kLora, 0)) << "never computed";
  marks.Computed(kMarked, /*storable=*/false, kLora);
  EXPECT_FALSE(marks.MayBeginOn(kMarked, kLora, 0));
  EXPECT_FALSE(marks.BeginSave(kMarked));
  marks.Computed(kMarked, true, kLora);
  EXPECT_TRUE(marks.MayBeginOn(kMarked, kLora, 0));
  EXPECT_FALSE(marks.MayBeginOn(kMarked, kLora + 1, 0)) << "another adapter";
  marks.Void(kMarked);
  EXPECT_FALSE(marks.MayBeginOn(kMarked, kLora, 0));
}

TEST(BlockMarksTest, WhatWasLoadedIsNotSavedAgain) {
  Marks marks(16);
  marks.Computed(kMarked, true, kLora);
  marks.BeginLoad(kMarked, 0);
  EXPECT_FALSE(marks.MayBeginOn(kMarked, kLora, 0)) << "whatever it held before is gone";
  marks.Loaded(kMarked, kLora);
  EXPECT_TRUE(marks.MayBeginOn(kMarked, kLora, 0));
  EXPECT_FALSE(marks.BeginSave(kMarked));
}

TEST(BlockMarksTest, ASynchronousLoadSettlesItsBlocksAlone) {
  Marks marks(16);
  marks.BeginLoad(1, /*awaits=*/5);
  marks.Computed(2, /*storable=*/false, kLora, /*awaits=*/5);
  marks.BeginLoad(3, /*awaits=*/6);
  EXPECT_TRUE(marks.MayBeginOn(1, kLora, /*own_load=*/5));
  EXPECT_FALSE(marks.MayBeginOn(1, kLora, /*own_load=*/6)) << "another request's load may fail";
  EXPECT_FALSE(marks.MayBeginOn(1, kLora, /*own_load=*/0));
  marks.Settle(1, 5, /*loaded=*/true, kLora);
  marks.Settle(2, 5, /*loaded=*/false, kLora);
  marks.Settle(3, 5, /*loaded=*/true, kLora);
  EXPECT_TRUE(marks.MayBeginOn(1, kLora, 0));
  EXPECT_FALSE(marks.BeginSave(1)) << "the pool has it";
  EXPECT_TRUE(marks.BeginSave(2));
  EXPECT_FALSE(marks.MayBeginOn(3, kLora, 0)) << "another request has the block now";
}

TEST(BlockMarksTest, ACopyIsKnownLikeItsOriginalButIsNotStored) {
  Marks marks(16);
  marks.Loaded(1, kLora);
  EXPECT_EQ(marks.Copy(1, 2), 0U);
  EXPECT_TRUE(marks.MayBeginOn(2, kLora, 0));
  EXPECT_TRUE(marks.BeginSave(2));
  EXPECT_FALSE(marks.BeginSave(1));
  marks.BeginLoad(3, /*awaits=*/9);
  EXPECT_EQ(marks.Copy(3, 4), 9U);
  marks.Settle(4, 9, /*loaded=*/false, kLora);
  EXPECT_TRUE(marks.MayBeginOn(4, kLora, 0));
}

TEST(BlockMarksTest, BlocksBeyondWhatTheEngineNamedAreKept) {
  Marks marks(0);
  marks.Computed(1, true, kLora);
  marks.Computed(100'000, true, kLora);
  EXPECT_TRUE(marks.MayBeginOn(1, kLora, 0)) << "the table grew";
  EXPECT_TRUE(marks.MayBeginOn(100'000, kLora, 0));
  EXPECT_FALSE(marks.MayBeginOn(200'000, kLora, 0));
}

}  // namespace
}  // namespace kvcove::connector
