// SPDX-License-Identifier: Apache-2.0
#include "kvcove/segment/tier_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "kvcove/segment/layout.h"

namespace kvcove::segment {
namespace {

constexpr std::uint64_t kTags = 20'000;

class TierTableTest : public testing::Test {
 protected:
  std::uint64_t Tag(std::uint64_t i) { return TierTag({.high = Mix64(i), .low = Mix64(~i)}, 7); }

  static TierTableWriter Begun(const TierTable& table) {
    TierTableWriter writer(table);
    writer.Begin(/*seed=*/9);
    return writer;
  }

  std::unique_ptr<Header> header_ = std::make_unique<Header>();
  std::vector<TierBucket> buckets_ = std::vector<TierBucket>(TierBuckets(kTags));
  TierTable table_{header_.get(), buckets_.data(), buckets_.size()};
  TierTableWriter writer_ = Begun(table_);
};

TEST_F(TierTableTest, AnOwnerWithoutADiskHoldsNothing) {
  EXPECT_FALSE(TierTable().on());
  EXPECT_FALSE(TierTable().Holds(1, 2, "key"));
}

TEST_F(TierTableTest, HoldsWhatWasAddedAndNothingElse) {
  writer_.SetOn(kAllTierShares);
  for (std::uint64_t i = 0; i < kTags; ++i) ASSERT_TRUE(writer_.Add(Tag(i))) << i;
  for (std::uint64_t i = 0; i < kTags; ++i) EXPECT_TRUE(table_.Holds(Tag(i)));
  for (std::uint64_t i = kTags; i < 2 * kTags; ++i) EXPECT_FALSE(table_.Holds(Tag(i)));
  for (std::uint64_t i = 0; i < kTags; i += 2) writer_.Remove(Tag(i));
  for (std::uint64_t i = 0; i < kTags; ++i) EXPECT_EQ(table_.Holds(Tag(i)), i % 2 == 1);
  EXPECT_EQ(writer_.size(), kTags / 2);
}

// Where in its doubling a table ends depends on the number of tags that it is made for.
TEST_F(TierTableTest, ThereIsRoomForWhatItIsMadeFor) {
  for (const std::uint64_t tags : {1, 100, 5'000, 12'500, 16'000, 25'000, 33'000, 50'000}) {
    std::vector<TierBucket> buckets(TierBuckets(tags));
    TierTableWriter writer = Begun(TierTable(header_.get(), buckets.data(), buckets.size()));
    for (std::uint64_t i = 0; i < tags; ++i) ASSERT_TRUE(writer.Add(Tag(i))) << i << " of " << tags;
  }
}

TEST_F(TierTableTest, ATagIsOneKeyOfOneSlotUnderOneGeneration) {
  writer_.SetOn(kAllTierShares);
  writer_.Add(TierTag(TierHash(9, 3, "key"), 50));
  EXPECT_TRUE(table_.Holds(3, 50, "key"));
  EXPECT_FALSE(table_.Holds(3, 51, "key"));
  EXPECT_FALSE(table_.Holds(4, 50, "key"));
  EXPECT_FALSE(table_.Holds(3, 50, "kez"));
}

TEST_F(TierTableTest, WhatIsOffHoldsNothing) {
  writer_.Add(Tag(1));
  EXPECT_FALSE(table_.Holds(Tag(1)));
  writer_.SetOn(kAllTierShares);
  EXPECT_TRUE(table_.Holds(Tag(1)));
  writer_.SetOff(kAllTierShares);
  EXPECT_FALSE(table_.Holds(Tag(1)));
}

TEST_F(TierTableTest, SharesAreOnAndOffAlone) {
  constexpr std::uint64_t kSome = 0xF0F0;
  writer_.SetOn(kAllTierShares);
  for (std::uint64_t i = 0; i < kTags; ++i) ASSERT_TRUE(writer_.Add(Tag(i)));
  const auto others_only = [&] {
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < kTags; ++i) {
      wrong += table_.Holds(Tag(i)) == ((ShareOf(Tag(i)) & kSome) == 0) ? 0 : 1;
    }
    return wrong == 0;
  };
  writer_.SetOff(kSome);
  EXPECT_TRUE(others_only());
  const std::uint64_t before = writer_.size();
  for (std::optional<std::uint64_t> at = 0; at;) at = writer_.Clear(kSome, *at);
  EXPECT_LT(writer_.size(), before - (kTags / 16));
  writer_.SetOn(kSome);
  EXPECT_TRUE(others_only()) << "what was cleared does not come back";
}

// Else a disk of a share would get nothing.
TEST_F(TierTableTest, TagsSpreadOverAllShares) {
  std::map<std::uint64_t, std::uint64_t> tags;
  for (std::uint64_t i = 0; i < kTags; ++i) ++tags[ShareOf(Tag(i))];
  EXPECT_EQ(tags.size(), kTierShares);
  for (const auto& [share, count] : tags) {
    EXPECT_GT(count, kTags / kTierShares / 2);
    EXPECT_LT(count, kTags / kTierShares * 2);
  }
}

TEST_F(TierTableTest, AFullTableRefuses) {
  std::vector<TierBucket> few(2);
  TierTableWriter small = Begun(TierTable(header_.get(), few.data(), few.size()));
  std::uint64_t added = 0;
  for (std::uint64_t i = 0; i < 100; ++i) added += small.Add(Tag(i)) ? 1 : 0;
  EXPECT_LE(added, 16U);
  EXPECT_GE(added, 12U);
  EXPECT_EQ(small.size(), added);
}

// A tag that stays is found by every look, whatever moves meanwhile.
TEST_F(TierTableTest, NoReaderMissesWhatStaysWhileTheTableGrows) {
  writer_.SetOn(kAllTierShares);
  constexpr std::uint64_t kStay = 64;
  for (std::uint64_t i = 0; i < kStay; ++i) ASSERT_TRUE(writer_.Add(Tag(i)));
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> missed{0};
  std::thread reader([&] {
    for (std::uint64_t i = 0; !stop; i = (i + 1) % kStay) missed += table_.Holds(Tag(i)) ? 0 : 1;
  });
  for (std::uint64_t i = kStay; i < kTags; ++i) writer_.Add(Tag(i));
  stop = true;
  reader.join();
  EXPECT_EQ(missed, 0U);
}

}  // namespace
}  // namespace kvcove::segment
