// SPDX-License-Identifier: Apache-2.0
// For tests: what an owner with layout version 2 hands out, the one before granules had a size.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace kvcove::segment::v2 {

inline constexpr std::uint64_t kPayloadBytes = 1 << 20;

// The header file of a segment of 1 MiB and 1,000 objects, as such an owner formats it. Its areas
// are empty, but for what says so.
inline std::vector<std::byte> Header() {
  constexpr std::uint64_t kWords[] = {
      0x31676573766b766b,   // magic
      (4096ULL << 32) | 2,  // slots, layout version
      1,
      2,           // segment id
      67'981'312,  // bytes of this file
      kPayloadBytes,
      99,         // hash seed
      4096,       // slots at
      36'864,     // ghosts at
      32'768,     // how many
      299'008,    // buckets at
      397,        // how many
      327'680,    // overflow buckets at
      461,        // how many
      360'448,    // records at
      4'226'304,  // how many units of 16 B
      0,          // lease deadline
      0,
      0,
      0,
      0,
      0,
      0,
      0,
      1,  // buckets in use
  };
  std::vector<std::byte> bytes(kWords[4]);
  std::memcpy(bytes.data(), kWords, sizeof(kWords));
  return bytes;
}

}  // namespace kvcove::segment::v2
