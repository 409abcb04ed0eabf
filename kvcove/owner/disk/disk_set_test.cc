// SPDX-License-Identifier: Apache-2.0
// Decisions that several disks of an owner make together.
#include "kvcove/owner/disk/disk_set.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>

#include "kvcove/owner/core/core_fixture.h"

namespace kvcove::owner {
namespace {

constexpr SlotId kSetSlot = 2;
constexpr Generation kGeneration = (7ULL << 24) | 1;
constexpr std::uint32_t kLargeValue = 64 << 10;
constexpr std::uint64_t kQueue = 1 << 20;

class DiskSetTest : public testing::Test {
 protected:
  DiskSetTest()
      : sizes_{.max_objects = 64, .payload_bytes = 8 << 20, .tier_objects = 4096},
        header_(segment::HeaderFileBytes(sizes_)),
        payload_(8 << 20) {
    EXPECT_TRUE(segment::FormatHeader(header_.data(), sizes_, {.high = 1, .low = 2}, 3));
    view_ = *segment::HeaderView::Open(header_.data(), header_.size());
  }
  void Open(DiskAdmit admit, const DiskQuotas& quotas = {}) {
    set_.emplace(2, TieringOptions{.queue_bytes = kQueue, .quotas = quotas},
                 DemotionOptions{.admit = admit}, view_,
                 segment::Payload{.data = payload_.data(), .granule = view_.granule()}, clock_);
    set_->common().tags.Begin(5);
    const std::uint64_t shares[] = {0xFFFFFFFF, 0xFFFFFFFF00000000};
    set_->SetShares(shares);
    set_->SetSlots({{.slot = kSetSlot, .generation = kGeneration, .name = "m"}});
    for (std::size_t i = 0; i < 2; ++i) (*set_)[i].use().SetOn();
  }
  // Evicts so many values to one disk, whose thread does nothing. How many it took.
  int FillQueue(std::size_t disk, int values) {
    int taken = 0;
    for (; values > 0; ++next_) {
      const std::string key = "key" + std::to_string(next_);
      const Id128 hash = segment::TierHash(5, kSetSlot, key);
      const std::uint64_t share = segment::ShareOf(segment::TierTag(hash, kGeneration));
      if (((*set_)[disk].shares() & share) == 0) continue;
      const Extent extent{.start = 0,
                          .count = static_cast<std::uint32_t>(view_.granule().Count(kLargeValue))};
      const bool took = set_->Evicted({.slot = kSetSlot,
                                       .generation = kGeneration,
                                       .put = 1,
                                       .key = key,
                                       .size_bytes = kLargeValue,
                                       .extents = {&extent, 1}});
      taken += took ? 1 : 0;
      --values;
    }
    return taken;
  }

