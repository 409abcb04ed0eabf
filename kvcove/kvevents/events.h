// SPDX-License-Identifier: Apache-2.0
// The events that an owner sends to routers. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcove/kvevents/block_key.h"

namespace kvcove::kvevents {

enum class Medium : std::uint8_t { kMemory = 0, kDisk = 1 };

struct Event {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };
  // Most hashes of one event, so that a batch has a bound.
  static constexpr std::size_t kMostHashes = 1024;
  Kind kind = Kind::kStored;
  Medium medium = Medium::kMemory;
  std::uint32_t group = 0;
  std::vector<BlockHash> hashes;  // none with kCleared
  bool operator==(const Event&) const = default;
};

}  // namespace kvcove::kvevents
