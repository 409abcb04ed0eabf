// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEEDS=N runs N seeds, and prints what happened in them; KVCOVE_SIM_FIRST is the first.
#include "tests/sim/shards_sim.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace kvcove::master {
namespace {

constexpr int kSteps = 8000;  // 16 s

std::uint64_t Number(const char* name, std::uint64_t otherwise) {
  const char* const number = std::getenv(name);
  return number == nullptr ? otherwise : std::strtoull(number, nullptr, 10);
}
std::uint64_t Seeds(std::uint64_t otherwise) { return Number("KVCOVE_SIM_SEEDS", otherwise); }

std::string First(const ShardsSim& sim) { return sim.wrong().empty() ? "" : sim.wrong().front(); }

TEST(ShardsSimTest, WhateverHappensAKeyHasOneValueAndWhatIsHeldIsFound) {
  ShardsSim::Counts all;
  int failed = 0;
  const std::uint64_t first = Number("KVCOVE_SIM_FIRST", 1);
  for (std::uint64_t seed = first; seed < first + Seeds(6); ++seed) {
    ShardsSim sim(seed);
    sim.Run(kSteps);
    sim.Settle();
    EXPECT_EQ(First(sim), "") << "seed " << seed;
    if (!sim.wrong().empty() && ++failed == 5) return;
    const ShardsSim::Counts& counts = sim.counts();
    all.puts += counts.puts;
    all.removals += counts.removals;
    all.reads += counts.reads;
    all.overtaken += counts.overtaken;
    all.returns += counts.returns;
    all.lost += counts.lost;
    all.moves += counts.moves;
    all.moved_back += counts.moved_back;
    all.held += counts.held;
  }
  if (std::getenv("KVCOVE_SIM_SEEDS") != nullptr) {
    fmt::print(
        "puts {} removals {} reads {} overtaken {} returns {} slices lost {} maps {} "
        "slices back {} held {}\n",
        all.puts, all.removals, all.reads, all.overtaken, all.returns, all.lost, all.moves,
        all.moved_back, all.held);
  }
  if (Seeds(6) < 6) return;
  EXPECT_GT(all.puts, 1000);
  EXPECT_GT(all.removals, 100);
  EXPECT_GT(all.reads, 1000);
  EXPECT_GT(all.overtaken, 5);
  EXPECT_GT(all.returns, 20);
  EXPECT_GT(all.lost, 100);
  EXPECT_GT(all.moves, 50);
  EXPECT_GT(all.moved_back, 100);
  EXPECT_GT(all.held, 100U);
}

// Each rule is needed: without it the oracle finds something within some seeds.
void ExpectNoticed(const char* name, const ShardRules& rules) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    ShardsSim sim(seed, rules);
    sim.Run(kSteps);
    sim.Settle();
    if (sim.wrong().empty()) continue;
    if (std::getenv("KVCOVE_SIM_SEEDS") != nullptr) {
      fmt::print("{}: seed {}: {}\n", name, seed, First(sim).substr(0, First(sim).find('\n')));
    }
    return;
  }
  ADD_FAILURE() << name << ": nobody notices";
}

TEST(ShardsSimTest, AShardThatListsBehindItsLeaseIsNoticed) {
  ExpectNoticed("lease", {.lease = false});
}
TEST(ShardsSimTest, AGiverThatGoesOnListingIsNoticed) {
  ExpectNoticed("freeze", {.freeze = false});
}
TEST(ShardsSimTest, AShardThatAcknowledgesARemovalTooEarlyIsNoticed) {
  ExpectNoticed("removals", {.removals = false});
}
TEST(ShardsSimTest, AShardThatDecidesAnOvertakingItselfIsNoticed) {
  ExpectNoticed("ask", {.ask = false});
}
TEST(ShardsSimTest, AnOwnerThatTellsALostShardsPartToNobodyIsNoticed) {
  ExpectNoticed("retell", {.retell = false});
}
TEST(ShardsSimTest, AnOwnerThatKeepsWhatGaveWayAtALostShardIsNoticed) {
  ExpectNoticed("drop_away", {.drop_away = false});
}

}  // namespace
}  // namespace kvcove::master
