// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEED replays one seed; KVCOVE_SIM_SEEDS sets how many new ones are run.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
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
  sum.prunes_proven += one.prunes_proven;
  sum.copies += one.copies;
  sum.owner_deaths += one.owner_deaths;
  sum.master_deaths += one.master_deaths;
  sum.pauses += one.pauses;
  sum.partitions += one.partitions;
  sum.rollbacks += one.rollbacks;
  sum.found_again += one.found_again;
  sum.events += one.events;
}

TEST(ClusterSimulationTest, KeepsItsPromisesUnderEveryFault) {
  const std::uint64_t base = FromEnvironment("KVCOVE_SIM_SEED", RandomU64() % 1'000'000'000);
  const std::uint64_t seeds =
      std::getenv("KVCOVE_SIM_SEED") != nullptr ? 1 : FromEnvironment("KVCOVE_SIM_SEEDS", 400);
  ClusterSimReport sum;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const ClusterSimReport report = SimulateCluster({.seed = base + i});
    ASSERT_EQ(report.violation, "") << "replay it with KVCOVE_SIM_SEED=" << base + i;
    Add(report, sum);
  }
  EXPECT_GT(sum.verified_reads, seeds * 100);
  fmt::print(
      "seeds {} to {}: {} verified reads, {} puts, {} stale ones refused, {} resets and {} "
      "removals proven, {} copies, {} owners and {} masters died, {} pauses, {} partitions, {} "
      "objects found again, {} events, 0 violations\n",
      base, base + seeds - 1, sum.verified_reads, sum.puts, sum.stale_puts, sum.resets_proven,
      sum.removals_proven, sum.copies, sum.owner_deaths, sum.master_deaths, sum.pauses,
      sum.partitions, sum.found_again, sum.events);
}

TEST(ClusterSimulationTest, TheSameSeedIsTheSameRun) {
  const ClusterSimReport a = SimulateCluster({.seed = 42});
  const ClusterSimReport b = SimulateCluster({.seed = 42});
  EXPECT_EQ(a.events, b.events);
  EXPECT_EQ(a.verified_reads, b.verified_reads);
  EXPECT_EQ(a.puts, b.puts);
}

// Clocks that stop are safe where an expired lease proves nothing.
TEST(ClusterSimulationTest, StoppedClocksAreSafeInStrictMode) {
  const std::uint64_t seeds = std::min<std::uint64_t>(40, FromEnvironment("KVCOVE_SIM_SEEDS", 300));
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const ClusterSimReport report = SimulateCluster(
        {.seed = seed, .stopped_clocks = true, .lost_facts = false, .check_availability = false});
    ASSERT_EQ(report.violation, "");
  }
}

TEST(ClusterSimulationTest, AResetStaysProvenWhenTheStoreIsRolledBackBehindAnOwnerThatMissedIt) {
  const std::uint64_t seeds = FromEnvironment("KVCOVE_SIM_SEEDS", 60);
  ClusterSimReport sum;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const ClusterSimReport report = SimulateCluster({.seed = seed, .rolls_back = true});
    ASSERT_EQ(report.violation, "");
    Add(report, sum);
  }
  EXPECT_GT(sum.rollbacks, seeds);
  fmt::print("{} rollbacks behind {} resets, {} verified reads, 0 violations\n", sum.rollbacks,
             sum.resets_proven, sum.verified_reads);
}

// Owners die and masters change while removals are open, too.
TEST(ClusterSimulationTest, KeepsItsPromisesWhileRemovalsByPatternAreOpen) {
  const std::uint64_t seeds = FromEnvironment("KVCOVE_SIM_SEEDS", 60);
  ClusterSimReport sum;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const ClusterSimReport report = SimulateCluster({.seed = seed, .walks = true});
    ASSERT_EQ(report.violation, "");
    Add(report, sum);
  }
  EXPECT_GT(sum.removals_proven, 0U);
}

