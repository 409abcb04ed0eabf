// SPDX-License-Identifier: Apache-2.0
// What an owner's core says to, and asks of, the tier below its memory. Every call is made under
// the core's lock, and does no I/O.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvcove/model/ids.h"
#include "kvcove/policy/policy.h"

namespace kvcove::owner {

// A current object, which makes room for others.
struct EvictedObject {
  SlotId slot = 0;
  Generation generation = 0;
  std::uint64_t put = 0;  // in a cluster which put it is (PackPut), else the object's version
  std::string_view key;
  std::uint32_t size_bytes = 0;
  policy::ObjectId id = 0;          // as in Stored
  std::uint64_t hash = 0;           // of the key, as in Stored
  std::span<const Extent> extents;  // of the payload; they are reused when the call returns
  // False: nobody may read it now. A tier that has the value keeps it; another one drops it.
  bool goes_down = true;
};

// The replicas of one put are known by its group; `copies`: on how many owners it is meant to be.
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
  // It has the key's value, or is about to: a put of the key is answered `exists`, for a value
  // never changes under its key.
  virtual bool Holds(SlotId slot, Generation generation, std::string_view key) const = 0;
  // It is not found there now, but the next start might find it, so a put of the key is answered
  // `exists`, too.
  virtual bool Covers(SlotId /*slot*/, Generation /*generation*/, std::string_view /*key*/) {
    return false;
  }
  // Copies the value, or drops it. True: it has the value, and keeps it or says that it is lost.
  virtual bool Evicted(const EvictedObject& object) = 0;
  // How many bytes may be evicted for a put now. 0: what is evicted might be dropped for want of
  // room there, and the tier is to lose nothing, so the put must wait instead.
  virtual std::uint64_t SpareBytes() const { return ~std::uint64_t{0}; }
  // What memory stores, reads and forgets without a call of Evicted: whole requests tell the tier
  // what is worth keeping. `comes_up`: it is the tier's own value.
  virtual void Stored(SlotId slot, Generation generation, std::string_view key,
                      const policy::PutEvent& event, bool comes_up) = 0;
  virtual void Asked(policy::ObjectId id) = 0;
  virtual void Forgotten(policy::ObjectId id) = 0;
};

}  // namespace kvcove::owner
