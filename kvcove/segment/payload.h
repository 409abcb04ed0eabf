// SPDX-License-Identifier: Apache-2.0
// How a segment's payload is cut up. It is given out in granules, all of one size, which the
// header names: a power of two from 64 B to 4 KiB. An extent counts granules with 32 bits, so the
// granule decides how much a segment may have:
//
//   granule   payload up to    a value takes on average, beside its size
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
  constexpr Granule() = default;  // the least
  // The smallest granule that reaches all of such a payload; the largest for one that none reaches.
  static constexpr Granule For(std::uint64_t payload_bytes) {
    Granule granule;
    while (granule.reach() < payload_bytes && granule.bytes() < kMostGranule) ++granule.shift_;
    return granule;
  }
  // `bytes` 0: For. Errors: kInvalid for what is no granule, or does not reach the payload's end.
  static Result<Granule> Of(std::uint64_t bytes, std::uint64_t payload_bytes);

  constexpr std::uint64_t bytes() const { return 1ULL << shift_; }
  // How much payload extents can name.
  constexpr std::uint64_t reach() const { return kMaxGranules << shift_; }
  // Granules that hold so many bytes.
  constexpr std::uint64_t Count(std::uint64_t size_bytes) const {
    return (size_bytes + bytes() - 1) >> shift_;
  }
  // What a value occupies: whole granules.
  constexpr std::uint64_t Occupied(std::uint64_t size_bytes) const {
    return Count(size_bytes) << shift_;
  }
  constexpr std::uint64_t BytesOf(std::uint64_t granules) const { return granules << shift_; }
  bool operator==(const Granule&) const = default;

 private:
  std::uint32_t shift_ = std::countr_zero(kLeastGranule);
};

// Where the payload is mapped, and how it is cut up.
struct Payload {
  std::byte* data = nullptr;
  Granule granule;

  std::span<std::byte> At(const Extent& extent) const {
    return {data + granule.BytesOf(extent.start), granule.BytesOf(extent.count)};
  }
};

}  // namespace kvcove::segment