  int next_ = 0;
  FakeClock clock_;
  const segment::HeaderSizes sizes_;
  const ZeroedMemory header_;
  const ZeroedMemory payload_;
  segment::HeaderView view_;
  std::optional<DiskSet> set_;
};

// Otherwise the disk's objects would not be reported to the master from then on.
TEST_F(DiskSetTest, ADiskThatIsUsedAgainAtOnceStillTellsWhatItHolds) {
  Open(DiskAdmit::kAll);
  Tiering& disk = (*set_)[0];
  disk.inventory().SetZones(3);
  for (int round = 0; round < 1000; ++round) {
    std::thread of_disk([&] {
      while (!disk.use().state().aside()) std::this_thread::yield();
      EXPECT_TRUE(disk.use().SetOnAgain(/*empty=*/true));
    });
    EXPECT_TRUE(disk.use().SetAside("a test"));
    of_disk.join();
    ASSERT_EQ(disk.inventory().zones(), 3U) << round;
  }
}

TEST_F(DiskSetTest, WhatComesUpFromOneDiskWaitsForTheQueueOfAnother) {
  Open(DiskAdmit::kKeep);
  ASSERT_TRUE((*set_)[0].loads().ReservePromotion(kLargeValue));
  (*set_)[0].loads().ReleasePromotion(kLargeValue);
  FillQueue(1, 15);
  EXPECT_EQ((*set_)[1].loads().PromotionRoom(), kQueue - 15 * kLargeValue);
  EXPECT_TRUE((*set_)[0].loads().ReservePromotion(kLargeValue));
  EXPECT_FALSE((*set_)[0].loads().ReservePromotion(kLargeValue))
      << "they may all be evicted to the other disk";
  (*set_)[0].loads().ReleasePromotion(kLargeValue);
  // A disk that is set aside drops what it gets, so nothing waits for it.
  (*set_)[1].use().SetAside("a test");
  EXPECT_TRUE((*set_)[0].loads().ReservePromotion(4 * kLargeValue));
}

TEST_F(DiskSetTest, WhatComesUpFromAllDisksSharesTheRoom) {
  Open(DiskAdmit::kKeep);
  const std::uint64_t room = (*set_)[0].loads().PromotionRoom();
  ASSERT_TRUE((*set_)[0].loads().ReservePromotion(room));
  EXPECT_FALSE((*set_)[1].loads().ReservePromotion(1));
  // What a device that hangs has under way counts no more once it is set aside.
  (*set_)[0].use().SetAside("a test");
  EXPECT_TRUE((*set_)[1].loads().ReservePromotion(1));
}

TEST_F(DiskSetTest, WithoutKeepNothingWaitsForAQueue) {
  Open(DiskAdmit::kAll);
  FillQueue(1, 15);
  EXPECT_TRUE((*set_)[0].loads().ReservePromotion(100 * kLargeValue));
  EXPECT_TRUE((*set_)[1].loads().ReservePromotion(100 * kLargeValue));
}

// ---- quotas

TEST_F(DiskSetTest, ANamespaceAtItsMaximumIsNotWritten) {
  Open(DiskAdmit::kAll,
       {{"m", {.maximum_bytes = 16 * kLargeValue, .guaranteed_bytes = 4 * kLargeValue}}});
  EXPECT_EQ(FillQueue(0, 10), 8) << "half of it is each disk's";
  EXPECT_EQ((*set_)[0].Stat().over_share, 2U);
  EXPECT_EQ((*set_)[0].ByShare()[0].held_bytes, 8 * kLargeValue);
  EXPECT_EQ(FillQueue(1, 3), 3);
  // What the log has counts, too.
  (*set_)[1].log().NoteCounters({}, {}, {6 * kLargeValue});
  EXPECT_EQ(FillQueue(1, 1), 0);
  (*set_)[1].log().NoteCounters({}, {}, {4 * kLargeValue});
  EXPECT_EQ(FillQueue(1, 2), 1);
  // What waited when a disk failed is lost, and counts no more.
  (*set_)[0].use().SetAside("a test");
  EXPECT_EQ((*set_)[0].ByShare()[0].held_bytes, 0U);
}

TEST_F(DiskSetTest, ANamespaceBeyondItsWriteRateIsNotWritten) {
  Open(DiskAdmit::kAll, {{"m", {.write_rate = kLargeValue}}});
  EXPECT_EQ(FillQueue(0, 6), 6);
  EXPECT_EQ(FillQueue(1, 6), 4) << "ten seconds' worth of all disks together";
  EXPECT_EQ((*set_)[1].Stat().over_rate, 2U);
  clock_.AdvanceNs(2 * kSecond);
  EXPECT_EQ(FillQueue(0, 6), 2);
}

TEST_F(DiskSetTest, EachDiskHasItsPartOfWhatIsGuaranteed) {
  Open(DiskAdmit::kAll, {{"m", {.guaranteed_bytes = 4 << 20}}});
  for (std::size_t i = 0; i < 2; ++i) {
    const disklog::DiskShares shares = (*set_)[i].log().Shares();
    ASSERT_EQ(shares.limits.size(), 1U);
    EXPECT_EQ(shares.limits[0].guaranteed_bytes, 2U << 20);
    EXPECT_EQ(shares.limits[0].maximum_bytes, disklog::ShareLimits().maximum_bytes);
    EXPECT_EQ(shares.of("m"), 0U);
    EXPECT_EQ(shares.of("n"), disklog::kNoShare);
  }
  EXPECT_EQ(FillQueue(0, 10), 10);
}

TEST_F(DiskSetTest, ATenantsNamespacesAreOneShare) {
  Open(DiskAdmit::kAll, {{QualifiedName("blue", ""), {.maximum_bytes = 1 << 20}}});
  const disklog::DiskShares shares = (*set_)[0].log().Shares();
  EXPECT_EQ(shares.of(QualifiedName("blue", "a")), 0U);
  EXPECT_EQ(shares.of(QualifiedName("blue", "b")), 0U);
  EXPECT_EQ(shares.of(QualifiedName("red", "a")), disklog::kNoShare);
  EXPECT_EQ(shares.of("blue"), disklog::kNoShare);
}

}  // namespace
}  // namespace kvcove::owner
