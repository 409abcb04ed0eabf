// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEED replays one seed; KVCOVE_SIM_SEEDS sets how many new ones are run.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kvcove/base/random.h"
#include "tests/sim/cluster_simulation.h"

namespace kvcove::sim {
namespace {

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void Add(const ClusterSimReport& one, ClusterSimReport& sum) {
  sum.verified_reads += one.verified_reads;
  sum.puts += one.puts;
  sum.stale_puts += one.stale_puts;
  sum.resets_proven += one.resets_proven;
  sum.removals_proven += one.removals_proven;
  sum.copies += one.copies;
  sum.owner_deaths += one.owner_deaths;
  sum.master_deaths += one.master_deaths;
  sum.pauses += one.pauses;
  sum.partitions += one.partitions;
  sum.found_again += one.found_again;
  sum.events += one.events;
}

TEST(ClusterSimulationTest, KeepsItsPromisesUnderEveryFault) {
  const std::uint64_t base = FromEnvironment("KVCOVE_SIM_SEED", RandomU64() % 1'000'000'000);
  const std::uint64_t seeds =
      std::getenv("KVCOVE_SIM_SEED") != nullptr ? 1 : FromEnvironment("KVCOVE_SIM_SEEDS", 300);
  ClusterSimReport sum;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const ClusterSimReport report = SimulateCluster({.seed = base + i});
    ASSERT_EQ(report.violation, "") << "replay it with KVCOVE_SIM_SEED=" << base + i;
    Add(report, sum);
  }
  fmt::print(
      "seeds {} to {}: {} verified reads, {} puts, {} stale ones refused, {} resets and {} "
      "removals proven, {} copies, {} owners and {} masters died, {} pauses, {} partitions, {} "
      "objects found again, {} events, 0 violations\n",
      base, base + seeds - 1, sum.verified_reads, sum.puts, sum.stale_puts, sum.resets_proven,
      sum.removals_proven, sum.copies, sum.owner_deaths, sum.master_deaths, sum.pauses,
      sum.partitions, sum.found_again, sum.events);
}

}  // namespace
}  // namespace kvcove::sim