TEST(ClusterSimulationTest, NothingIsFoundOrRegisteredUnderADeadVersion) {
  const std::uint64_t seeds = FromEnvironment("KVCOVE_SIM_SEEDS", 60);
  ClusterSimReport sum;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const ClusterSimReport report =
        SimulateCluster({.seed = seed, .lost_facts = false, .prunes = true});
    ASSERT_EQ(report.violation, "");
    Add(report, sum);
  }
  EXPECT_GT(sum.prunes_proven, seeds);
  fmt::print("{} prunes proven, {} verified reads, 0 violations\n", sum.prunes_proven,
             sum.verified_reads);
}

// ---- what must be noticed

// Tries seeds from `first` on. A rule whose absence few seeds show names one of these, to save
// time.
void MustFail(ClusterSimOptions options, const char* what, std::uint64_t first = 1) {
  // Under sanitizers a few seeds are run, and whether a rule is missed shows without them.
  if (FromEnvironment("KVCOVE_SIM_SEEDS", 300) < 50) GTEST_SKIP() << "few seeds are asked for";
  const std::uint64_t seeds = FromEnvironment("KVCOVE_SIM_MUTANT_SEEDS", 300);
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    options.seed = seed;
    const ClusterSimReport report = SimulateCluster(options);
    if (report.violation.empty()) continue;
    fmt::print("without {}: {} (seed {})\n", what, report.violation, seed);
    return;
  }
  FAIL() << seeds << " seeds without " << what << " and nothing was noticed";
}

OwnerRules Without(bool OwnerRules::* rule) {
  OwnerRules rules;
  rules.*rule = false;
  return rules;
}

TEST(ClusterSimulationTest, NoticesWhenGenerationsAreNotChecked) {
  MustFail({.check_availability = false, .rules = {.reader = {.generation = false}}},
           "the generation check");
}
TEST(ClusterSimulationTest, NoticesWhenLeasesAreNotChecked) {
  MustFail({.check_availability = false, .rules = Without(&OwnerRules::lease)}, "the lease check");
}
TEST(ClusterSimulationTest, NoticesWhenMemoryIsNotProtected) {
  MustFail({.check_availability = false, .rules = {.reader = {.second_look = false}}},
           "the readers' protection");
}
TEST(ClusterSimulationTest, NoticesWhenTheDeadlineIsPublishedFirst) {
  MustFail({.check_availability = false, .rules = Without(&OwnerRules::lease_last)},
           "generations and hidden slots before the deadline");
}
TEST(ClusterSimulationTest, NoticesWhenALateOwnerCallsAPutStale) {
  MustFail({.check_availability = false, .rules = Without(&OwnerRules::awaits)},
           "the wait for a generation that an owner does not know yet");
}
TEST(ClusterSimulationTest, NoticesWhenAKilledOwnerIsOverBeforeItsReadersAre) {
  MustFail({.check_availability = false, .rules = Without(&OwnerRules::lineage)},
           "the proof that nobody maps a killed owner's memory", /*first=*/215);
}
TEST(ClusterSimulationTest, NoticesWhenProofsDoNotWaitForOwners) {
  MustFail({.check_availability = false, .master = {.wait = false}},
           "the wait for owners that cannot be reached");
}
TEST(ClusterSimulationTest, NoticesWhenThereAreNoBarriers) {
  MustFail({.check_availability = false, .master = {.barriers = false}}, "barriers");
}
TEST(ClusterSimulationTest, NoticesWhenAStoreIsBelievedAtOnce) {
  MustFail({.rolls_back = true, .check_availability = false, .master = {.doubt = false}},
           "the wait for other members' hellos after a start");
}
TEST(ClusterSimulationTest, NoticesWhenACopyBringsBackWhatWasRemoved) {
  MustFail({.check_availability = false, .master = {.copies = false}}, "the check of copies");
}
TEST(ClusterSimulationTest, NoticesWhenAGenerationIsNotUsedForEver) {
  MustFail({.check_availability = false, .master = {.generations = {.used_for_ever = false}}},
           "\"used for ever\"");
}
TEST(ClusterSimulationTest, NoticesWhenClocksStop) {
  MustFail({.stopped_clocks = true,
            .lost_facts = false,
            .check_availability = false,
            .force_lenient = true},
           "strict mode");
}

}  // namespace
}  // namespace kvcove::sim
