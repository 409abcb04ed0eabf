// SPDX-License-Identifier: Apache-2.0
#include "kvcove/replay/content.h"

#include <fmt/core.h>

#include <cstring>

#include "kvcove/base/random.h"

namespace kvcove::replay {
namespace {

constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ULL;

std::uint64_t SeedOf(std::uint64_t chain_hash, std::uint32_t version) {
  return Mix64(chain_hash ^ Mix64(version));
}

bool Matches(std::span<const std::byte> block, std::uint64_t seed) {
  std::uint64_t differs = 0;
  for (std::size_t at = 0; at < block.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, block.data() + at, 8);
    differs |= word ^ ((seed + at) * kOdd);
  }
  return differs == 0;
}

}  // namespace

std::vector<std::uint64_t> ChainHashes(const policy::Chain& blocks) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(blocks.size());
  std::uint64_t before = 0;
  for (const std::uint32_t block : blocks) {
    before = Mix64(before * kOdd + block + 1);
    hashes.push_back(before);
  }
  return hashes;
}

std::string BlockKey(std::uint64_t chain_hash) {
  return fmt::format("tp_rank:0@group:0@{:016x}{:016x}", chain_hash, Mix64(chain_hash));
}

void FillBlock(std::span<std::byte> block, std::uint64_t chain_hash, std::uint32_t version) {
  const std::uint64_t seed = SeedOf(chain_hash, version);
  for (std::size_t at = 0; at < block.size(); at += 8) {
    const std::uint64_t word = (seed + at) * kOdd;
    std::memcpy(block.data() + at, &word, 8);
  }
}

Verdict CheckBlock(std::span<const std::byte> block, std::uint64_t chain_hash,
                   std::uint32_t version) {
  if (Matches(block, SeedOf(chain_hash, version))) return Verdict::kRight;
  for (std::uint32_t older = 0; older < version; ++older) {
    if (Matches(block, SeedOf(chain_hash, older))) return Verdict::kStale;
  }
  return Verdict::kWrong;
}

}  // namespace kvcove::replay
