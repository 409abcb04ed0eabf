// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/hazards.h"

#include <gtest/gtest.h>

namespace kvcove::policy {
namespace {

TEST(AgeBucketTest, EachAgeLiesInItsBucket) {
  for (std::uint64_t age = 0; age < 3'000'000; age += 1 + age / 50) {
    const std::size_t bucket = AgeBucket(age);
    ASSERT_LT(bucket, kAges);
    EXPECT_LE(AgeOf(bucket), age);
    EXPECT_GT(AgeOf(bucket + 1), age);
  }
  EXPECT_LT(AgeBucket(~std::uint64_t{0}), kAges) << "beyond the last bucket is the last bucket";
}

TEST(ClassTest, ClassesAreApartAndKnowTheirGroup) {
  EXPECT_EQ(GroupOf(kTailClass), 0);
  for (const bool later : {false, true}) {
    for (const std::size_t length : {1, 2, 5, 9, 20, 50, 200}) {
      EXPECT_EQ(GroupOf(NewClass(later, length)), 1);
    }
  }
  EXPECT_NE(NewClass(false, 3), NewClass(true, 3));
  EXPECT_NE(NewClass(false, 3), NewClass(false, 4));
  EXPECT_EQ(NewClass(true, 64), NewClass(true, 10'000));
  EXPECT_EQ(GroupOf(UsedClass(UseBucket(1), true)), 2);
  EXPECT_EQ(GroupOf(UsedClass(UseBucket(15), false)), kGroups - 1);
  EXPECT_LT(UsedClass(UseBucket(15), true), kClasses);
}

// Those that come back at once are worth keeping for a while, those that come back late are not
// worth it before their time has come.
TEST(HazardTablesTest, WorthFollowsWhenBlocksReturn) {
  HazardTables tables;
  const std::uint8_t soon = NewClass(true, 3);
  const std::uint8_t late = UsedClass(UseBucket(1), false);
  const std::uint8_t never = kTailClass;
  for (int i = 0; i < 8000; ++i) {
    tables.AddReturn(soon, 100, 1);
    tables.AddReturn(late, 50'000, 1);
    tables.AddLost(never, 50'000, 1);
  }
  tables.BeginUpdate();
  tables.Update();
  const std::size_t young = AgeBucket(20);
  EXPECT_GT(tables.Index(soon, young), 10 * tables.Index(late, young));
  EXPECT_GT(tables.Index(late, AgeBucket(50'000)), 2 * tables.Index(late, young));
  EXPECT_LT(tables.Index(never, young), tables.Index(late, young));
}

// The living are at risk, too: without them a class whose blocks rarely return looks good as long
// as only those that have returned are known.
TEST(HazardTablesTest, WhatHasNotReturnedYetCounts) {
  const std::uint8_t cls = NewClass(false, 3);
  const auto worth = [&](float living) {
    HazardTables tables;
    for (int i = 0; i < 1000; ++i) tables.AddReturn(cls, 100, 1);
    tables.BeginUpdate();
    tables.AddLiving(cls, AgeBucket(1000), living);
    tables.Update();
    return tables.Index(cls, 0);
  };
  EXPECT_GT(worth(0), 3 * worth(10'000));
}

TEST(HazardTablesTest, ANewBehaviourReplacesAnOldOne) {
  HazardTables tables;
  const std::uint8_t cls = NewClass(false, 3);
  for (int i = 0; i < 50'000; ++i) tables.AddReturn(cls, 100, 1);
  tables.BeginUpdate();
  tables.Update();
  const double before = tables.Index(cls, 0);
  for (int i = 0; i < 200'000; ++i) tables.AddLost(cls, 100'000, 1);
  tables.BeginUpdate();
  tables.Update();
  EXPECT_LT(tables.Index(cls, 0), before / 5);
}

}  // namespace
}  // namespace kvcove::policy
