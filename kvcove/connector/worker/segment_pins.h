// SPDX-License-Identifier: Apache-2.0
// Pins the pool's memory on this host for a device, so that the device copies out of it and into it
// without a ring. A thread pins in the background, in pieces from the bottom, and never beyond the
// memory that the owner has populated: pinning allocates missing pages, at this process's cost.
//
//   segment   an owner's payload as this process maps it: pinned up to a mark, which only grows.
//             It is kept until a few looks in a row have not found its owner, and for as long as
//             a caller holds it by Find. There is a look every few pieces, so that little memory of
//             an owner that has ended is pinned.
//   piece     64 MiB a call of the driver, and a rest behind each: such a call holds locks of the
//             driver and of the process's address space, for which the engine may wait.
//   refused   the host pins no more (memlock): that is logged once, and pinned memory remains so.
//             Transfers of other memory take the ring.
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

// One mapping of one owner's payload. The destructor unpins it, by calls of the driver.
class PinnedSegment {
 public:
  explicit PinnedSegment(SegmentRange range) : range_(std::move(range)) {}
  // Returns whether all of that memory is pinned. Thread-safe.
  bool Holds(const void* data, std::uint64_t bytes) const;
  std::uint64_t bytes() const { return pinned_.load(std::memory_order_acquire); }

 private:
  friend class SegmentPins;
  SegmentRange range_;  // with the populated mark of the last look
  std::vector<std::unique_ptr<transport::Registered>> pieces_;
  // Pinned bytes from the bottom on. PinPiece stores it with release once the driver has the piece;
  // the acquire load of bytes() pairs with that.
  std::atomic<std::uint64_t> pinned_{0};
  int absent_ = 0;  // looks in a row that did not find its owner
};

struct SegmentPinsOptions {
  std::uint64_t most_bytes = ~std::uint64_t{0};  // most pinned bytes, all segments together
  std::uint64_t piece_bytes = 64 << 20;
  std::string name;    // names the rank in logs
  bool thread = true;  // kvcove-pin; false: tests call Step
};

class SegmentPins {
 public:
  // Returns the present mappings and their populated bytes; a call of the pool.
  using Source = std::function<Result<std::vector<SegmentRange>>()>;
  static constexpr int kAbsentLooks = 3;

  // `queue` outlives this object and all segments that Find has returned.
  SegmentPins(transport::DeviceQueue& queue, Source source, SegmentPinsOptions options);
  ~SegmentPins() { Stop(); }
  // Lets the thread begin. The constructor does not: the caller may have to drop this object for
  // another one, and the driver refuses memory that another one has pinned.
  void Start();

  // Returns the segment that has all of that memory pinned, for as long as the caller keeps it;
  // null: some of it is not pinned. Thread-safe; O(log n) of segments.
  std::shared_ptr<const PinnedSegment> Find(const void* data, std::uint64_t bytes) const;
  // Returns the bytes pinned now. Thread-safe.
  std::uint64_t bytes() const;
  const transport::DeviceQueue& queue() const { return queue_; }

  // Ends the thread; waits for a piece that is being pinned. Pinned memory remains so.
  void Stop();
  // Pins one piece, or looks for changes of the mappings; returns the time to rest, in nanoseconds.
  // For one thread at a time.
  std::int64_t Step();

 private:
  using Segments = std::vector<std::shared_ptr<PinnedSegment>>;  // by address

  void Loop();
  // Adds new segments, updates populated marks, and drops segments whose owner has ended.
  void Look();
  // Returns the next segment with a whole piece to pin; null: none now.
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

  // Only the thread that steps uses these.
  int since_look_ = 0;    // pieces since the last look
  bool refused_ = false;  // the host pins no more, until a segment is dropped
  bool said_ = false;     // the refusal is logged
  std::thread thread_;
};

}  // namespace kvcove::connector
