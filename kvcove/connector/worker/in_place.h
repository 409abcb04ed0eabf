// SPDX-License-Identifier: Apache-2.0
// Memory of the pool that a device reads or writes in place: the loans and reservations that a
// transfer holds until its ticket is over, however that ends, and a bound for all transfers
// together.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/connector/worker/segment_pins.h"
#include "kvcove/transport/device_queue.h"

namespace kvcove::connector {

// Bounds the part of the pool that a slow or hanging device holds. Thread-safe.
class InPlaceBudget : public std::enable_shared_from_this<InPlaceBudget> {
 public:
  explicit InPlaceBudget(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  // Takes `bytes` until the returned object is destroyed, which may outlive its role. Null: too
  // much is held. A transfer larger than the budget is admitted if it is the only one. `bounded`
  // false: counts the bytes and admits always.
  std::shared_ptr<const void> Take(std::uint64_t bytes, bool bounded) {
    // Relaxed: the sum orders no other memory. fetch_add gives each caller a different `before`, so
    // no two of them are both admitted into the same room.
    const std::uint64_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (bounded && before != 0 && before + bytes > most_bytes_) {
      bytes_.fetch_sub(bytes, std::memory_order_relaxed);
      return nullptr;
    }
    return std::shared_ptr<const void>(this, [self = shared_from_this(), bytes](const void*) {
      self->bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    });
  }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const std::uint64_t most_bytes_;
  std::atomic<std::uint64_t> bytes_{0};
};

// The loan of a load's batch, or the reservation of a save's. One thread builds it, then the
// transfer keeps it. The destructor releases the loan, or aborts the reservation if it was not
// committed, and only then lets the segments be unpinned.
class InPlaceMemory final : public transport::HostMemory {
 public:
  explicit InPlaceMemory(std::shared_ptr<const void> share) : share_(std::move(share)) {}
  std::span<const std::span<std::byte>> extents() const override { return extents_; }

  // Adds a value's pieces, and returns them as memory for the device, which only reads those of a
  // loan. Empty: not all of the pieces are pinned.
  template <typename Buffer>
  std::vector<std::span<std::byte>> Add(const SegmentPins& pins, std::span<const Buffer> pieces) {
    std::vector<std::span<std::byte>> value;
    for (const Buffer& piece : pieces) {
      std::shared_ptr<const PinnedSegment> segment = pins.Find(piece.data, piece.size);
      if (segment == nullptr) return {};
      if (segments_.empty() || segments_.back() != segment) segments_.push_back(std::move(segment));
      value.emplace_back(static_cast<std::byte*>(const_cast<void*>(  // NOLINT
                             static_cast<const void*>(piece.data))),
                         piece.size);
    }
    extents_.insert(extents_.end(), value.begin(), value.end());
    return value;
  }

 private:
  std::shared_ptr<const void> share_;
  std::vector<std::shared_ptr<const PinnedSegment>> segments_;
  std::vector<std::span<std::byte>> extents_;

 public:
  // The last members, so that they end before the segments are unpinned.
  Borrowed loan;   // for a load
  Reserved space;  // for a save
};

}  // namespace kvcove::connector
