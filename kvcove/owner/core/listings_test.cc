// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/listings.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

TEST(ListingsTest, ACommitIsTakenOnceAndSaysWhichRemovalsItWasBegunAfter) {
  Listings listings;
  listings.Await(
      {.id = 9, .key = "a", .slot = 2, .generation = 7, .size_bytes = 10, .removals = 5});
  const std::vector<Pending> pending = listings.TakePending();
  ASSERT_EQ(pending.size(), 1U);
  EXPECT_EQ(pending[0].reservation, 9U);
  EXPECT_EQ(pending[0].item.hash, DirectoryHash(2, "a"));
  EXPECT_EQ(pending[0].item.removals, 5U);
  EXPECT_TRUE(listings.TakePending().empty());
}

TEST(ListingsTest, WhatIsGoneIsToldOldestFirst) {
  Listings listings;
  for (std::uint64_t i = 1; i <= 5; ++i) listings.AddGone({.high = i, .low = i}, 2, 8);
  const std::vector<InventoryItem> some = listings.TakeGone(2);
  ASSERT_EQ(some.size(), 2U);
  EXPECT_EQ(some[0].item.hash.high, 1U);
  EXPECT_EQ(some[1].item.hash.high, 2U);
  EXPECT_TRUE(some[0].item.gone);
  EXPECT_EQ(some[0].item.slot, 2);
  EXPECT_EQ(some[0].item.group, 8U);
  EXPECT_EQ(listings.TakeGone(100).size(), 3U);
  EXPECT_FALSE(listings.TakeGoneOverflow());
}

TEST(ListingsTest, WhatMovedIsToldInOneOrderWithWhatIsGone) {
  Listings listings;
  listings.SetApplied(40);
  listings.AddMoved({.hash = {.high = 1},
                     .generation = 7,
                     .size_bytes = 100,
                     .group = 9,
                     .slot = 2,
                     .copies = 2,
                     .tier = Tier::kDisk},
                    "key");
  listings.SetApplied(50);
  listings.AddGone({.high = 1}, 2, 9);
  const auto items = listings.TakeGone(10);
  ASSERT_EQ(items.size(), 2U);
  EXPECT_FALSE(items[0].item.gone);
  EXPECT_TRUE(items[0].item.inventory) << "it is no new put";
  EXPECT_EQ(items[0].item.tier, Tier::kDisk);
  EXPECT_EQ(items[0].item.generation, 7U);
  EXPECT_EQ(items[0].item.size_bytes, 100U);
  EXPECT_EQ(items[0].item.group, 9U);
  EXPECT_EQ(items[0].item.copies, 2U);
  EXPECT_EQ(items[0].item.removals, 40U) << "a removal since may mean it";
  EXPECT_EQ(items[0].key, "key");
  EXPECT_TRUE(items[1].item.gone);
  EXPECT_EQ(items[1].key, "");
}

TEST(ListingsTest, TooManyThatAreGoneAreSaidOnce) {
  Listings listings;
  for (std::size_t i = 0; i <= Listings::kMaxGone; ++i) listings.AddGone({.high = i}, 1, 1);
  EXPECT_TRUE(listings.TakeGoneOverflow());
  EXPECT_FALSE(listings.TakeGoneOverflow());
  EXPECT_EQ(listings.TakeGone(~0ULL).size(), Listings::kMaxGone);
}

TEST(ListingsTest, FactsAreAnObjectsOwn) {
  Listings listings;
  EXPECT_EQ(listings.FactsOf(10'000).copies, 1);
  listings.SetFacts(3, {.group = 4, .copies = 2});
  listings.SetChecksum(3, 77);
  EXPECT_EQ(listings.FactsOf(3).group, 4U);
  EXPECT_EQ(listings.FactsOf(3).copies, 2);
  EXPECT_TRUE(listings.FactsOf(3).has_checksum);
  EXPECT_EQ(listings.FactsOf(3).checksum, 77U);
  EXPECT_FALSE(listings.FactsOf(4).has_checksum);
}

}  // namespace
}  // namespace kvcove::owner
