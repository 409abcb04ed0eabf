// SPDX-License-Identifier: Apache-2.0
// Memory of the pool that a device reads or writes where it lies: what a transfer holds until its
// ticket is over, however that ends, and what all transfers together may hold.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/connector/worker/segment_pins.h"
#include "kvcove/transport/device_queue.h"

namespace kvcove::connector {

// So that a device that is slow, or hangs, holds a bounded part of the pool. Thread-safe.
class InPlaceBudget : public std::enable_shared_from_this<InPlaceBudget> {
 public:
  explicit InPlaceBudget(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  // Given back with the end of what it returns, which may outlive everything else. Null: too much
  // is held; a transfer larger than the budget is the only one. `bounded` false: it only counts.
  std::shared_ptr<const void> Take(std::uint64_t bytes, bool bounded) {
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

// Of one batch: what is borrowed for a load, or reserved for a save. Built by one thread, then kept
// by the transfer. Its end releases, or aborts what was not committed, and then lets the segments
// be unpinned.
class InPlaceMemory final : public transport::HostMemory {
 public:
  explicit InPlaceMemory(std::shared_ptr<const void> share) : share_(std::move(share)) {}
  std::span<const std::span<std::byte>> extents() const override { return extents_; }

  // Empty: not all of these pieces are pinned, and none was added. Else the same pieces; a device
  // reads those of a loan only.
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
  // The last members: they end first.
  Borrowed loan;   // of a load
  Reserved space;  // of a save
};

}  // namespace kvcove::connector
