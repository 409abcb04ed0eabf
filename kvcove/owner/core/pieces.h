// SPDX-License-Identifier: Apache-2.0
// Walks over the bytes of an object, extent by extent, and hashes them in slices. Private to this
// module.
#pragma once

#include <algorithm>
#include <span>

#include "kvcove/base/hash.h"
#include "kvcove/model/ids.h"
#include "kvcove/segment/payload.h"

namespace kvcove::owner {

// Calls `take(pointer, bytes)` for each piece, in the object's order.
template <typename Take>
void ForEachPiece(const segment::Payload& payload, std::span<const Extent> extents,
                  std::uint64_t size, const Take& take) {
  for (const Extent& extent : extents) {
    const std::span<std::byte> room = payload.At(extent);
    const std::uint64_t bytes = std::min<std::uint64_t>(room.size(), size);
    take(room.data(), bytes);
    size -= bytes;
  }
}

// The checksum of one object, in slices, so that a thread that serves several connections hashes
// one slice and serves the others before it continues. Not thread-safe.
class SlicedChecksum {
 public:
  SlicedChecksum() = default;
  void Begin(const segment::Payload& payload, std::span<const Extent> extents, std::uint64_t size) {
    payload_ = payload;
    extents_ = extents;
    left_ = size;
    extent_ = 0;
    within_ = 0;
    stream_.Reset();
  }
  // Hashes up to `most` bytes more. Returns how many.
  std::uint64_t Add(std::uint64_t most) {
    std::uint64_t done = 0;
    while (done < most && left_ > 0) {
      const std::span<std::byte> room = payload_.At(extents_[extent_]);
      const std::uint64_t bytes =
          std::min({std::uint64_t{room.size()} - within_, left_, most - done});
      stream_.Add(room.subspan(within_, bytes));
      done += bytes;
      left_ -= bytes;
      within_ += bytes;
      if (within_ == room.size()) {
        ++extent_;
        within_ = 0;
      }
    }
    return done;
  }
  bool done() const { return left_ == 0; }
  std::uint64_t Value() const { return stream_.Value(); }

 private:
  segment::Payload payload_;
  std::span<const Extent> extents_;
  std::uint64_t left_ = 0;
  std::size_t extent_ = 0;
  std::uint64_t within_ = 0;
  Hash64Stream stream_;
};

// Returns the checksum at once; not for an event loop.
inline std::uint64_t ChecksumOf(const segment::Payload& payload, std::span<const Extent> extents,
                                std::uint64_t size) {
  SlicedChecksum checksum;
  checksum.Begin(payload, extents, size);
  checksum.Add(size);
  return checksum.Value();
}

}  // namespace kvcove::owner
