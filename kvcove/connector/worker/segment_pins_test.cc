// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/segment_pins.h"

#include <gtest/gtest.h>

#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/transport/fake_device.h"

namespace kvcove::connector {
namespace {

constexpr std::uint64_t kPiece = 4096;

class SegmentPinsTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    auto device = std::make_unique<transport::FakeDevice>();
    device_ = device.get();
    queue_ = std::move(*transport::DeviceQueue::Open(
        std::move(device), {.ring_bytes = 4096, .thread = false}, clock_));
  }
  void TearDown() override {
    pins_.reset();
    EXPECT_EQ(device_->registered_bytes(), 0);
    SetLogLevel(LogLevel::kWarn);
  }
  // Of ten pieces and a half.
  void AddSegment(std::uint64_t number, std::uint64_t populated) {
    auto memory = std::make_shared<std::vector<std::byte>>(10 * kPiece + kPiece / 2);
    ranges_.push_back({.number = number,
                       .data = memory->data(),
                       .size_bytes = memory->size(),
                       .populated_bytes = populated,
                       .mapping = memory});
  }
  void Open(SegmentPinsOptions options = {}) {
    options.piece_bytes = kPiece;
    pins_ = std::make_unique<SegmentPins>(
        *queue_,
        [this]() -> Result<std::vector<SegmentRange>> {
          const MutexLock lock(mutex_);
          ++looks_;
          return ranges_;
        },
        options);
    pins_->Start();
  }
  void OpenByHand(std::uint64_t most_bytes = ~std::uint64_t{0}) {
    Open({.most_bytes = most_bytes, .thread = false});
  }
  void Pin() {
    for (int i = 0; i < 100; ++i) (void)pins_->Step();
  }
  std::byte* At(std::size_t segment, std::uint64_t offset) {
    return static_cast<std::byte*>(ranges_[segment].data) + offset;
  }

  FakeClock clock_;
  transport::FakeDevice* device_ = nullptr;
  std::unique_ptr<transport::DeviceQueue> queue_;
  Mutex mutex_;
  std::vector<SegmentRange> ranges_;
  int looks_ = 0;
  std::unique_ptr<SegmentPins> pins_;
};

TEST_F(SegmentPinsTest, PinsWholePiecesBehindThePopulatedMarkOnly) {
  AddSegment(1, 3 * kPiece - 1);
  OpenByHand();
  EXPECT_EQ(pins_->Find(At(0, 0), 1), nullptr);
  Pin();
  EXPECT_EQ(pins_->bytes(), 2 * kPiece);
  EXPECT_EQ(device_->registered_bytes(), 2 * kPiece);
  EXPECT_NE(pins_->Find(At(0, 0), 2 * kPiece), nullptr) << "from one piece on to the next";
  EXPECT_EQ(pins_->Find(At(0, 0), 2 * kPiece + 1), nullptr);
  EXPECT_EQ(pins_->Find(At(0, 2 * kPiece - 1), 2), nullptr);
  EXPECT_EQ(pins_->Find(At(0, 0) - 1, 2), nullptr);
  ranges_[0].populated_bytes = ranges_[0].size_bytes;
  Pin();
  EXPECT_EQ(pins_->bytes(), ranges_[0].size_bytes) << "the last piece is smaller";
  EXPECT_NE(pins_->Find(At(0, 0), ranges_[0].size_bytes), nullptr);
  EXPECT_EQ(pins_->Find(At(0, 1), ranges_[0].size_bytes), nullptr);
}

TEST_F(SegmentPinsTest, FindsTheSegmentAmongSeveral) {
  for (std::uint64_t i = 0; i < 5; ++i) AddSegment(i + 1, i == 3 ? 0 : ~std::uint64_t{0});
  OpenByHand();
  Pin();
  Pin();
  std::set<std::shared_ptr<const PinnedSegment>> found;
  for (std::size_t i = 0; i < 5; ++i) found.insert(pins_->Find(At(i, 100), kPiece));
  EXPECT_EQ(found.size(), 5U);
  EXPECT_EQ(pins_->Find(At(3, 100), kPiece), nullptr) << "nothing of it is populated";
}

