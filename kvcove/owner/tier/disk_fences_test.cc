// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_fences.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

constexpr SlotId kFencedSlot = 3;
constexpr Generation kFencedGeneration = 7;
constexpr std::size_t kRememberedKeys = 2;

class DiskFencesTest : public testing::Test {
 protected:
  static TierOrder Order(TierOrder::Kind kind, std::string of,
                         std::shared_ptr<TierRemoval> removal) {
    TierOrder order{.kind = kind, .slot = kFencedSlot, .generation = kFencedGeneration};
    if (kind == TierOrder::Kind::kRemove) order.keys = {std::move(of)};
    if (kind == TierOrder::Kind::kRemoveMatching) order.pattern = std::move(of);
    order.removal = std::move(removal);
    return order;
  }
  std::shared_ptr<TierRemoval> Remove(const std::string& key, std::uint64_t tag) {
    auto removal = std::make_shared<TierRemoval>();
    EXPECT_TRUE(fences_.Join(*removal, 0, false));
    fences_.Remove(Order(TierOrder::Kind::kRemove, key, removal), {&tag, 1});
    return removal;
  }
  std::shared_ptr<TierRemoval> RemoveMatching(const std::string& pattern) {
    auto removal = std::make_shared<TierRemoval>();
    EXPECT_TRUE(fences_.Join(*removal, 0, false));
    fences_.RemoveMatching(Order(TierOrder::Kind::kRemoveMatching, pattern, removal));
    return removal;
  }
  TierOrder TakeOne() {
    std::vector<TierOrder> orders = fences_.TakeOrders();
    EXPECT_EQ(orders.size(), 1U);
    return orders.empty() ? TierOrder() : std::move(orders[0]);
  }
  void Apply(std::uint64_t tag) { fences_.Applied({&tag, 1}); }

  DiskFences fences_{kRememberedKeys};
};

TEST_F(DiskFencesTest, AResetIsAnOrderAndTheSameGenerationIsNone) {
  const SlotUpdate update{.slot = kFencedSlot, .generation = kFencedGeneration, .name = "m"};
  fences_.SetSlots({update});
  fences_.SetSlots({update});
  EXPECT_EQ(fences_.NameOf(kFencedSlot), "m");
  EXPECT_EQ(fences_.NameOf(kFencedSlot + 1), "");
  const TierOrder order = TakeOne();
  EXPECT_EQ(order.kind, TierOrder::Kind::kGeneration);
  EXPECT_EQ(order.generation, kFencedGeneration);
  EXPECT_FALSE(fences_.orders());
}

TEST_F(DiskFencesTest, ALogThatIsOpenedNeedsTheRemovalsOnly) {
  fences_.SetSlots({{.slot = kFencedSlot, .generation = kFencedGeneration, .name = "m"}});
  (void)Remove("key", 1);
  fences_.DropGenerationOrders();
  EXPECT_EQ(TakeOne().kind, TierOrder::Kind::kRemove);
}

TEST_F(DiskFencesTest, AKeyIsFencedUntilAllRemovalsOfItAreApplied) {
  (void)Remove("key", 1);
  (void)Remove("key", 1);
  EXPECT_TRUE(fences_.Removes(1));
  EXPECT_FALSE(fences_.Removes(2));
  Apply(1);
  EXPECT_TRUE(fences_.Removes(1));
  Apply(1);
  EXPECT_FALSE(fences_.Removes(1));
  Apply(1);
  EXPECT_FALSE(fences_.Removes(1)) << "of an era before";
}

TEST_F(DiskFencesTest, ARemovalIsProvenAfterItIsApplied) {
  const auto removal = Remove("key", 1);
  const TierOrder order = TakeOne();
  Apply(1);
  EXPECT_TRUE(fences_.unproven());
  EXPECT_EQ(removal->open, 1U);
  fences_.Proven(order, 0);
  EXPECT_FALSE(fences_.unproven());
  EXPECT_EQ(removal->open, 0U);
  EXPECT_FALSE(removal->missed);
}

TEST_F(DiskFencesTest, WhatMatchesIsHiddenFromTheWalkOverMemoryUntilItIsProven) {
  fences_.BeginMatching(kFencedSlot, "a*");
  EXPECT_TRUE(fences_.Hides(kFencedSlot, "ab"));
  EXPECT_FALSE(fences_.Hides(kFencedSlot, "b"));
  EXPECT_FALSE(fences_.Hides(kFencedSlot + 1, "ab"));
  const auto removal = RemoveMatching("a*");
  const TierOrder order = TakeOne();
  EXPECT_TRUE(fences_.Hides(kFencedSlot, "ab"));
  fences_.Proven(order, 5);
  EXPECT_FALSE(fences_.Hides(kFencedSlot, "ab"));
  EXPECT_EQ(removal->removed, 5U);
}

