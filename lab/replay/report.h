// SPDX-License-Identifier: Apache-2.0
// The HTML report of a replay: one file, no script, no network.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/replay/replay.h"
#include "lab/replay/tiers.h"

namespace kvcove::lab {

struct ReportFacts {
  std::string title;
  std::uint32_t engines = 0;
  std::uint64_t own_blocks = 0;
  std::uint64_t shared_blocks = 0;
  std::uint64_t block_bytes = 0;
  std::string policy;
  double hit_ratio_own = 0;
  double hit_ratio_lru = 0;
  double hit_ratio_optimum = 0;
  std::optional<TierResult> tiers;  // with a disk
};

// Errors: kInvalid when the file cannot be written.
Status WriteReport(const std::string& path, const ReportFacts& facts, const ReplayResult& result,
                   const std::vector<Chain>& chains);

}  // namespace kvcove::lab
