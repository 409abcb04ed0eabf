// SPDX-License-Identifier: Apache-2.0
// The pool's memory on this host, pinned for a device, so that it copies out of it and into it
// without a ring. In the background, in pieces from the bottom, and never beyond what the owner has
// populated: pinning allocates what is missing, at this process's cost.
//
//   segment   an owner's payload as this process maps it: pinned up to a mark, which only grows.
//             It is kept until a few looks in a row have not found its owner, and for as long as
//             anybody holds what Find gave. There is a look every few pieces, so that little of an
//             owner that is gone is pinned.
//   piece     64 MiB a call of the driver, and a rest behind each: such a call holds locks of the
//             driver and of the process's address space, for which the engine may wait.
//   refused   the host pins no more (memlock): that is said once, and what is pinned stays. What is
//             not pinned goes by way of the ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/pool/pool.h"
#include "kvcove/transport/device_queue.h"

namespace kvcove::connector {

// One mapping of one owner's payload. Its end unpins it.
class PinnedSegment {
 public:
  explicit PinnedSegment(SegmentRange range) : range_(std::move(range)) {}
  // Whether all of that memory is pinned. Thread-safe.
  bool Holds(const void* data, std::uint64_t bytes) const;
  std::uint64_t bytes() const { return pinned_.load(std::memory_order_acquire); }

 private:
  friend class SegmentPins;
  SegmentRange range_;  // its populated mark: of the last look
  std::vector<std::unique_ptr<transport::Registered>> pieces_;
  // From the bottom on. Released when the driver has the piece; pairs with the readers of Holds.
  std::atomic<std::uint64_t> pinned_{0};
  int absent_ = 0;  // looks in a row
};

struct SegmentPinsOptions {
  std::uint64_t most_bytes = ~std::uint64_t{0};  // pinned together
  std::uint64_t piece_bytes = 64 << 20;
  std::string name;    // of the user, for logs
  bool thread = true;  // kvcove-pin; false: tests call Step
};

class SegmentPins {
 public:
  // What is mapped now, and how much of it is populated; a call of the pool.
  using Source = std::function<Result<std::vector<SegmentRange>>()>;
  static constexpr int kAbsentLooks = 3;

  // The queue outlives all that Find has given.
  SegmentPins(transport::DeviceQueue& queue, Source source, SegmentPinsOptions options);
  ~SegmentPins() { Stop(); }
  // The thread pins nothing before: of two that pin the same memory the driver refuses the second.
  void Start();

  // The segment that has all of that memory pinned, for as long as the caller keeps it; null: some
  // is not. Thread-safe; O(log n) of segments.
  std::shared_ptr<const PinnedSegment> Find(const void* data, std::uint64_t bytes) const;
  // Pinned now. Thread-safe.
  std::uint64_t bytes() const;
  const transport::DeviceQueue& queue() const { return queue_; }

  // No piece is pinned any more; waits for one that is. What is pinned stays.
  void Stop();
  // Pins a piece at most, or looks at what is there; returns how long to rest, in nanoseconds. By
  // one thread at a time.
  std::int64_t Step();

 private:
  using Segments = std::vector<std::shared_ptr<PinnedSegment>>;  // by address

  void Loop();
  // New segments, new marks, and those whose owner is gone.
  void Look();
  // The next segment with a whole piece to be pinned; null: none now.
  std::shared_ptr<PinnedSegment> Next();
  static std::uint64_t PieceBytes(const PinnedSegment& segment, std::uint64_t piece_bytes);
  void PinPiece(PinnedSegment& segment);

  transport::DeviceQueue& queue_;
  const Source source_;
  const SegmentPinsOptions options_;

  mutable Mutex mutex_;
  CondVar wake_;
  Segments segments_ KVCOVE_GUARDED_BY(mutex_);  // changed by the thread that steps alone
  bool started_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;

  // Of the thread that steps.
  int since_look_ = 0;  // pieces
  bool refused_ = false;
  bool said_ = false;
  std::thread thread_;
};

}  // namespace kvcove::connector
