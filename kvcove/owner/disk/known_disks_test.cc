// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/known_disks.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>

#include "kvcove/segment/tier_table.h"

namespace kvcove::owner {
namespace {

using segment::kAllTierShares;

std::vector<int> Counts(const std::vector<std::uint64_t>& shares) {
  std::vector<int> counts;
  std::uint64_t seen = 0;
  for (const std::uint64_t mine : shares) {
    EXPECT_EQ(mine & seen, 0U) << "a share of two disks";
    seen |= mine;
    counts.push_back(std::popcount(mine));
  }
  EXPECT_EQ(seen, kAllTierShares) << "a share of no disk";
  return counts;
}

std::vector<std::uint64_t> New(const std::vector<std::uint64_t>& sizes) {
  return AssignShares(sizes, std::vector<std::uint64_t>(sizes.size()));
}

TEST(AssignSharesTest, EachDiskGetsItsPartBySize) {
  EXPECT_EQ(Counts(New({5})), (std::vector{64}));
  EXPECT_EQ(Counts(New({5, 5})), (std::vector{32, 32}));
  EXPECT_EQ(Counts(New({10, 30})), (std::vector{16, 48}));
  EXPECT_EQ(Counts(New({1ULL << 60, 1ULL << 60, 1ULL << 61})), (std::vector{16, 16, 32}));
  const auto thirds = Counts(New({7, 7, 7}));
  EXPECT_EQ(*std::ranges::max_element(thirds), 22);
  EXPECT_EQ(*std::ranges::min_element(thirds), 21);
}

TEST(AssignSharesTest, ASmallDiskGetsOneAtLeast) {
  std::vector<std::uint64_t> sizes(kMaxDisks, 1);
  sizes.front() = 1ULL << 50;
  const auto counts = Counts(New(sizes));
  EXPECT_EQ(counts.front(), 64 - static_cast<int>(kMaxDisks - 1));
  EXPECT_EQ(counts.back(), 1);
}

TEST(AssignSharesTest, AsFewAsPossibleMove) {
  const auto two = New({1, 1});
  // The same again: none.
  EXPECT_EQ(AssignShares(std::vector<std::uint64_t>{1, 1}, two), two);
  // A third one: only to it.
  const auto three =
      AssignShares(std::vector<std::uint64_t>{1, 1, 2}, std::vector{two[0], two[1], 0UL});
  EXPECT_EQ(Counts(three), (std::vector{16, 16, 32}));
  EXPECT_EQ(three[0] & ~two[0], 0U);
  EXPECT_EQ(three[1] & ~two[1], 0U);
  // One less: the others keep what they have.
  const auto less = AssignShares(std::vector<std::uint64_t>{1, 2}, std::vector{three[0], three[2]});
  EXPECT_EQ(three[0] & ~less[0], 0U);
  EXPECT_EQ(three[2] & ~less[1], 0U);
  Counts(less);
}

class KnownDisksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/kvcove-known-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void WriteFile(const std::string& text) { std::ofstream(directory_ + "/disk") << text; }
  std::string directory_;
};

TEST_F(KnownDisksTest, OneDiskIsNotedByItsNumberAlone) {
  KnownDisks known(directory_);
  EXPECT_TRUE(known.Read()->empty());
  const KnownDisk one{.disk = {.high = 1, .low = 2}, .shares = kAllTierShares};
  ASSERT_TRUE(known.Note(one));
  std::ifstream file(directory_ + "/disk");
  std::string text;
  file >> text;
  EXPECT_EQ(text, ToHex(one.disk)) << "as builds with one disk read it";
  EXPECT_EQ(*KnownDisks(directory_).Read(), std::vector{one});
  ASSERT_TRUE(known.Forget(kAllTierShares));
  EXPECT_TRUE(known.Read()->empty());
  EXPECT_TRUE(known.Forget(kAllTierShares)) << "again";
}

TEST_F(KnownDisksTest, ADiskIsForgottenAndNotedAloneByItsShares) {
  KnownDisks known(directory_);
  const KnownDisk one{.disk = {.high = 1, .low = 2}, .shares = 0xFF};
  const KnownDisk two{.disk = {.high = 3, .low = 4}, .shares = ~0xFFULL};
  ASSERT_TRUE(known.Write(std::vector{one, two}));
  EXPECT_EQ(*known.Read(), (std::vector{one, two}));
  ASSERT_TRUE(known.Forget(two.shares));
  EXPECT_EQ(*known.Read(), (std::vector{one}));
  const KnownDisk emptied{.disk = {.high = 5, .low = 6}, .shares = two.shares};
  ASSERT_TRUE(known.Note(emptied));
  EXPECT_EQ(*known.Read(), (std::vector{one, emptied}));
}

TEST_F(KnownDisksTest, EachOwnerOfAProcessHasItsOwn) {
  const KnownDisk disk{.disk = {.high = 1, .low = 2}, .shares = kAllTierShares};
  for (const std::size_t owner : {0, 1, 12}) {
    ASSERT_TRUE(KnownDisks(directory_, owner).Note(disk));
  }
  WriteFile(ToHex(disk.disk));
  std::ofstream(directory_ + "/disk-x") << "a stranger's";
  ASSERT_TRUE(KnownDisks::ForgetOwners(directory_, 1));
  EXPECT_EQ(KnownDisks(directory_, 0).Read()->size(), 1U);
  EXPECT_TRUE(KnownDisks(directory_, 1).Read()->empty());
  EXPECT_TRUE(KnownDisks(directory_, 12).Read()->empty());
  EXPECT_TRUE(std::filesystem::exists(directory_ + "/disk-x"));
  EXPECT_FALSE(KnownDisks::ForgetOwners(directory_ + "/none", 0));
}

TEST_F(KnownDisksTest, AnotherOpeningIsNotedOfADiskThatIsNamed) {
  KnownDisks known(directory_);
  const Id128 first{.high = 7, .low = 7};
  KnownDisk one{.disk = {.high = 1, .low = 2}, .shares = 0xFF, .opening = first};
  const KnownDisk two{.disk = {.high = 3, .low = 4}, .shares = ~0xFFULL, .opening = {}};
  ASSERT_TRUE(known.Write(std::vector{one, two}));
  EXPECT_EQ(*KnownDisks(directory_).Read(), (std::vector{one, two}));
  one.opening = {.high = 8, .low = 8};
  EXPECT_TRUE(known.NoteOpening(one).value_or(false));
  EXPECT_EQ(*KnownDisks(directory_).Read(), (std::vector{one, two}));
  ASSERT_TRUE(known.Forget(one.shares));
  EXPECT_FALSE(known.NoteOpening(one).value_or(true)) << "it was struck meanwhile";
  EXPECT_EQ(*known.Read(), (std::vector{two}));
}

TEST_F(KnownDisksTest, WhatIsDamagedNamesNoDisk) {
  const std::string id = ToHex({.high = 1, .low = 2});
  for (const std::string& text :
       {std::string("rubbish"), id + " xyz", id + " 00ff\n" + id + " 0001", id + " ", id.substr(1),
        id + " 00ff " + id.substr(1), id + "  " + id}) {
    WriteFile(text);
    const auto read = KnownDisks(directory_).Read();
    ASSERT_TRUE(read) << text;
    EXPECT_TRUE(read->empty()) << text;
  }
}

TEST_F(KnownDisksTest, WhatCannotBeWrittenIsForgottenOnceItIsStoredElsewhere) {
  KnownDisks known(directory_);
  std::filesystem::create_directories(directory_ + "/disk/in the way");
  int struck = 0;
  EXPECT_FALSE(known.wants_void());
  EXPECT_FALSE(known.Forget(kAllTierShares, [&] { ++struck; }));
  EXPECT_TRUE(known.wants_void());
  EXPECT_EQ(struck, 0);
  known.SetVoid(true);
  EXPECT_TRUE(known.Forget(kAllTierShares, [&] { ++struck; }));
  EXPECT_EQ(struck, 1);
  EXPECT_FALSE(known.Note({.disk = {.high = 1, .low = 1}, .shares = kAllTierShares}));
  known.SetVoid(false);
  EXPECT_FALSE(known.Forget(kAllTierShares));
}

// The file may have the change, which a crash would undo: what it says now proves no strike.
TEST_F(KnownDisksTest, AfterAChangeThatFailedAStrikeIsWrittenEvenIfItChangesNothing) {
  constexpr std::uint64_t kHalf = kAllTierShares >> 32;
  KnownDisks known(directory_);
  ASSERT_TRUE(known.Note({.disk = {.high = 1, .low = 1}, .shares = kHalf}));
  EXPECT_TRUE(known.Forget(~kHalf)) << "it names none of them";
  const std::uint64_t writes = known.writes();
  EXPECT_TRUE(known.Forget(~kHalf));
  EXPECT_EQ(known.writes(), writes);
  std::filesystem::create_directories(directory_ + "/disk.new/in the way");
  EXPECT_FALSE(known.Note({.disk = {.high = 2, .low = 2}, .shares = ~kHalf}));
  EXPECT_FALSE(known.Forget(~kHalf));
  EXPECT_TRUE(known.wants_void());
  std::filesystem::remove_all(directory_ + "/disk.new");
  EXPECT_TRUE(known.Forget(~kHalf));
  EXPECT_GT(known.writes(), writes + 2);
  EXPECT_EQ(known.Read()->size(), 1U);
}

// Other builds read the file.
TEST_F(KnownDisksTest, TheNotesTextIsThis) {
  ASSERT_TRUE(
      KnownDisks(directory_)
          .Write(std::vector<KnownDisk>{
              {.disk = {.high = 1, .low = 2}, .shares = 0xFF, .opening = {.high = 3, .low = 4}},
              {.disk = {.high = 5, .low = 6}, .shares = ~0xFFULL}}));
  std::ifstream file(directory_ + "/disk");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}),
            "00000000000000010000000000000002 00000000000000ff 00000000000000030000000000000004\n"
            "00000000000000050000000000000006 ffffffffffffff00");
}

}  // namespace
}  // namespace kvcove::owner
