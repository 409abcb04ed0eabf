// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/demotion_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kQueueBytes = 100;
constexpr std::size_t kQueueObjects = 4;

class DemotionQueueTest : public testing::Test {
 protected:
  static std::shared_ptr<Demotion> Of(std::uint64_t tag, std::uint32_t bytes,
                                      disklog::ShareNumber share = disklog::kNoShare) {
    auto demotion = std::make_shared<Demotion>();
    demotion->tag = tag;
    demotion->size_bytes = bytes;
    demotion->share = share;
    demotion->slot = static_cast<SlotId>(tag % 2);
    return demotion;
  }
  std::shared_ptr<Demotion> Push(std::uint64_t tag, std::uint32_t bytes,
                                 disklog::ShareNumber share = disklog::kNoShare) {
    auto demotion = Of(tag, bytes, share);
    EXPECT_TRUE(queue_.Push(demotion));
    std::memset(demotion->room.data(), static_cast<int>(tag), bytes);
    DemotionQueue::Fill(*demotion);
    return demotion;
  }
  std::shared_ptr<Demotion> First() {
    dropped_.clear();
    return queue_.First(dropped_);
  }

  DemotionQueue queue_{kQueueBytes, kQueueObjects, 2};
  std::vector<std::shared_ptr<Demotion>> dropped_;
};

TEST_F(DemotionQueueTest, ValuesAreTakenInTheirOrderAndPendUntilTheyAreWritten) {
  const auto one = Push(1, 10);
  const auto two = Push(2, 20);
  EXPECT_EQ(queue_.bytes(), 30U);
  ASSERT_EQ(First(), one);
  EXPECT_EQ(one->room.size(), 10U);
  EXPECT_EQ(one->room[9], std::byte{1});
  EXPECT_FALSE(queue_.Take(*two, true)) << "it is not the first one";
  EXPECT_TRUE(queue_.Take(*one, true));
  EXPECT_EQ(First(), two);
  EXPECT_TRUE(queue_.Pending(1));
  EXPECT_FALSE(queue_.Queued(*one)) << "the ring may hold another value by now";
  EXPECT_EQ(queue_.Queued(*two)->size(), 20U);
  EXPECT_TRUE(queue_.End(*one, 0));
  EXPECT_FALSE(queue_.Pending(1));
  EXPECT_FALSE(queue_.idle());
}

TEST_F(DemotionQueueTest, AValueThatIsBeingFilledIsPendingAndNobodyReadsIt) {
  const auto one = Of(1, 10);
  ASSERT_TRUE(queue_.Push(one));
  EXPECT_TRUE(queue_.Pending(1));
  EXPECT_FALSE(queue_.idle());
  EXPECT_EQ(First(), nullptr);
  EXPECT_FALSE(queue_.Queued(*one));
  const auto two = Push(2, 10);
  EXPECT_EQ(First(), nullptr) << "nor is another one taken before it";
  DemotionQueue::Fill(*one);
  EXPECT_EQ(First(), one);
  EXPECT_TRUE(queue_.Queued(*one));
}

TEST_F(DemotionQueueTest, IsBoundedInBytesAndObjects) {
  EXPECT_FALSE(queue_.Push(Of(9, kQueueBytes + 1)));
  for (std::uint64_t tag = 1; tag <= kQueueObjects; ++tag) Push(tag, 1);
  EXPECT_FALSE(queue_.Push(Of(9, 1)));
  EXPECT_FALSE(queue_.Pending(9)) << "what was refused is not pending";
  EXPECT_EQ(queue_.bytes(), kQueueObjects);
  const auto first = First();
  EXPECT_TRUE(queue_.Take(*first, true));
  EXPECT_FALSE(queue_.Push(Of(9, kQueueBytes))) << "others have room in the ring";
  Push(9, 50);
}

