// SPDX-License-Identifier: Apache-2.0
// Granules: the unit in which a segment's payload is allocated. All granules of a segment have one
// size, which its header has: a power of two from 64 B to 4 KiB. An extent counts granules with 32
// bits, so the granule bounds the payload:
//
//   granule   payload up to    unused bytes of a value, on average
//      64 B        256 GiB         32 B
//     128 B        512 GiB         64 B
//     256 B          1 TiB        128 B
//     512 B          2 TiB        256 B
//     1 KiB          4 TiB        512 B
//     2 KiB          8 TiB          1 KiB
//     4 KiB         16 TiB          2 KiB
//
// Immutable values.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcove/base/result.h"
#include "kvcove/model/ids.h"

namespace kvcove::segment {

inline constexpr std::uint64_t kLeastGranule = 64;
inline constexpr std::uint64_t kMostGranule = 4096;
inline constexpr std::uint64_t kMaxGranules = 1ULL << 32;                       // of one segment
inline constexpr std::uint64_t kMaxPayloadBytes = kMostGranule * kMaxGranules;  // 16 TiB

class Granule {
 public:
  constexpr Granule() = default;  // the smallest
  // Returns the smallest granule that reaches all of the payload; the largest if none does.
  static constexpr Granule For(std::uint64_t payload_bytes) {
    Granule granule;
    while (granule.reach() < payload_bytes && granule.bytes() < kMostGranule) ++granule.shift_;
    return granule;
  }
  // Returns the granule of this size; `bytes` 0: For(payload_bytes). Errors: kInvalid (no size of a
  // granule, or too small for the payload).
  static Result<Granule> Of(std::uint64_t bytes, std::uint64_t payload_bytes);

  constexpr std::uint64_t bytes() const { return 1ULL << shift_; }
  // Returns the largest payload that extents can address, in bytes.
  constexpr std::uint64_t reach() const { return kMaxGranules << shift_; }
  // Returns the number of granules of a value.
  constexpr std::uint64_t Count(std::uint64_t size_bytes) const {
    return (size_bytes + bytes() - 1) >> shift_;
  }
  // Returns the bytes that a value occupies: whole granules.
  constexpr std::uint64_t Occupied(std::uint64_t size_bytes) const {
    return Count(size_bytes) << shift_;
  }
  constexpr std::uint64_t BytesOf(std::uint64_t granules) const { return granules << shift_; }
  bool operator==(const Granule&) const = default;

 private:
  std::uint32_t shift_ = std::countr_zero(kLeastGranule);
};

// A mapped payload with its granule.
struct Payload {
  std::byte* data = nullptr;
  Granule granule;

  std::span<std::byte> At(const Extent& extent) const {
    return {data + granule.BytesOf(extent.start), granule.BytesOf(extent.count)};
  }
};

}  // namespace kvcove::segment
