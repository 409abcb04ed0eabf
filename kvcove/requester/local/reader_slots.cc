// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/reader_slots.h"

#include <bit>

#include "kvcove/base/interrupt.h"

namespace kvcove::requester {
namespace {

constexpr std::uint32_t kAllLanes = (1U << segment::kLanes) - 1;
constexpr std::uint64_t kAllSlots = ~0ULL;
static_assert(segment::kLaneSlots == 64, "a lane's free slots are the bits of one word");

}  // namespace

int ReaderSlots::AcquireLane(std::int64_t deadline_ns, const Clock& clock) {
  const MutexLock lock(mutex_);
  while (lanes_used_ == kAllLanes) {
    const std::int64_t left = LeftNs(deadline_ns, clock);
    if (left <= 0) return -1;
    lane_free_.WaitFor(mutex_, std::chrono::nanoseconds(left));
  }
  const int lane = std::countr_one(lanes_used_);
  lanes_used_ |= 1U << lane;
  return lane;
}

void ReaderSlots::ReleaseLane(int lane) {
  const MutexLock lock(mutex_);
  lanes_used_ &= ~(1U << lane);
  lane_free_.NotifyOne();
}

bool ReaderSlots::AddProtected(std::uint64_t bytes) {
  const std::uint64_t before = protected_bytes_.fetch_add(bytes);
  if (before == 0 || before + bytes + borrowed_bytes_.load() <= bound_bytes_) return true;
  SubProtected(bytes);
  return false;
}

// ---- loans

ReaderSlots::Added ReaderSlots::AddBorrowed(std::uint64_t bytes) {
  const std::uint64_t before = borrowed_bytes_.fetch_add(bytes);
  if (before != 0 && before + bytes > bound_bytes_ / 2) {
    SubBorrowed(bytes);
    return Added::kTooMuch;
  }
  const std::uint64_t read = protected_bytes_.load();
  if (read == 0 || before + bytes + read <= bound_bytes_) return Added::kYes;
  SubBorrowed(bytes);
  return Added::kGetsRead;
}

bool ReaderSlots::AddLoanLane(std::int64_t deadline_ns, const Clock& clock) {
  if (std::popcount(loan_lanes_) == static_cast<int>(kMostLoanLanes)) return false;
  while (lanes_used_ == kAllLanes) {
    const std::int64_t left = LeftNs(deadline_ns, clock);
    if (left <= 0) return false;
    lane_free_.WaitFor(mutex_, std::chrono::nanoseconds(left));
    if (std::popcount(loan_lanes_) < static_cast<int>(kMostLoanLanes)) continue;
    // Another loan has taken the last loan lane meanwhile. The lane whose release woke this thread
    // is free for a get, so the notification is passed on.
    lane_free_.NotifyOne();
    return false;
  }
  const int lane = std::countr_one(lanes_used_);
  lanes_used_ |= 1U << lane;
  loan_lanes_ |= 1U << lane;
  free_slots_[lane] = kAllSlots;
  // Stored before any slot of the lane is announced, and so before the announcing thread's fence:
  // an owner that looks at the lane later looks at all of its slots.
  page_->lanes[lane].used.store(segment::kLaneSlots, std::memory_order_release);
  return true;
}

std::size_t ReaderSlots::TakeSlots(std::span<LoanSlot> slots, std::int64_t deadline_ns,
                                   const Clock& clock) {
  const MutexLock lock(mutex_);
  std::size_t taken = 0;
  while (taken < slots.size()) {
    for (std::uint32_t lanes = loan_lanes_; lanes != 0 && taken < slots.size();
         lanes &= lanes - 1) {
      const int lane = std::countr_zero(lanes);
      std::uint64_t& free = free_slots_[lane];
      for (; free != 0 && taken < slots.size(); free &= free - 1) {
        slots[taken++] =
            static_cast<LoanSlot>(static_cast<std::uint32_t>(lane) * segment::kLaneSlots +
                                  static_cast<std::uint32_t>(std::countr_zero(free)));
      }
    }
    if (taken < slots.size() && !AddLoanLane(deadline_ns, clock)) break;
  }
  return taken;
}

void ReaderSlots::GiveBack(std::span<const LoanSlot> slots) {
  const MutexLock lock(mutex_);
  for (const LoanSlot slot : slots) {
    const std::uint32_t lane = slot / segment::kLaneSlots;
    free_slots_[lane] |= 1ULL << (slot % segment::kLaneSlots);
    // The owner looks at the lane while any loan has a slot of it.
    if (free_slots_[lane] != kAllSlots) continue;
    page_->lanes[lane].used.store(0, std::memory_order_release);
    loan_lanes_ &= ~(1U << lane);
    lanes_used_ &= ~(1U << lane);
    lane_free_.NotifyOne();
  }
}

}  // namespace kvcove::requester
