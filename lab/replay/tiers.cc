// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/tiers.h"

#include <algorithm>

namespace kvcove::lab {

TierResult TiersOf(const PoolStat& stat, const ReplayResult& result, std::uint32_t parts,
                   std::uint64_t block_bytes) {
  TierResult tiers;
  const std::uint64_t record =
      stat.disk_objects == 0 ? block_bytes / parts : stat.disk_bytes / stat.disk_objects;
  tiers.disk_blocks = stat.disk_capacity_bytes / std::max<std::uint64_t>(record, 1) / parts;
  tiers.blocks = result.blocks;
  // What an engine has in its own memory is not asked of the pool.
  tiers.disk_hits = std::min(stat.disk_hits / parts, result.pool_hits);
  tiers.memory_hits = result.own_hits + result.pool_hits - tiers.disk_hits;
  tiers.written = stat.disk_puts;
  tiers.refused = stat.disk_not_worth + stat.disk_over_rate;
  tiers.dropped = stat.disk_dropped_full + stat.disk_dropped_other;
  tiers.evicted = tiers.written + stat.disk_kept + tiers.refused + tiers.dropped;
  tiers.put_bytes = stat.disk_put_bytes;
  tiers.written_bytes = stat.disk_written_bytes;
  return tiers;
}

Status SimulateTiers(const std::vector<Chain>& chains, const std::string& policy,
                     std::uint64_t memory_blocks, bool admitted, TierResult& result) {
  KVCOVE_ASSIGN(const TwoTierCount count,
                SimulateTwoTiers({.memory_policy = policy,
                                  .disk_policy = policy,
                                  .descent = admitted ? Descent::kAdmitted : Descent::kVictims,
                                  .zones = true,
                                  .moves = true,
                                  .memory_blocks = memory_blocks,
                                  .disk_blocks = result.disk_blocks},
                                 chains));
  result.simulated = count.together.ratio();
  result.simulated_written = count.evicted_ratio();
  return {};
}

}  // namespace kvcove::lab