TEST_F(DemotionQueueTest, WhatIsDroppedIsNotTakenAndItsRoomIsFree) {
  const auto one = Push(1, 60);
  const auto two = Push(2, 20);
  EXPECT_FALSE(queue_.Push(Of(3, 40)));
  EXPECT_TRUE(queue_.Drop(*one));
  EXPECT_FALSE(queue_.Drop(*one)) << "it is counted once";
  EXPECT_FALSE(queue_.Pending(1));
  EXPECT_FALSE(queue_.Queued(*one));
  std::string queued;
  queue_.EachQueued([&](const Demotion& demotion) { queued += std::to_string(demotion.tag); });
  EXPECT_EQ(queued, "2");
  EXPECT_EQ(queue_.PendingOf(std::nullopt).size(), 1U);
  std::size_t pending = 0;
  queue_.EachPending([&](const Demotion&) { ++pending; });
  EXPECT_EQ(pending, 2U);
  EXPECT_EQ(First(), two);
  ASSERT_EQ(dropped_, std::vector{one});
  EXPECT_TRUE(queue_.End(*one, 0));
  EXPECT_EQ(queue_.Find(1), nullptr);
  Push(3, 40);
}

// A removal drops the value while the log writes it; its key is stored and evicted again.
TEST_F(DemotionQueueTest, ALaterValueOfADroppedKeyStaysPending) {
  const auto older = Push(1, 10, 0);
  ASSERT_TRUE(queue_.Take(*First(), true));
  EXPECT_TRUE(queue_.Drop(*older));
  const auto newer = Push(1, 20, 0);
  EXPECT_EQ(queue_.HeldBy(0), 20U);
  EXPECT_FALSE(queue_.End(*older, 0)) << "the table keeps the key";
  EXPECT_TRUE(queue_.Pending(1));
  EXPECT_EQ(queue_.HeldBy(0), 20U);
  EXPECT_TRUE(queue_.End(*newer, 0));
  EXPECT_EQ(queue_.HeldBy(0), 0U);
}

TEST_F(DemotionQueueTest, CountsByShareAndListsBySlot) {
  Push(1, 10, 0);
  Push(2, 20, 1);
  const auto three = Push(3, 5, 1);
  EXPECT_EQ(queue_.HeldBy(0), 10U);
  EXPECT_EQ(queue_.HeldBy(1), 25U);
  EXPECT_TRUE(queue_.Drop(*three));
  EXPECT_EQ(queue_.HeldBy(1), 20U);
  ASSERT_EQ(queue_.PendingOf(SlotId{1}).size(), 1U);
  EXPECT_EQ(queue_.PendingOf(SlotId{1})[0]->tag, 1U);
}

// The figures of the log that has written a value are noted later.
TEST_F(DemotionQueueTest, WhatIsWrittenStaysCountedUntilTheLogIsNoted) {
  const auto one = Push(1, 10);
  ASSERT_TRUE(queue_.Take(*one, true));
  EXPECT_FALSE(queue_.drained());
  EXPECT_TRUE(queue_.End(*one, 0));
  EXPECT_EQ(queue_.bytes(), 10U);
  EXPECT_TRUE(queue_.drained());
  queue_.ForgetEnded();
  EXPECT_EQ(queue_.bytes(), 0U);
  EXPECT_FALSE(queue_.drained());
}

TEST_F(DemotionQueueTest, AnErasEndForgetsAllAndWhatEndsLaterCountsNoMore) {
  const auto written = Push(1, 10, 0);
  ASSERT_TRUE(queue_.Take(*written, true));
  const auto filling = Of(2, 10, 0);
  ASSERT_TRUE(queue_.Push(filling));
  written->awaited.emplace_back();
  EXPECT_EQ(queue_.Clear(), 2U);
  EXPECT_TRUE(written->awaited.empty());
  EXPECT_TRUE(queue_.idle());
  EXPECT_EQ(queue_.bytes() + queue_.HeldBy(0), 0U);
  queue_.FreeMemory();
  DemotionQueue::Fill(*filling);
  EXPECT_EQ(First(), nullptr);
  EXPECT_FALSE(queue_.Take(*filling, true));
  EXPECT_FALSE(queue_.End(*written, 1)) << "of the era before";
  EXPECT_EQ(queue_.bytes() + queue_.HeldBy(0), 0U);
  EXPECT_FALSE(queue_.drained());
  Push(3, kQueueBytes);
}

TEST_F(DemotionQueueTest, IsClosedUntilItIsOpenAgain) {
  EXPECT_FALSE(queue_.closed());
  queue_.SetClosed(true);
  EXPECT_TRUE(queue_.closed());
  queue_.SetClosed(false);
  EXPECT_FALSE(queue_.closed());
}

}  // namespace
}  // namespace kvcove::owner
