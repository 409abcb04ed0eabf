// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_shares.h"

#include <gtest/gtest.h>

#include "kvcove/segment/tier_table.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kAll = segment::kTierShares;

TEST(DiskSharesTest, ADiskHasAsLargeAPartOfAQuotaAsOfTheKeys) {
  const NamedQuotas quotas = {
      {"a", {.maximum_bytes = 10 * kAll, .guaranteed_bytes = 4 * kAll, .read_rate = 2 * kAll}}};
  DiskShares shares(quotas);
  EXPECT_EQ(shares.Limits()[0].maximum_bytes, 10 * kAll) << "one disk has all keys";
  shares.SetPart(kAll / 4);
  EXPECT_EQ(shares.Limits()[0].maximum_bytes, 10 * kAll / 4);
  EXPECT_EQ(shares.Limits()[0].guaranteed_bytes, kAll);
  EXPECT_EQ(shares.ReadRates()[0], kAll / 2);
}

TEST(DiskSharesTest, WhatHasNoLimitOnAllDisksHasNoneOnOne) {
  const NamedQuotas quotas = {{"a", {}}, {"b", {.read_rate = 1}}};
  DiskShares shares(quotas);
  shares.SetPart(1);
  EXPECT_EQ(shares.Limits()[0].maximum_bytes, disklog::ShareLimits().maximum_bytes);
  EXPECT_FALSE(shares.Beyond(0, ~std::uint64_t{0}));
  EXPECT_EQ(shares.ReadRates()[0], 0U);
  EXPECT_EQ(shares.ReadRates()[1], 1U) << "0 would be any rate";
}

TEST(DiskSharesTest, AShareIsBeyondItsMaximumOnThisDisk) {
  const NamedQuotas quotas = {{"a", {.maximum_bytes = 10 * kAll}}};
  DiskShares shares(quotas);
  shares.SetPart(kAll / 2);
  EXPECT_FALSE(shares.Beyond(0, 5 * kAll));
  EXPECT_TRUE(shares.Beyond(0, (5 * kAll) + 1));
}

TEST(DiskSharesTest, KeepsWhatTheLogHoldsOfEach) {
  const NamedQuotas quotas = {{"a", {}}, {"b", {}}};
  DiskShares shares(quotas);
  ASSERT_EQ(shares.size(), 2U);
  shares.NoteHeld({3, 4});
  shares.NoteHeld({});  // of a log that was opened without shares
  EXPECT_EQ(shares.held(0), 3U);
  EXPECT_EQ(shares.held(1), 4U);
}

}  // namespace
}  // namespace kvcove::owner
