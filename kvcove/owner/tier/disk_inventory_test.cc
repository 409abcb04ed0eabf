// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_inventory.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::owner {
namespace {

TEST(DiskInventoryTest, WhatIsLostIsTakenOnceInOrder) {
  DiskInventory inventory;
  for (int i = 0; i < 3; ++i) inventory.Lose({.slot = 1, .key = std::to_string(i)});
  const auto two = inventory.TakeLost(2);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].key, "0");
  EXPECT_EQ(inventory.TakeLost(9).size(), 1U);
  EXPECT_TRUE(inventory.TakeLost(9).empty());
  EXPECT_FALSE(inventory.TakeLostAll());
}

TEST(DiskInventoryTest, BeyondTheBoundAllIsToldAgain) {
  DiskInventory inventory;
  for (std::size_t i = 0; i <= DiskInventory::kMaxLost; ++i) inventory.Lose({.key = "k"});
  EXPECT_TRUE(inventory.TakeLostAll());
  EXPECT_FALSE(inventory.TakeLostAll());
  EXPECT_EQ(inventory.TakeLost(~0ULL).size(), DiskInventory::kMaxLost);
}

TEST(DiskInventoryTest, AZoneIsAnsweredByTheDisksThread) {
  DiskInventory inventory;
  inventory.SetZones(3);
  inventory.Begin();
  EXPECT_EQ(inventory.zones(), 3U);
  const auto asked = inventory.Ask(2);
  EXPECT_FALSE(inventory.Await(*asked, 0));
  const auto taken = inventory.Take(true);
  ASSERT_EQ(taken, asked);
  EXPECT_EQ(taken->number, 2U);
  EXPECT_EQ(inventory.Take(true), nullptr);
  inventory.PutBack(taken);  // the zone is being sealed
  EXPECT_EQ(inventory.Take(true), taken);
  inventory.Answer(*taken, {{.key = "a"}});
  EXPECT_TRUE(inventory.Await(*asked, 0));
  EXPECT_EQ(asked->objects.size(), 1U);
}

TEST(DiskInventoryTest, NobodyWaitsForADiskThatIsSetAside) {
  DiskInventory inventory;
  inventory.SetZones(3);
  inventory.Begin();
  const auto asked = inventory.Ask(0);
  inventory.End();
  EXPECT_TRUE(inventory.Await(*asked, 3600 * kSecond));
  EXPECT_TRUE(inventory.Await(*inventory.Ask(1), 3600 * kSecond));
  EXPECT_TRUE(asked->objects.empty());
  EXPECT_EQ(inventory.zones(), 0U);
  inventory.SetZones(2);  // the disk is tried again
  EXPECT_EQ(inventory.zones(), 0U) << "it has been opened, and is not used yet";
  EXPECT_TRUE(inventory.Await(*inventory.Ask(0), 3600 * kSecond));
  inventory.Begin();
  EXPECT_EQ(inventory.zones(), 2U);
}

// The thread that waits may wake only after the disk is used again.
TEST(DiskInventoryTest, NobodyWaitsForWhatWasAskedBeforeADiskWasSetAside) {
  DiskInventory inventory;
  inventory.SetZones(3);
  inventory.Begin();
  const auto asked = inventory.Ask(0);
  const auto read = inventory.Ask(1);
  ASSERT_EQ(inventory.Take(true), asked);
  ASSERT_EQ(inventory.Take(true), read);
  inventory.End();
  inventory.Begin();
  EXPECT_TRUE(inventory.Await(*asked, 0));
  inventory.PutBack(asked);
  EXPECT_EQ(inventory.Take(true), nullptr) << "nobody waits for it";
  inventory.Answer(*read, {{.key = "of before"}});
  EXPECT_TRUE(inventory.Await(*read, 0));
  EXPECT_TRUE(read->objects.empty());
  EXPECT_FALSE(inventory.Await(*inventory.Ask(0), 0));
}

TEST(DiskInventoryTest, OtherWalksHoldNothingUpAndWaitForNothing) {
  DiskInventory inventory;
  inventory.SetZones(2);
  inventory.Begin();
  const auto listed = inventory.Ask(1, /*whole=*/false);
  EXPECT_FALSE(inventory.walking());
  const auto told = inventory.Ask(0);
  EXPECT_TRUE(inventory.walking());
  EXPECT_EQ(inventory.Take(/*still=*/false), listed);
  EXPECT_EQ(inventory.Take(/*still=*/false), nullptr);
  inventory.Answer(*listed, {{.key = "a"}});
  EXPECT_TRUE(inventory.Await(*listed, 0));
  EXPECT_TRUE(inventory.walking()) << "the last zone was another walk's";
  EXPECT_EQ(inventory.Take(/*still=*/true), told);
}

// Otherwise an object that moves from zone to zone might not be reported.
TEST(DiskInventoryTest, AWalkLastsUntilItsLastZoneIsAnswered) {
  DiskInventory inventory;
  inventory.SetZones(2);
  inventory.Begin();
  EXPECT_FALSE(inventory.walking());
  for (std::uint32_t zone = 0; zone < 2; ++zone) {
    (void)inventory.Ask(zone);
    EXPECT_TRUE(inventory.walking());
    const auto taken = inventory.Take(true);
    ASSERT_NE(taken, nullptr);
    inventory.Answer(*taken, {});
    EXPECT_EQ(inventory.walking(), zone == 0);
  }
  (void)inventory.Ask(0);
  inventory.End();
  EXPECT_FALSE(inventory.walking());
}

}  // namespace
}  // namespace kvcove::owner
