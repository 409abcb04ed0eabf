// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/directory_opening.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

constexpr Id128 kBefore{.high = 1, .low = 1};
constexpr Id128 kOlder{.high = 1, .low = 2};

OwnerFacts FactsOf(const DirectoryOpening& opening) {
  OwnerFacts facts;
  opening.Set(facts);
  return facts;
}

// A process that has drawn its number, which is in the directory.
class DirectoryOpeningTest : public testing::Test {
 protected:
  void Begin(const Id128& stored = kBefore) {
    OwnerFacts facts;
    facts.opening = kBefore;
    facts.opening_before = kOlder;
    opening_.Read(facts);
    ASSERT_TRUE(opening_.Welcomed(stored, 0));
    opening_.Written(FactsOf(opening_));
  }
  void Store() { opening_.Stored(opening_.Told()); }

  DirectoryOpening opening_{600 * kSecond};
};

TEST_F(DirectoryOpeningTest, AProcessDrawsOneAndKeepsTheOneThatTheMasterHas) {
  // The last process was killed before the master had stored kBefore.
  OwnerFacts facts;
  facts.opening = kBefore;
  facts.opening_before = kOlder;
  opening_.Read(facts);
  EXPECT_FALSE(opening_.awaits(0)) << "no master has welcomed it";
  ASSERT_TRUE(opening_.Welcomed(kOlder, 0));
  const OwnerFacts drawn = FactsOf(opening_);
  EXPECT_NE(drawn.opening, kBefore);
  EXPECT_EQ(drawn.opening_before, kOlder);
  EXPECT_EQ(opening_.Told(), Id128{}) << "the directory does not have it";
  opening_.Written(facts);
  EXPECT_EQ(opening_.Told(), Id128{}) << "an earlier write";
  opening_.Written(drawn);
  EXPECT_EQ(opening_.Told(), drawn.opening);
  EXPECT_TRUE(opening_.awaits(0)) << "the disks wait for the master";
  EXPECT_FALSE(opening_.awaits(6 * kSecond)) << "its store may hang";
  EXPECT_TRUE(opening_.hurries(kSecond / 2));
  EXPECT_FALSE(opening_.hurries(2 * kSecond));
  opening_.Stored(kOlder);
  EXPECT_TRUE(opening_.awaits(0));
  opening_.Stored(drawn.opening);
  EXPECT_FALSE(opening_.awaits(0));
  EXPECT_FALSE(opening_.Welcomed(drawn.opening, 1)) << "once a process";
}

TEST_F(DirectoryOpeningTest, UnderAMasterThatStoresNoneNothingIsDrawn) {
  OwnerFacts facts;
  facts.opening = kBefore;
  opening_.Read(facts);
  EXPECT_FALSE(opening_.Welcomed(std::nullopt, 0));
  EXPECT_FALSE(opening_.awaits(0));
  EXPECT_FALSE(opening_.DrawLast());
  EXPECT_EQ(FactsOf(opening_), facts) << "a later master may have stored it";
  EXPECT_TRUE(opening_.Welcomed(kBefore, 1)) << "the master was upgraded";
}

// Else the next process would be forgotten, though nothing was put back from a copy.
TEST_F(DirectoryOpeningTest, TheMasterIsNotToldOfANumberThatCannotBeWritten) {
  opening_.Read({});
  ASSERT_TRUE(opening_.Welcomed(Id128{}, 0));
  EXPECT_EQ(opening_.Told(), Id128{});
  EXPECT_TRUE(opening_.awaits(4 * kSecond));
  EXPECT_FALSE(opening_.awaits(6 * kSecond)) << "the disks do not wait for ever";
  EXPECT_FALSE(opening_.DrawLast());
}

TEST_F(DirectoryOpeningTest, ACleanEndDrawsTheNextOnceTheMasterHasTheLast) {
  Begin();
  EXPECT_FALSE(opening_.DrawLast()) << "the directory would have to name three";
  Store();
  const OwnerFacts before = FactsOf(opening_);
  ASSERT_TRUE(opening_.DrawLast());
  EXPECT_NE(FactsOf(opening_).opening, before.opening);
  EXPECT_EQ(FactsOf(opening_).opening_before, before.opening);
  EXPECT_EQ(opening_.Told(), Id128{}) << "the directory does not have it yet";
}

TEST_F(DirectoryOpeningTest, AnotherOneIsDrawnFromTimeToTime) {
  Begin();
  Store();
  EXPECT_FALSE(opening_.DrawAgain(599 * kSecond));
  EXPECT_TRUE(opening_.DrawAgain(600 * kSecond));
  EXPECT_FALSE(opening_.DrawAgain(1300 * kSecond)) << "the master does not have it yet";
  opening_.Written(FactsOf(opening_));
  Store();
  EXPECT_TRUE(opening_.DrawAgain(1300 * kSecond));
  opening_.Written(FactsOf(opening_));
  Store();
  EXPECT_FALSE(opening_.DrawAgain(1899 * kSecond));
}

TEST_F(DirectoryOpeningTest, AnotherIdentityDrawsOneOfItsOwn) {
  Begin();
  Store();
  opening_.Forget();
  EXPECT_TRUE(opening_.awaits(0));
  ASSERT_TRUE(opening_.Welcomed(Id128{}, 0));
  EXPECT_EQ(FactsOf(opening_).opening_before, Id128{});
}

// The store was put back from a backup, which begins another incarnation.
TEST_F(DirectoryOpeningTest, AMasterWithAnEarlierOpeningKnowsTheProcessByIt) {
  Begin();
  Store();
  const Id128 now = opening_.Told();
  EXPECT_TRUE(opening_.Welcomed(kOlder, 0));
  EXPECT_EQ(opening_.named().now, now);
  EXPECT_EQ(opening_.named().before, kOlder);
  EXPECT_EQ(opening_.Told(), now) << "the master is to store it";
  EXPECT_FALSE(opening_.Welcomed(kOlder, 0)) << "the directory names it already";
}

TEST_F(DirectoryOpeningTest, AnUpgradePassesItOn) {
  Begin();
  Store();
  DirectoryOpening successor;
  successor.Adopt(FactsOf(opening_));
  EXPECT_FALSE(successor.awaits(0));
  EXPECT_FALSE(successor.Welcomed(opening_.Told(), 0));
  EXPECT_FALSE(successor.awaits(0)) << "the master has it already";
}

}  // namespace
}  // namespace kvcove::owner
