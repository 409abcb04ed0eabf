// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEED replays one seed; KVCOVE_SIM_SEEDS sets how many new ones are run, else
// KVCOVE_SIM_OPERATIONS how many operations.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "tests/sim/tier_simulation.h"

namespace kvcove::sim {
namespace {

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void Add(const TierReport& one, TierReport& sum) {
  sum.reads += one.reads;
  sum.disk_reads += one.disk_reads;
  sum.commits += one.commits;
  sum.stale_commits += one.stale_commits;
  sum.removals += one.removals;
  sum.resets += one.resets;
  sum.restarts += one.restarts;
  sum.asides += one.asides;
  sum.reused += one.reused;
  sum.damaged += one.damaged;
  sum.copies += one.copies;
  sum.lies += one.lies;
}

class TierSimulationTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    // Each restart makes images of the disk: half of the time would go into pages that are given
    // back and taken again.
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
  }
};

// A million operations take a minute of one core.
TEST_F(TierSimulationTest, KeepsItsPromisesInEveryOrder) {
  constexpr std::uint64_t kSaidEach = 200'000;
  const std::uint64_t base = FromEnvironment("KVCOVE_SIM_SEED", RandomU64() % 1'000'000'000);
  const std::uint64_t most_seeds = std::getenv("KVCOVE_SIM_SEED") != nullptr
                                       ? 1
                                       : FromEnvironment("KVCOVE_SIM_SEEDS", ~std::uint64_t{0});
  const std::uint64_t operations = FromEnvironment("KVCOVE_SIM_OPERATIONS", 1'000'000);
  const bool counts_seeds = most_seeds != ~std::uint64_t{0};
  TierReport sum;
  std::uint64_t seeds = 0;
  for (std::uint64_t said = kSaidEach;
       counts_seeds ? seeds < most_seeds : sum.Operations() < operations; ++seeds) {
    const TierReport report = SimulateTiers({.seed = base + seeds});
    ASSERT_EQ(report.violation, "") << "replay it with KVCOVE_SIM_SEED=" << base + seeds;
    ASSERT_FALSE(HasFailure()) << "replay it with KVCOVE_SIM_SEED=" << base + seeds;
    Add(report, sum);
    if (sum.Operations() < said) continue;
    fmt::print("{} operations\n", sum.Operations());
    std::fflush(stdout);  // a test that says nothing for long is taken for one that hangs
    said += kSaidEach;
  }
  fmt::print(
      "seeds {} to {}: {} operations: {} verified reads of memory, {} of the disk, {} commits, {} "
      "stale ones refused, {} removals, {} resets, {} restarts, {} times set aside ({} used again "
      "with what was there); {} damaged records and {} copies put back noticed, {} losses of power "
      "after a lie, 0 violations\n",
      base, base + seeds - 1, sum.Operations(), sum.reads, sum.disk_reads, sum.commits,
      sum.stale_commits, sum.removals, sum.resets, sum.restarts, sum.asides, sum.reused,
      sum.damaged, sum.copies, sum.lies);
  if (seeds < 10) return;
  EXPECT_GT(sum.disk_reads, seeds * 10);
  EXPECT_GT(sum.stale_commits, 0U);
  if (seeds < 100) return;  // rarer
  EXPECT_GT(sum.reused, 0U);
  EXPECT_GT(sum.damaged, 0U);
  EXPECT_GT(sum.copies, 0U);
  EXPECT_GT(sum.lies, 0U);
}

TEST_F(TierSimulationTest, TheSameSeedIsTheSameRun) {
  const TierReport a = SimulateTiers({.seed = 42});
  const TierReport b = SimulateTiers({.seed = 42});
  EXPECT_EQ(a.reads, b.reads);
  EXPECT_EQ(a.disk_reads, b.disk_reads);
  EXPECT_EQ(a.commits, b.commits);
}

// With a rule switched off the simulation must fail, or it could not have found its absence.
void MustFail(const TierRules& rules, const char* what) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const TierReport report = SimulateTiers({.seed = seed, .rules = rules});
    if (report.violation.empty()) continue;
    fmt::print("without {}: {}\n", what, report.violation);
    return;
  }
  FAIL() << "300 seeds without " << what << " and nothing was noticed";
}

TEST_F(TierSimulationTest, NoticesWhenARestartForgetsAReset) {
  MustFail({.generations = false}, "the current generations");
}
TEST_F(TierSimulationTest, NoticesWhenTheDiskDoesNotHearOfRemovals) {
  MustFail({.removals = false}, "the disk's tombstones");
}
TEST_F(TierSimulationTest, NoticesWhenARestartUsesADiskThatMissedARemoval) {
  MustFail({.note = false}, "the note of the known disk");
}
TEST_F(TierSimulationTest, NoticesWhenARestartUsesAnEarlierCopyOfTheDisk) {
  MustFail({.openings = false}, "the number of the last opening");
}

}  // namespace
}  // namespace kvcove::sim