TEST_F(DiskFencesTest, AWalkThatEndsEarlyHidesNothingAndOthersLikeItStillDo) {
  fences_.BeginMatching(kFencedSlot, "a*");
  (void)RemoveMatching("a*");
  fences_.BeginMatching(kFencedSlot, "a*");
  fences_.EndMatching(kFencedSlot, "a*");
  EXPECT_TRUE(fences_.Hides(kFencedSlot, "ab")) << "that one is ordered";
  fences_.Proven(TakeOne(), 0);
  EXPECT_FALSE(fences_.Hides(kFencedSlot, "ab"));
}

TEST_F(DiskFencesTest, ADiskThatIsSetAsideMissesARemoval) {
  TierRemoval removal;
  EXPECT_FALSE(fences_.Join(removal, 1, /*aside=*/true));
  EXPECT_TRUE(removal.missed);
  EXPECT_EQ(removal.open, 1U);
  EXPECT_FALSE(fences_.unproven());
  TierRemoval early;
  EXPECT_TRUE(fences_.Join(early, 1, false));
  EXPECT_TRUE(fences_.Join(early, 2, false));
  EXPECT_TRUE(early.missed) << "its first part was of an era that is over";
}

TEST_F(DiskFencesTest, AnErasEndDropsOrdersAndADiskWithUnprovenRemovalsStartsEmpty) {
  fences_.EndEra();
  EXPECT_TRUE(fences_.Reusable());
  (void)Remove("key", 1);
  fences_.BeginMatching(kFencedSlot, "a*");
  fences_.BeginMatching(kFencedSlot, "b*");
  (void)RemoveMatching("b*");
  fences_.EndEra();
  EXPECT_FALSE(fences_.Reusable());
  EXPECT_FALSE(fences_.orders());
  EXPECT_FALSE(fences_.unproven());
  EXPECT_FALSE(fences_.Removes(1));
  EXPECT_FALSE(fences_.Hides(kFencedSlot, "b"));
  EXPECT_TRUE(fences_.Hides(kFencedSlot, "a")) << "the walk over memory continues";
  (void)fences_.UseAgain();
  EXPECT_TRUE(fences_.Reusable());
}

// A log that is being opened got the generations of before.
TEST_F(DiskFencesTest, AnErasEndDropsNoGeneration) {
  (void)Remove("key", 1);
  fences_.SetSlots({{.slot = kFencedSlot, .generation = kFencedGeneration + 1, .name = "m"}});
  fences_.EndEra();
  const TierOrder order = TakeOne();
  EXPECT_EQ(order.kind, TierOrder::Kind::kGeneration);
  EXPECT_EQ(order.generation, kFencedGeneration + 1);
}

TEST_F(DiskFencesTest, WhatWasStoredMeanwhileIsRememberedUpToABound) {
  fences_.Remember(kFencedSlot, kFencedGeneration, "a");
  EXPECT_TRUE(fences_.Reusable());
  EXPECT_FALSE(fences_.Whole()) << "a successor would not know of it";
  fences_.Remember(kFencedSlot, kFencedGeneration, "b");
  EXPECT_TRUE(fences_.Reusable());
  fences_.Remember(kFencedSlot, kFencedGeneration, "c");
  EXPECT_FALSE(fences_.Reusable());
  const auto stored = fences_.UseAgain();
  EXPECT_EQ(stored[1].key, "b");
  EXPECT_TRUE(fences_.Whole());
}

TEST_F(DiskFencesTest, AMissedRemovalKeepsTheDiskFromBeingUsedUntilItIsEmpty) {
  fences_.Miss();
  EXPECT_FALSE(fences_.Reusable());
  EXPECT_FALSE(fences_.Whole());
  EXPECT_TRUE(fences_.UseAgain().empty());
  EXPECT_TRUE(fences_.Reusable());
}

TEST_F(DiskFencesTest, OlderValuesAreGoneOnceTheirRemovalsAreProven) {
  EXPECT_TRUE(fences_.older_proven());
  fences_.RemoveOlder({.slot = kFencedSlot, .generation = kFencedGeneration, .key = "key"}, 1);
  EXPECT_TRUE(fences_.Removes(1));
  EXPECT_TRUE(fences_.unproven());
  EXPECT_FALSE(fences_.older_proven());
  const TierOrder order = TakeOne();
  EXPECT_EQ(order.keys, std::vector<std::string>{"key"});
  fences_.Proven(order, 0);
  EXPECT_TRUE(fences_.older_proven());
}

}  // namespace
}  // namespace kvcove::owner
