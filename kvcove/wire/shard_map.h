// SPDX-License-Identifier: Apache-2.0
// Which master knows where a key is. The directory's hash space is cut into slices; each belongs to
// one shard: the leader, or another master that serves what the leader gave it (docs/ha.md).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/model/ids.h"

namespace kvcove::wire {

inline constexpr std::size_t kSlices = 4096;
using SliceNumber = std::uint16_t;
inline SliceNumber SliceOf(const Id128& directory_hash) {
  return static_cast<SliceNumber>(directory_hash.high >> 52);
}

using ShardNumber = std::uint8_t;
inline constexpr ShardNumber kLeaderShard = 0;
inline constexpr std::size_t kMaxShards = 16;

// Immutable once it is shared.
struct ShardMap {
  std::uint64_t term = 0;
  std::uint64_t revision = 0;  // grows within a term; from 1 on
  // By number; empty: there is no such shard. The leader's is empty, too: owners and requesters get
  // this map from the leader, so they know its address.
  std::vector<std::string> addresses;
  std::array<ShardNumber, kSlices> shards{};
  // The revision in which the slice last began without entries: owners that told it before tell it
  // again.
  std::array<std::uint64_t, kSlices> fresh{};

  ShardNumber ShardOf(const Id128& directory_hash) const { return shards[SliceOf(directory_hash)]; }
  bool alone() const { return addresses.size() <= 1; }
  bool operator==(const ShardMap&) const = default;
};

}  // namespace kvcove::wire
