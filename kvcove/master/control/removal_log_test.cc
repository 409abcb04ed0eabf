// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/removal_log.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kvcove/master/directory/removal_memory.h"

namespace kvcove::master {
namespace {

constexpr std::uint64_t kTerm = 3;
constexpr RemovalLog::Limits kSmall{.bytes = 10'000, .page_bytes = 1000, .part_bytes = 400};

wire::Removal Of(SlotId slot, std::vector<std::string> keys) {
  return {.slot = slot, .generation = 7, .keys = std::move(keys), .pattern = {}};
}
std::vector<std::string> Keys(int count, const std::string& prefix = "key") {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
  return keys;
}

// ---- the log that owners read

TEST(RemovalLogTest, NumbersGrowAndLieAboveThoseOfEarlierTerms) {
  RemovalLog log(kTerm);
  const std::uint64_t first = log.Append(Of(1, {"a"}));
  EXPECT_EQ(first, RemovalLog::FirstOf(kTerm) + 1);
  EXPECT_EQ(log.Append(Of(2, {"b"})), first + 1);
  EXPECT_EQ(log.LastOf(1), first);
  EXPECT_EQ(log.LastOf(9), 0U);
  EXPECT_LT(first, RemovalLog::FirstOf(kTerm + 1));
}

TEST(RemovalLogTest, AnOwnerGetsWhatFollowsItsNumber) {
  RemovalLog log(kTerm);
  const std::uint64_t first = log.Append(Of(1, {"a"}));
  const std::uint64_t second = log.Append(Of(2, {"b"}));
  const wire::RemovalsPage page = log.After(first);
  ASSERT_EQ(page.removals.size(), 1U);
  EXPECT_EQ(page.removals[0].keys, std::vector<std::string>{"b"});
  EXPECT_EQ(page.removals[0].number, second);
  EXPECT_EQ(page.upto, second);
  EXPECT_FALSE(page.more);
  EXPECT_TRUE(log.After(second).removals.empty());
}

TEST(RemovalLogTest, WhatIsHeldBackIsShownInTheOrderOfNumbers) {
  RemovalLog log(kTerm);
  const std::uint64_t first = log.Append(Of(1, {"a"}), /*held_back=*/true);
  const std::uint64_t second = log.Append(Of(2, {"b"}), /*held_back=*/true);
  log.Show(second);
  EXPECT_EQ(log.shown(), first - 1);
  EXPECT_TRUE(log.After(first - 1).removals.empty()) << "the first would be missed";
  EXPECT_EQ(log.After(first - 1).upto, first - 1);
  log.Trim(~0ULL);
  log.Show(first);
  EXPECT_EQ(log.After(first - 1).removals.size(), 2U);
  EXPECT_EQ(log.After(first - 1).upto, second);
}

TEST(RemovalLogTest, PartsOfALargeRemovalFitAPageAndLoseNoKey) {
  const RemovalLog log(kTerm, kSmall);
  const std::vector<std::string> keys = Keys(1000);
  std::vector<std::string> all;
  for (const auto& part : log.PartsOf(keys)) {
    ASSERT_FALSE(part.empty());
    std::size_t bytes = 0;
    for (const std::string& key : part) bytes += key.size();
    EXPECT_LE(bytes, kSmall.part_bytes);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(all, keys);
  EXPECT_TRUE(log.PartsOf({}).empty());
  EXPECT_EQ(log.PartsOf({std::string(kMaxKeyBytes, 'k')}).size(), 1U);
}

TEST(RemovalLogTest, PagesTogetherAreTheWholeLog) {
  RemovalLog log(kTerm, kSmall);
  for (int i = 0; i < 60; ++i) log.Append(Of(static_cast<SlotId>(i % 3), Keys(2)));
  std::vector<std::uint64_t> seen;
  std::uint64_t after = RemovalLog::FirstOf(kTerm);
  std::size_t pages = 0;
  for (bool more = true; more; ++pages) {
    const wire::RemovalsPage page = log.After(after);
    for (const wire::Removal& removal : page.removals) seen.push_back(removal.number);
    ASSERT_GT(page.upto, after);
    after = page.upto;
    more = page.more;
  }
  EXPECT_EQ(after, log.last());
  EXPECT_EQ(seen.size(), 60U);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_GT(pages, 3U);
}

TEST(RemovalLogTest, WhatWasDroppedLeavesAFloorInItsSlot) {
  RemovalLog log(kTerm, kSmall);
  const std::uint64_t other = log.Append(Of(2, {"quiet"}));
  std::uint64_t first = 0;
  for (int i = 0; i < 500; ++i) {
    const std::uint64_t number = log.Append(Of(1, Keys(2)));
    if (first == 0) first = number;
  }
  EXPECT_LE(log.bytes(), kSmall.bytes);
  EXPECT_GT(log.FloorOf(1), first);
  EXPECT_EQ(log.FloorOf(2), 0U) << "a slot that floods costs no other slot its removals";
  wire::RemovalsPage page = log.After(RemovalLog::FirstOf(kTerm));
  EXPECT_EQ(page.drop, std::vector<SlotId>{1});
  EXPECT_EQ(page.removals[0].number, other);
  EXPECT_TRUE(log.After(log.FloorOf(1)).drop.empty()) << "it has applied what is missing";
}

TEST(RemovalLogTest, ANewGenerationVoidsItsSlotOnly) {
  RemovalLog log(kTerm, kSmall);
  for (int i = 0; i < 500; ++i) log.Append(Of(1, Keys(2)));
  const std::uint64_t other = log.Append(Of(2, {"b"}));
  log.Void(1);
  log.Void(9);
  EXPECT_EQ(log.size(), 1U);
  EXPECT_EQ(log.FloorOf(1), 0U);
  EXPECT_EQ(log.last(), other) << "numbers go on";
  const wire::RemovalsPage page = log.After(RemovalLog::FirstOf(kTerm));
  EXPECT_TRUE(page.drop.empty());
  EXPECT_EQ(page.removals.size(), 1U);
  EXPECT_EQ(page.upto, other);
}

TEST(RemovalLogTest, WhatAllHaveAppliedIsForgotten) {
  RemovalLog log(kTerm);
  const std::uint64_t first = log.Append(Of(1, {"a"}));
  const std::uint64_t second = log.Append(Of(2, {"b"}));
  log.Trim(first);
  EXPECT_EQ(log.size(), 1U);
  EXPECT_EQ(log.FloorOf(1), first);
  EXPECT_TRUE(log.After(first).drop.empty());
  log.Trim(~0ULL);
  EXPECT_EQ(log.size(), 0U);
  EXPECT_EQ(log.bytes(), 0U);
  EXPECT_EQ(log.last(), second);
}

TEST(RemovalLogTest, TellsAtLeastHowMuchAnOwnerHasToApply) {
  RemovalLog log(kTerm);
  const std::uint64_t start = log.last();
  EXPECT_EQ(log.BytesAfter(start), 0U);
  const std::uint64_t first = log.Append(Of(1, Keys(10)));
  const std::size_t one = log.bytes();
  log.Append(Of(2, Keys(10)));
  EXPECT_EQ(log.BytesAfter(start), log.bytes());
  EXPECT_EQ(log.BytesAfter(first), log.bytes() - one);
  EXPECT_EQ(log.BytesAfter(log.last()), 0U);
  log.Void(1);
  EXPECT_GE(log.BytesAfter(start), log.bytes());
}

// ---- what the directory remembers

TEST(RemovalMemoryTest, AListingThatWasBegunBeforeTheRemovalIsSeen) {
  RemovalMemory memory;
  memory.Remember(1, 77, 10);
  EXPECT_TRUE(memory.RemovedSince(1, 77, 9));
  EXPECT_FALSE(memory.RemovedSince(1, 77, 10)) << "its owner had applied it";
  EXPECT_FALSE(memory.RemovedSince(1, 78, 0));
}

TEST(RemovalMemoryTest, APatternCountsForItsSlot) {
  RemovalMemory memory;
  memory.RememberPattern(1, 10);
  EXPECT_TRUE(memory.PatternSince(1, 9));
  EXPECT_FALSE(memory.PatternSince(1, 10));
  EXPECT_FALSE(memory.PatternSince(2, 0));
}

TEST(RemovalMemoryTest, WhatIsForgottenRaisesTheFloorOfItsSlotOnly) {
  RemovalMemory memory(100);
  memory.Remember(2, 1'000'000, 1);
  for (std::uint64_t i = 1; i <= 1000; ++i) memory.Remember(1, i, 10 + i);
  EXPECT_EQ(memory.size(), 100U);
  EXPECT_TRUE(memory.RemovedSince(1, 5, 10)) << "forgotten, so it may have been removed";
  EXPECT_TRUE(memory.RemovedSince(1, 424242, 10)) << "nobody knows what else was";
  EXPECT_FALSE(memory.RemovedSince(1, 424242, 1010));
  EXPECT_TRUE(memory.RemovedSince(2, 1'000'000, 0));
  EXPECT_FALSE(memory.RemovedSince(2, 424242, 0)) << "another slot's flood";
}

TEST(RemovalMemoryTest, AKeyThatIsRemovedAgainIsRememberedByItsLatest) {
  RemovalMemory memory(2);
  memory.Remember(1, 7, 10);
  memory.Remember(1, 7, 11);
  memory.Remember(1, 8, 12);  // the first entry of 7 is forgotten, its second one is not
  EXPECT_TRUE(memory.RemovedSince(1, 7, 10));
  EXPECT_FALSE(memory.RemovedSince(1, 7, 11));
  EXPECT_FALSE(memory.RemovedSince(1, 9, 0)) << "nothing was lost";
}

}  // namespace
}  // namespace kvcove::master