TEST_F(SegmentPinsTest, ABoundIsKept) {
  AddSegment(1, ~std::uint64_t{0});
  AddSegment(2, ~std::uint64_t{0});
  OpenByHand(13 * kPiece);
  Pin();
  EXPECT_GT(pins_->bytes(), 12 * kPiece);
  EXPECT_LE(pins_->bytes(), 13 * kPiece);
}

TEST_F(SegmentPinsTest, AHostThatRefusesIsNotAskedAgainAndKeepsWhatItGave) {
  AddSegment(1, ~std::uint64_t{0});
  device_->Pinnable(3 * kPiece);
  OpenByHand();
  Pin();
  EXPECT_EQ(pins_->bytes(), 3 * kPiece);
  device_->Pinnable(~std::uint64_t{0});
  Pin();
  EXPECT_EQ(pins_->bytes(), 3 * kPiece);
  EXPECT_NE(pins_->Find(At(0, 0), 3 * kPiece), nullptr);
}

TEST_F(SegmentPinsTest, WhatIsGoneIsUnpinnedWhenNobodyHoldsIt) {
  AddSegment(1, ~std::uint64_t{0});
  OpenByHand();
  Pin();
  const std::weak_ptr<const void> mapping = ranges_[0].mapping;
  std::byte* const at = At(0, 0);
  std::shared_ptr<const PinnedSegment> held = pins_->Find(at, 1);
  const std::vector<SegmentRange> none;
  std::vector<SegmentRange> was = std::exchange(ranges_, none);
  (void)pins_->Step();
  EXPECT_NE(pins_->Find(at, 1), nullptr) << "an owner may be slow to answer";
  ranges_ = std::exchange(was, none);
  (void)pins_->Step();
  ranges_.clear();
  for (int i = 0; i < SegmentPins::kAbsentLooks; ++i) (void)pins_->Step();
  EXPECT_EQ(pins_->Find(at, 1), nullptr);
  EXPECT_EQ(pins_->bytes(), 0);
  EXPECT_GT(device_->registered_bytes(), 0) << "a device may still copy";
  EXPECT_FALSE(mapping.expired());
  held.reset();
  EXPECT_EQ(device_->registered_bytes(), 0);
  EXPECT_TRUE(mapping.expired());
}

TEST_F(SegmentPinsTest, AnOwnerThatStartsAnewGivesRoomToPinItsMemory) {
  AddSegment(1, ~std::uint64_t{0});
  device_->Pinnable(3 * kPiece);
  OpenByHand();
  Pin();
  ranges_.clear();
  AddSegment(2, ~std::uint64_t{0});
  Pin();
  EXPECT_EQ(pins_->bytes(), 3 * kPiece);
  EXPECT_NE(pins_->Find(At(0, 0), 3 * kPiece), nullptr);
}

TEST_F(SegmentPinsTest, AnOwnerThatIsGoneIsLetGoOfBeforeAllOfItIsPinned) {
  AddSegment(1, ~std::uint64_t{0});
  OpenByHand();
  for (int i = 0; i < 3; ++i) (void)pins_->Step();  // a look, and two pieces
  EXPECT_EQ(pins_->bytes(), 2 * kPiece);
  const SegmentRange gone = ranges_.front();
  ranges_.clear();
  AddSegment(2, ~std::uint64_t{0});  // the owner has started anew
  for (int i = 0; i < 8; ++i) (void)pins_->Step();
  EXPECT_NE(pins_->Find(At(0, 0), kPiece), nullptr);
  EXPECT_EQ(pins_->Find(gone.data, 5 * kPiece), nullptr) << "pinned without a look";
  Pin();
  EXPECT_EQ(pins_->Find(gone.data, 1), nullptr);
  EXPECT_EQ(pins_->bytes(), ranges_.front().size_bytes);
}

TEST_F(SegmentPinsTest, ItsThreadStopsInTheMiddle) {
  AddSegment(1, ~std::uint64_t{0});
  for (int turn = 0; turn < 20; ++turn) {
    Open();
    while (pins_->bytes() < kPiece) std::this_thread::yield();
    pins_->Stop();
    const std::uint64_t pinned = pins_->bytes();
    EXPECT_EQ(pins_->bytes(), pinned);
    EXPECT_EQ(device_->registered_bytes(), pinned);
    pins_.reset();
    EXPECT_EQ(device_->registered_bytes(), 0);
  }
}

}  // namespace
}  // namespace kvcove::connector
