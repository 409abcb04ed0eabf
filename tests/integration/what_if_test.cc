// SPDX-License-Identifier: Apache-2.0
// The estimates of policy::WhatIf and policy::WhatIfDisk against the simulators of `kvcove policy`.
#include "kvcove/policy/what_if.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "kvcove/policy/what_if_disk.h"
#include "lab/policy/simulate.h"
#include "lab/policy/two_tiers.h"
#include "lab/policy/what_if_fixture.h"
#include "lab/policy/workload.h"

namespace kvcove::lab {
namespace {

using policy::kWhatIfSizes;
using policy::WhatIf;
using policy::WhatIfCounts;
using policy::WhatIfDisk;

double Percent(std::uint64_t hits, std::uint64_t asked) {
  return 100 * static_cast<double>(hits) / static_cast<double>(asked);
}

struct SimulatedCase {
  std::string policy = "default";
  std::uint64_t capacity = 0;
  std::size_t most_sampled = 1'000'000;
  double points = 2;  // that the estimate may be off
};

void ExpectAsSimulated(std::span<const Chain> requests, const SimulatedCase& one) {
  const auto what_if = *WhatIf::Make(
      {.policy = one.policy, .capacity_bytes = one.capacity, .most_sampled = one.most_sampled});
  const WhatIfCounts counts = Estimate(*what_if, requests);
  for (std::size_t i = 0; i < kWhatIfSizes.size(); ++i) {
    const auto blocks =
        static_cast<std::uint64_t>(kWhatIfSizes[i].times * static_cast<double>(one.capacity));
    const HitCount simulated = *Simulate(one.policy, requests, blocks);
    EXPECT_EQ(counts.asked, simulated.blocks);
    EXPECT_NEAR(Percent(counts.hits[i], counts.asked), 100 * simulated.ratio(), one.points)
        << fmt::format("{}, {} blocks, {} of them, 1 in {} sampled", one.policy, one.capacity,
                       kWhatIfSizes[i].name, 1U << what_if->shift());
  }
}

TEST(WhatIfTest, ACacheOfFewObjectsIsSimulatedWhole) {
  ExpectAsSimulated(ConversationTrace(), {.capacity = 4000, .points = 0.1});
  ExpectAsSimulated(*MakeWorkload("sessions", {}, 1),
                    {.policy = "lru", .capacity = 4000, .points = 0.5});
}

TEST(WhatIfTest, ASampleIsWithinTwoPointsOnTheTraceAndTwoWorkloads) {
  ExpectAsSimulated(ConversationTrace(), {.capacity = 16'000, .most_sampled = 32'768});
  for (const std::string_view name : {"agents", "sessions"}) {
    ExpectAsSimulated(*MakeWorkload(name, {}, 1), {.capacity = 16'000, .most_sampled = 32'768});
  }
}

void ExpectDiskAsSimulated(std::span<const Chain> requests, std::size_t most_sampled) {
  constexpr std::uint64_t kMemory = 2000;
  constexpr std::uint64_t kDisk = 20'000;
  WhatIfDisk what_if({.capacity_bytes = kDisk, .most_sampled = most_sampled});
  const WhatIfCounts counts = EstimateDisk(what_if, requests, kMemory);
  for (std::size_t i = 0; i < kWhatIfSizes.size(); ++i) {
    const auto blocks =
        static_cast<std::uint64_t>(kWhatIfSizes[i].times * static_cast<double>(kDisk));
    const TwoTierCount simulated = *SimulateTwoTiers({.descent = Descent::kVictims,
                                                      .zones = true,
                                                      .memory_blocks = kMemory,
                                                      .disk_blocks = blocks},
                                                     requests);
    EXPECT_NEAR(Percent(counts.hits[i], counts.asked), 100 * simulated.together.ratio(), 2)
        << fmt::format("{} of the disk, 1 in {} sampled", kWhatIfSizes[i].name,
                       1U << what_if.shift());
  }
}

TEST(WhatIfDiskTest, IsWithinTwoPointsOnTheTraceAndTwoWorkloads) {
  ExpectDiskAsSimulated(ConversationTrace(), 32'768);
  for (const std::string_view name : {"agents", "sessions"}) {
    ExpectDiskAsSimulated(*MakeWorkload(name, {}, 1), 32'768);
  }
}

}  // namespace
}  // namespace kvcove::lab
