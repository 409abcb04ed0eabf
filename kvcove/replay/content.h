// SPDX-License-Identifier: Apache-2.0
// Bytes that say where they come from: every word of a block follows from its chain, its place in
// it and the version of the weights, so a wrong or stale byte anywhere is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcove/policy/simulate.h"

namespace kvcove::replay {

// One number a block: it follows from the block and all before it.
std::vector<std::uint64_t> ChainHashes(const policy::Chain& blocks);
// The key under which an engine stores the block with this chain hash.
std::string BlockKey(std::uint64_t chain_hash);

// `block` must hold whole 8-byte words.
void FillBlock(std::span<std::byte> block, std::uint64_t chain_hash, std::uint32_t version);

enum class Verdict { kRight, kStale, kWrong };
// kStale: exactly what an earlier version of the weights computed for this block.
Verdict CheckBlock(std::span<const std::byte> block, std::uint64_t chain_hash,
                   std::uint32_t version);

}  // namespace kvcove::replay
