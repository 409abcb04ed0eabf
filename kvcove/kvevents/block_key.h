// SPDX-License-Identifier: Apache-2.0
// The block of a key that the vLLM connector has made (connector/shape.h):
// "g<group>.h<i>of<n>[.p<i>of<n>][.c<i>of<n>][.d<i>of<n>]@<hash in hex digits>[+<adapter>]".
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvcove::kvevents {

// A block hash of vLLM: 32 bytes with sha256, 16 with xxhash.
struct BlockHash {
  static constexpr std::size_t kMostBytes = 32;
  std::uint8_t size = 0;
  std::array<std::byte, kMostBytes> bytes{};
  bool operator==(const BlockHash&) const = default;
  // Returns the hash as vLLM's own events have it by default: its last eight bytes as a number.
  std::uint64_t AsNumber() const;
};

// A block as routers know it.
struct BlockId {
  std::uint32_t group = 0;  // of KV caches, in the engine's order
  BlockHash hash;
  bool operator==(const BlockId&) const = default;
};

// The part of a block that one key stores: ranks of an engine that hold different bytes store them
// under keys of their own.
struct BlockPart {
  static constexpr std::uint32_t kMostParts = 64;
  BlockId block;
  std::uint32_t part = 0;    // below `parts`
  std::uint32_t parts = 1;   // of the block; at most kMostParts
  std::string_view adapter;  // digest of the LoRA adapter's tensors; empty: none. A part of the key
};

// Returns nothing for a key of another form, with a hash of more than BlockHash::kMostBytes, or of
// a block that has more than kMostParts parts.
std::optional<BlockPart> ParseBlockKey(std::string_view key);

}  // namespace kvcove::kvevents
