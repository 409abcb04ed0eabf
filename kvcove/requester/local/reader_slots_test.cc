// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/reader_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

namespace kvcove::requester {
namespace {

using Added = ReaderSlots::Added;
using LoanSlot = ReaderSlots::LoanSlot;

constexpr std::uint64_t kPayload = 16 << 20;  // 1 MiB may be protected, half of it by loans

class ReaderSlotsTest : public testing::Test {
 protected:
  std::vector<LoanSlot> Take(std::size_t count) {
    std::vector<LoanSlot> slots(count);
    slots.resize(readers_.TakeSlots(slots, 0, clock_));
    return slots;
  }
  std::vector<segment::Place> Protected() const {
    std::vector<segment::Place> places;
    segment::CollectProtected(*page_, places);
    return places;
  }
  void Announce(LoanSlot slot, segment::Place place) {
    segment::Announce(readers_.At(slot), {.place = place, .version = place});
  }

  FakeClock clock_;
  std::unique_ptr<segment::SessionPage> page_ = std::make_unique<segment::SessionPage>();
  ReaderSlots readers_{page_.get(), kPayload};
};

TEST_F(ReaderSlotsTest, LoansShareLanesAndLeaveHalfOfThemToGets) {
  const std::vector<LoanSlot> slots = Take(ReaderSlots::kMostLoans + 5);
  EXPECT_EQ(slots.size(), ReaderSlots::kMostLoans);
  EXPECT_EQ(std::set(slots.begin(), slots.end()).size(), slots.size()) << "each slot once";
  EXPECT_TRUE(Take(1).empty());
  std::vector<int> lanes;
  for (std::uint32_t i = ReaderSlots::kMostLoanLanes; i < segment::kLanes; ++i) {
    lanes.push_back(readers_.AcquireLane(0, clock_));
    EXPECT_GE(lanes.back(), 0);
  }
  EXPECT_EQ(readers_.AcquireLane(0, clock_), -1);
  readers_.GiveBack(slots);
  EXPECT_GE(readers_.AcquireLane(0, clock_), 0) << "an empty lane goes back to gets";
}

TEST_F(ReaderSlotsTest, LoansTakeNoLaneThatGetsHave) {
  for (std::uint32_t i = 0; i < segment::kLanes; ++i) (void)readers_.AcquireLane(0, clock_);
  EXPECT_TRUE(Take(1).empty());
  readers_.ReleaseLane(3);
  const std::vector<LoanSlot> slots = Take(2);
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(slots[0] / segment::kLaneSlots, 3);
}

// The owner looks at a lane's slots as far as `used` says.
TEST_F(ReaderSlotsTest, TheOwnerSeesWhatIsLentUntilItsSlotIsCleared) {
  const std::vector<LoanSlot> first = Take(60);
  const std::vector<LoanSlot> second = Take(60);  // over two lanes
  for (std::size_t i = 0; i < 60; ++i) Announce(first[i], static_cast<segment::Place>(100 + i));
  for (std::size_t i = 0; i < 60; ++i) Announce(second[i], static_cast<segment::Place>(200 + i));
  EXPECT_EQ(Protected().size(), 120U);
  for (const LoanSlot slot : first) segment::ClearSlot(readers_.At(slot));
  readers_.GiveBack(first);
  const std::vector<segment::Place> left = Protected();
  EXPECT_EQ(left.size(), 60U);
  EXPECT_GE(*std::ranges::min_element(left), 200U) << "the other loan's, in the shared lane, too";
  for (const LoanSlot slot : second) segment::ClearSlot(readers_.At(slot));
  readers_.GiveBack(second);
  for (const segment::Lane& lane : page_->lanes) EXPECT_EQ(lane.used.load(), 0U);
}

TEST_F(ReaderSlotsTest, LoansHaveHalfOfTheBytesOrOneValue) {
  EXPECT_EQ(readers_.AddBorrowed(kPayload), Added::kYes) << "one, however large";
  EXPECT_EQ(readers_.AddBorrowed(1), Added::kTooMuch);
  readers_.SubBorrowed(kPayload);
  EXPECT_EQ(readers_.AddBorrowed(300 << 10), Added::kYes);
  EXPECT_EQ(readers_.AddBorrowed(300 << 10), Added::kTooMuch);
  EXPECT_EQ(readers_.AddBorrowed(212 << 10), Added::kYes);
  EXPECT_EQ(readers_.borrowed_bytes(), 512U << 10);
}

TEST_F(ReaderSlotsTest, GetsHaveTheRestOrOneValueAndNeverWaitForALoan) {
  ASSERT_EQ(readers_.AddBorrowed(512 << 10), Added::kYes);
  EXPECT_TRUE(readers_.AddProtected(300 << 10));
  EXPECT_FALSE(readers_.AddProtected(300 << 10)) << "1/16 for both";
  readers_.SubProtected(300 << 10);
  EXPECT_TRUE(readers_.AddProtected(kPayload)) << "one, however large";
}

TEST_F(ReaderSlotsTest, ALoanIsToldToWaitOnlyForGets) {
  ASSERT_TRUE(readers_.AddProtected(900 << 10));
  EXPECT_EQ(readers_.AddBorrowed(200 << 10), Added::kGetsRead);
  EXPECT_EQ(readers_.borrowed_bytes(), 0U);
  readers_.SubProtected(900 << 10);
  EXPECT_EQ(readers_.AddBorrowed(200 << 10), Added::kYes);
}

}  // namespace
}  // namespace kvcove::requester
