// SPDX-License-Identifier: Apache-2.0
// The bytes of an object, extent by extent. Private to this module.
#pragma once

#include <algorithm>
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

inline std::uint64_t ChecksumOf(std::byte* payload, std::span<const Extent> extents,
                                std::uint64_t size) {
  if (extents.size() == 1) {
    return Hash64(std::span(payload + extents[0].start * segment::kGranule, size), 0);
  }
  Hash64Stream stream;
  ForEachPiece(payload, extents, size,
               [&](std::byte* data, std::uint64_t bytes) { stream.Add({data, bytes}); });
  return stream.Value();
}

}  // namespace kvcove::owner
