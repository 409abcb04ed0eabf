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
  EXPECT_EQ(GroupOf(UsedClass(UseBucket(255), false)), kUseBuckets);
  EXPECT_EQ(UsedClass(UseBucket(255), true), kEphemeralClass - 1) << "the last one of its kind";
  EXPECT_EQ(BeforeTail(UsedClass(3, false)), UsedClass(3, true));
  for (const std::uint8_t cls : {kTailClass, NewClass(true, 9), kEphemeralClass, kEndedClass}) {
    EXPECT_EQ(BeforeTail(cls), cls);
  }
  const std::uint8_t whole = NewClass(true, 40);
  EXPECT_EQ(WithOutput(whole, 0), whole) << "not known";
  EXPECT_NE(WithOutput(whole, 1), whole);
  EXPECT_NE(WithOutput(whole, 1), WithOutput(whole, 10'000));
  for (const std::uint32_t tokens : {1, 200, 1 << 30}) {
    EXPECT_EQ(WholeOf(WithOutput(whole, tokens)), whole);
    EXPECT_EQ(GroupOf(WithOutput(whole, tokens)), GroupOf(whole));
    EXPECT_EQ(WithOutput(UsedClass(2, true), tokens), UsedClass(2, true));
    EXPECT_LT(WithOutput(NewClass(true, 1000), tokens), kAllClasses);
  }
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

// The parts of a class by output length are worth what the class is until they are seen to differ.
TEST(HazardTablesTest, OutputLengthsDivideAClass) {
  HazardTables tables;
  const std::uint8_t cls = NewClass(true, 3);
  EXPECT_EQ(tables.classes(), kClasses) << "no room before anybody tells a length";
  const std::uint8_t brief = WithOutput(cls, 10);
  const std::uint8_t long_one = WithOutput(cls, 2000);
  const std::uint8_t unseen = WithOutput(cls, 300);
  for (int i = 0; i < 5000; ++i) {
    tables.AddReturn(long_one, 200, 1);
    tables.AddLost(brief, 100'000, 1);
  }
  tables.BeginUpdate();
  tables.Update();
  ASSERT_EQ(tables.classes(), kAllClasses);
  EXPECT_GT(tables.Index(long_one, 0), 3 * tables.Index(brief, 0));
  EXPECT_NEAR(tables.Index(unseen, 0), tables.Index(cls, 0), 0.05 * tables.Index(cls, 0));
}

// The best stretch by its definition, beside the linear way that the tables take.
TEST(HazardTablesTest, TheIndexIsTheBestRateOfAnyStretch) {
  HazardTables tables({.class_weight = 0.001});
  const std::uint8_t cls = NewClass(true, 3);
  for (const int age : {40, 900, 900, 30'000, 30'000, 30'000}) {
    for (int i = 0; i < 1000; ++i) tables.AddReturn(cls, static_cast<std::uint64_t>(age), 1);
  }
  tables.BeginUpdate();
  tables.Update();
  // All return, so the hazards are those of the counts: what is left of 6,000 at each age.
  const auto rate = [&](std::size_t from, std::size_t until, double left, double returns) {
    return returns / left / static_cast<double>(AgeOf(until) - AgeOf(from));
  };
  const std::size_t at900 = AgeBucket(900);
  const std::size_t late = AgeBucket(30'000);
  // A 6th returns at 40, a third at 900: from age 0 the nearest is best.
  EXPECT_GT(tables.Index(cls, 0), 0.7 * rate(0, AgeBucket(40) + 1, 6000, 1000));
  EXPECT_NEAR(tables.Index(cls, at900),
              rate(at900, at900 + 1, 5000, 2000) / (1 - 0.5 * 2000 / 5000),
              0.05 * tables.Index(cls, at900));
  // Once all that is left is far away, waiting for it is all that can be earned.
  EXPECT_LT(tables.Index(cls, at900 + 1), 2 * rate(at900 + 1, late + 1, 3000, 3000));
  EXPECT_GT(tables.Index(cls, late), tables.Index(cls, at900 + 1));
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
