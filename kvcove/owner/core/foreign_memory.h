// SPDX-License-Identifier: Apache-2.0
// Clears payload memory before another space gets it, so that no space reads the bytes of another
// one. Not thread-safe: needs the core's lock.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/size.h"
#include "kvcove/model/ids.h"
#include "kvcove/segment/payload.h"

namespace kvcove::owner {

// Keeps for each block of the payload the serial number of the only space that has used it, or
// kMixed. Serials are never reused, so a space never takes another one's memory for its own.
class ForeignMemory {
 public:
  static constexpr std::uint64_t kBlockBytes = 64 * kKiB;

  ForeignMemory(const segment::Payload& payload, std::uint64_t payload_bytes)
      : payload_(payload), blocks_((payload_bytes / kBlockBytes) + 1) {}

  // Gives the extents to space `serial`: clears the parts that another space may have written.
  void Give(std::span<const Extent> extents, std::uint32_t serial) {
    for (const Extent& extent : extents) {
      std::uint64_t at = payload_.granule.BytesOf(extent.start);
      const std::uint64_t end = at + payload_.granule.BytesOf(extent.count);
      while (at < end) {
        const std::uint64_t until = std::min(end, (at / kBlockBytes + 1) * kBlockBytes);
        std::uint32_t& block = blocks_[at / kBlockBytes];
        if (block != serial && block != kUnused) std::memset(payload_.data + at, 0, until - at);
        block = block == kUnused || block == serial ? serial : kMixed;
        at = until;
      }
    }
  }

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, blocks_);
  }

 private:
  static constexpr std::uint32_t kUnused = 0;
  static constexpr std::uint32_t kMixed = 0xFFFFFFFF;

  const segment::Payload payload_;
  std::vector<std::uint32_t> blocks_;
};

}  // namespace kvcove::owner
