// SPDX-License-Identifier: Apache-2.0
// What a replay over memory and a disk has found, by tier, and what the simulation of the same two
// tiers finds.
#pragma once

#include <cstdint>
#include <string>

#include "kvcove/model/stats.h"
#include "lab/policy/two_tiers.h"
#include "lab/replay/replay.h"

namespace kvcove::lab {

struct TierResult {
  std::uint64_t disk_blocks = 0;  // that have room on the disk, by what a block takes there
  std::uint64_t disk_hits = 0;    // blocks: of the pool's hits, those that came up from the disk
  std::uint64_t memory_hits = 0;  // the others
  std::uint64_t blocks = 0;       // asked for
  std::uint64_t evicted = 0;      // objects that memory gave up
  std::uint64_t written = 0;      // of them
  std::uint64_t refused = 0;      // not worth it, or over the rate
  std::uint64_t dropped = 0;      // the queue or the shared table was full, or an error
  std::uint64_t put_bytes = 0;
  std::uint64_t written_bytes = 0;
  double simulated = 0;          // hits of both tiers, without caches of the engines' own
  double simulated_written = 0;  // of what memory gave up

  double memory_ratio() const { return HitCount{memory_hits, blocks}.ratio(); }
  double disk_ratio() const { return HitCount{disk_hits, blocks}.ratio(); }
  double written_ratio() const { return HitCount{written, evicted}.ratio(); }
  // Bytes that the device was given, for each byte of values.
  double write_amplification() const { return HitCount{written_bytes, put_bytes}.ratio(); }
};

// `stat`: of the pool behind the replay. `parts`: objects a block.
TierResult TiersOf(const PoolStat& stat, const ReplayResult& result, std::uint32_t parts,
                   std::uint64_t block_bytes);
// Fills in what a simulation of these tiers finds; `admitted`: the disk takes what is worth it.
// Errors: kInvalid.
Status SimulateTiers(const std::vector<Chain>& chains, const std::string& policy,
                     std::uint64_t memory_blocks, bool admitted, TierResult& result);

}  // namespace kvcove::lab
