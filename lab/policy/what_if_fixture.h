// SPDX-License-Identifier: Apache-2.0
// Reports requests to policy::WhatIf and policy::WhatIfDisk as an owner does, for their tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/policy/what_if_disk.h"
#include "lab/policy/simulate.h"
#include "lab/replay/trace.h"

namespace kvcove::lab {

inline const std::vector<Chain>& ConversationTrace() {
  static const std::vector<Chain> chains = ChainsOf(
      ReadTrace(std::string(KVCOVE_SOURCE_DIR) + "/traces/conversation_trace.jsonl").value());
  return chains;
}

inline std::uint32_t SamplingKey(std::uint32_t block) {
  const auto key = static_cast<std::uint32_t>(Mix64(block) >> 16);
  return key == 0 ? 1 : key;
}

// Reports these requests, whose blocks have one byte, and returns the estimate.
inline policy::WhatIfCounts Estimate(policy::WhatIf& what_if, std::span<const Chain> requests) {
  std::vector<policy::Access> accesses;
  for (const Chain& chain : requests) {
    accesses.clear();
    std::uint32_t above = 0;
    for (const std::uint32_t block : chain) {
      const std::uint32_t key = SamplingKey(block);
      if (!policy::WhatIf::Sampled(key, what_if.shift())) continue;
      accesses.push_back({.key = key, .parent = above, .bytes = 1});
      above = key;
    }
    if (above != 0) accesses.push_back({.key = above, .kind = policy::Access::Kind::kRequestEnd});
    what_if.Apply(accesses, chain.size());
  }
  return what_if.Read();
}

// Drives memory of so many blocks as an owner does, and returns the estimate.
inline policy::WhatIfCounts EstimateDisk(policy::WhatIfDisk& what_if,
                                         std::span<const Chain> requests,
                                         std::uint64_t memory_blocks) {
  PolicyBlocks memory(*MakeSimulatedPolicy("default", memory_blocks));
  std::vector<policy::Access> accesses;
  const auto note = [&](std::uint32_t block, policy::Access::Kind kind) {
    if (policy::WhatIf::Sampled(SamplingKey(block), what_if.shift())) {
      accesses.push_back({.key = SamplingKey(block), .bytes = 1, .kind = kind});
    }
  };
  for (const Chain& chain : requests) {
    accesses.clear();
    std::uint32_t parent = PolicyBlocks::kNoBlock;
    for (const std::uint32_t block : chain) {
      if (memory.Has(block)) {
        memory.Hit(block);
        note(block, policy::Access::Kind::kRead);
      } else {
        note(block, policy::Access::Kind::kStored);
        if (memory.size() >= memory_blocks) {
          const std::uint32_t victim = memory.Victim([](std::uint32_t) { return true; });
          memory.Evict(victim);
          note(victim, policy::Access::Kind::kWentDown);
        }
        memory.Put(block, parent);
      }
      parent = block;
    }
    memory.EndRequest(chain.back(), {});
    what_if.Apply(accesses, chain.size(), /*least_shift=*/0);
  }
  return what_if.Read();
}

}  // namespace kvcove::lab
