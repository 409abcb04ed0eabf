// SPDX-License-Identifier: Apache-2.0
// The bytes of an object, extent by extent, and their checksum in slices. Private to this module.
#pragma once

#include <algorithm>
#include <optional>
#include <span>

#include "kvcove/base/hash.h"
#include "kvcove/model/ids.h"
#include "kvcove/segment/layout.h"

namespace kvcove::owner {

// Calls `take(pointer, bytes)` for each piece, in the object's order.
template <typename Take>
void ForEachPiece(std::byte* payload, std::span<const Extent> extents, std::uint64_t size,
                  const Take& take) {
  for (const Extent& extent : extents) {
    const std::uint64_t bytes = std::min<std::uint64_t>(extent.count * segment::kGranule, size);
    take(payload + extent.start * segment::kGranule, bytes);
    size -= bytes;
  }
}

// The checksum of one object, in slices: a thread that serves others hashes so much, and goes on
// when they have had their turn. Belongs to one thread.
class SlicedChecksum {
 public:
  SlicedChecksum() = default;
  void Begin(std::byte* payload, std::span<const Extent> extents, std::uint64_t size) {
    payload_ = payload;
    extents_ = extents;
    left_ = size;
    extent_ = 0;
    within_ = 0;
    stream_.Reset();
  }
  // Hashes up to `most` bytes more; how many it did.
  std::uint64_t Add(std::uint64_t most) {
    std::uint64_t done = 0;
    while (done < most && left_ > 0) {
      const Extent& extent = extents_[extent_];
      const std::uint64_t bytes =
          std::min({extent.count * std::uint64_t{segment::kGranule} - within_, left_, most - done});
      stream_.Add({payload_ + extent.start * segment::kGranule + within_, bytes});
      done += bytes;
      left_ -= bytes;
      within_ += bytes;
      if (within_ == extent.count * std::uint64_t{segment::kGranule}) {
        ++extent_;
        within_ = 0;
      }
    }
    return done;
  }
  bool done() const { return left_ == 0; }
  std::uint64_t Value() const { return stream_.Value(); }

 private:
  std::byte* payload_ = nullptr;
  std::span<const Extent> extents_;
  std::uint64_t left_ = 0;
  std::size_t extent_ = 0;
  std::uint64_t within_ = 0;
  Hash64Stream stream_;
};

// In one go, where no loop waits.
inline std::uint64_t ChecksumOf(std::byte* payload, std::span<const Extent> extents,
                                std::uint64_t size) {
  SlicedChecksum checksum;
  checksum.Begin(payload, extents, size);
  checksum.Add(size);
  return checksum.Value();
}

}  // namespace kvcove::owner
