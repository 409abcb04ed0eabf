// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEED replays one seed; KVCOVE_SIM_SEEDS sets how many new ones are run.
#include <fmt/core.h>
#include <gtest/gtest.h>

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

class TierSimulationTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
};

TEST_F(TierSimulationTest, KeepsItsPromisesInEveryOrder) {
  const std::uint64_t base = FromEnvironment("KVCOVE_SIM_SEED", RandomU64() % 1'000'000'000);
  const std::uint64_t seeds =
      std::getenv("KVCOVE_SIM_SEED") != nullptr ? 1 : FromEnvironment("KVCOVE_SIM_SEEDS", 150);
  TierReport sum;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const TierReport report = SimulateTiers({.seed = base + i});
    ASSERT_EQ(report.violation, "") << "replay it with KVCOVE_SIM_SEED=" << base + i;
    ASSERT_FALSE(HasFailure()) << "replay it with KVCOVE_SIM_SEED=" << base + i;
    sum.reads += report.reads;
    sum.disk_reads += report.disk_reads;
    sum.commits += report.commits;
    sum.stale_commits += report.stale_commits;
    sum.removals += report.removals;
    sum.resets += report.resets;
    sum.restarts += report.restarts;
    sum.asides += report.asides;
    sum.reused += report.reused;
    sum.damaged += report.damaged;
  }
  fmt::print(
      "seeds {} to {}: {} verified reads of memory, {} of the disk, {} commits, {} stale ones "
      "refused, {} removals, {} resets, {} restarts, {} times set aside ({} used again with what "
      "was there), {} damaged records noticed, 0 violations\n",
      base, base + seeds - 1, sum.reads, sum.disk_reads, sum.commits, sum.stale_commits,
      sum.removals, sum.resets, sum.restarts, sum.asides, sum.reused, sum.damaged);
  if (seeds < 10) return;
  EXPECT_GT(sum.disk_reads, seeds * 10);
  EXPECT_GT(sum.stale_commits, 0U);
  if (seeds < 60) return;  // rarer
  EXPECT_GT(sum.reused, 0U);
  EXPECT_GT(sum.damaged, 0U);
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

}  // namespace
}  // namespace kvcove::sim
