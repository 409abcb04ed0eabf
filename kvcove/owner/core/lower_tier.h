// SPDX-License-Identifier: Apache-2.0
// The calls of an owner's core to the tier below its memory. Each call is made under the core's
// lock, and does no I/O.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcove/model/ids.h"
#include "kvcove/policy/policy.h"

namespace kvcove::owner {

// A current object that is evicted to make room for others.
struct EvictedObject {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t put = 0;  // names the put: PackPut in a cluster, else the object's version
  std::string_view key;
  std::uint32_t size_bytes = 0;
  policy::ObjectId id = 0;          // as in Stored
  std::uint64_t hash = 0;           // of the key, as in Stored
  std::span<const Extent> extents;  // in the payload; reused after the call returns
  // False: no reader may read it now. A tier that has the value keeps it; another one drops it.
  bool goes_down = true;
};

// Names a put. Its replicas have the same group; `copies`: the number of owners that it is for.
struct PutOf {
  std::uint32_t group = 0;
  std::uint8_t copies = 1;
};
constexpr std::uint64_t PackPut(const PutOf& put) {
  return (std::uint64_t{put.copies} << 32) | put.group;
}
constexpr PutOf UnpackPut(std::uint64_t packed) {
  const auto copies = static_cast<std::uint8_t>(packed >> 32);
  return {.group = static_cast<std::uint32_t>(packed), .copies = std::max<std::uint8_t>(copies, 1)};
}

class LowerTier {
 public:
  virtual ~LowerTier() = default;
  // Returns whether the tier has the key's value, or is about to. A put of the key is answered
  // `exists` then, because a value never changes under its key.
  virtual bool Holds(SlotId slot, Generation generation, std::string_view key) const = 0;
  // Returns whether the next start might find the key's value in the tier, although readers do not
  // find it now. A put of the key is answered `exists`, too.
  virtual bool Covers(SlotId /*slot*/, Generation /*generation*/, std::string_view /*key*/) {
    return false;
  }
  // Copies the value, or drops it. True: the tier has the value, and keeps it or reports its loss
  // (Core::NoteLost).
  virtual bool Evicted(const EvictedObject& object) = 0;
  // Returns how many bytes may be evicted for a put now. 0: the tier must lose no value, and might
  // have to drop evicted ones for lack of room, so the put must wait instead.
  virtual std::uint64_t SpareBytes() const { return ~std::uint64_t{0}; }
  // Stored, Asked and Forgotten report the values that memory stores, reads, and withdraws without
  // a call of Evicted: whole requests show the tier which values are worth keeping. `comes_up`: the
  // tier's own value was promoted.
  virtual void Stored(SlotId slot, Generation generation, std::string_view key,
                      const policy::PutEvent& event, bool comes_up) = 0;
  virtual void Asked(policy::ObjectId id) = 0;
  virtual void Forgotten(policy::ObjectId id) = 0;
};

}  // namespace kvcove::owner
