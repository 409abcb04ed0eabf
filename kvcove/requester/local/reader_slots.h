// SPDX-License-Identifier: Apache-2.0
// The lanes and slots of one session page (segment/reader.h has the protocol), which this process's
// readers share, and the bytes that they may protect.
//
//   a get    takes a lane for one window, and returns it after its copies
//   a loan   takes single slots, of lanes that loans share, and keeps them until it is released
//
// A loan may last long, so loans have bounds of their own, and no get ever waits for the end of a
// loan: at most kMostLoanLanes lanes, and half of the bytes that a session may protect (1/16 of the
// segment), or one object. Gets have the rest of the 1/16, or one object.
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

  // `page` must outlive this object.
  ReaderSlots(segment::SessionPage* page, std::uint64_t payload_bytes)
      : page_(page), bound_bytes_(payload_bytes / 16) {}

  // ---- gets
  // Returns a lane for one reading thread; waits for one until the deadline. -1: no lane became
  // free.
  int AcquireLane(std::int64_t deadline_ns, const Clock& clock);
  void ReleaseLane(int lane);
  // Adds bytes that gets protect. False: that would exceed the bound.
  bool AddProtected(std::uint64_t bytes);
  void SubProtected(std::uint64_t bytes) { protected_bytes_.fetch_sub(bytes); }

  // ---- loans
  // Number of a slot: lane * kLaneSlots + index in the lane.
  using LoanSlot = std::uint16_t;
  // Fills `slots` from the front, and returns their number: fewer if loans have reached their
  // bound, or if no lane becomes free until the deadline. The owner looks at these slots from now
  // on.
  std::size_t TakeSlots(std::span<LoanSlot> slots, std::int64_t deadline_ns, const Clock& clock);
  // Returns slots. Each must have been cleared, or never announced.
  void GiveBack(std::span<const LoanSlot> slots);
  segment::ProtectedSlot& At(LoanSlot slot) const {
    return page_->lanes[slot / segment::kLaneSlots].slots[slot % segment::kLaneSlots];
  }
  enum class Added {
    kYes,
    kTooMuch,  // beyond the bound of loans: do not wait
    kGetsRead  // gets protect the room for it: wait, as they end by themselves
  };
  Added AddBorrowed(std::uint64_t bytes);
  void SubBorrowed(std::uint64_t bytes) { borrowed_bytes_.fetch_sub(bytes); }
  std::uint64_t borrowed_bytes() const { return borrowed_bytes_.load(); }

 private:
  bool AddLoanLane(std::int64_t deadline_ns, const Clock& clock) KVCOVE_REQUIRES(mutex_);

  segment::SessionPage* const page_;
  const std::uint64_t bound_bytes_;
  // Each side adds to its own sum and then reads the other one, sequentially consistent: if a get
  // and a loan add at the same time, at least one of them sees both. With weaker orders both could
  // miss the other, and exceed the bound together.
  std::atomic<std::uint64_t> protected_bytes_{0};  // by gets
  std::atomic<std::uint64_t> borrowed_bytes_{0};   // by loans

  Mutex mutex_;
  CondVar lane_free_;
  std::uint32_t lanes_used_ KVCOVE_GUARDED_BY(mutex_) = 0;  // by gets and loans; a bit each
  std::uint32_t loan_lanes_ KVCOVE_GUARDED_BY(mutex_) = 0;  // by loans
  // Free slots of the lanes of loans; a bit each.
  std::array<std::uint64_t, segment::kLanes> free_slots_ KVCOVE_GUARDED_BY(mutex_) = {};
};

}  // namespace kvcove::requester
