// SPDX-License-Identifier: Apache-2.0
// What this process's readers of one segment may protect: the lanes and slots of its session page
// (segment/reader.h has the protocol), and the bytes.
//
//   a get    takes a lane for one window, and gives it back when it has copied
//   a loan   takes single slots, of lanes that loans share, and keeps them until it is released
//
// A loan may be kept for long, so loans have bounds of their own, and no get ever waits for a loan
// to end: at most kMostLoanLanes lanes, and half of the bytes that a session may protect (1/16 of
// the segment), or one object. Gets have the rest of the 1/16, or one object.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/segment/protected_slot.h"

namespace kvcove::requester {

// Thread-safe.
class ReaderSlots {
 public:
  static constexpr std::uint32_t kMostLoanLanes = segment::kLanes / 2;
  static constexpr std::uint32_t kMostLoans = kMostLoanLanes * segment::kLaneSlots;

  // `page` outlives this.
  ReaderSlots(segment::SessionPage* page, std::uint64_t payload_bytes)
      : page_(page), bound_bytes_(payload_bytes / 16) {}

  // ---- gets
  // A lane for one reading thread, waiting for one until the deadline. -1: none came free in time.
  int AcquireLane(std::int64_t deadline_ns, const Clock& clock);
  void ReleaseLane(int lane);
  // Bytes that gets protect in addition; false if that would be too much.
  bool AddProtected(std::uint64_t bytes);
  void SubProtected(std::uint64_t bytes) { protected_bytes_.fetch_sub(bytes); }

  // ---- loans
  // Names a slot: lane * kLaneSlots + number.
  using LoanSlot = std::uint16_t;
  // Fills `slots` from the front, and returns how many: fewer where loans have all that they may,
  // or no lane came free until the deadline. The owner looks at these slots from here on.
  std::size_t TakeSlots(std::span<LoanSlot> slots, std::int64_t deadline_ns, const Clock& clock);
  // Cleared before, or never announced.
  void GiveBack(std::span<const LoanSlot> slots);
  segment::ProtectedSlot& At(LoanSlot slot) const {
    return page_->lanes[slot / segment::kLaneSlots].slots[slot % segment::kLaneSlots];
  }
  enum class Added {
    kYes,
    kTooMuch,  // for loans
    kGetsRead  // gets protect the room for it; they end by themselves
  };
  Added AddBorrowed(std::uint64_t bytes);
  void SubBorrowed(std::uint64_t bytes) { borrowed_bytes_.fetch_sub(bytes); }
  std::uint64_t borrowed_bytes() const { return borrowed_bytes_.load(); }

 private:
  bool AddLoanLane(std::int64_t deadline_ns, const Clock& clock) KVCOVE_REQUIRES(mutex_);

  segment::SessionPage* const page_;
  const std::uint64_t bound_bytes_;
  // Each side adds its own and then reads the other's, sequentially consistent: of two threads that
  // add at the same time one sees both.
  std::atomic<std::uint64_t> protected_bytes_{0};  // of gets
  std::atomic<std::uint64_t> borrowed_bytes_{0};

  Mutex mutex_;
  CondVar lane_free_;
  std::uint32_t lanes_used_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of gets and loans, a bit each
  std::uint32_t loan_lanes_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, segment::kLanes> free_slots_ KVCOVE_GUARDED_BY(mutex_) = {};
};

}  // namespace kvcove::requester
