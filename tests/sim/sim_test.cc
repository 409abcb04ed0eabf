// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEED replays one seed; KVCOVE_SIM_SEEDS sets how many new ones are run.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kvcove/base/random.h"
#include "simulation.h"

namespace kvcove::sim {
namespace {

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SimulationTest, KeepsItsPromisesInEveryOrder) {
  const std::uint64_t base = FromEnvironment("KVCOVE_SIM_SEED", RandomU64() % 1'000'000'000);
  const std::uint64_t seeds =
      std::getenv("KVCOVE_SIM_SEED") != nullptr ? 1 : FromEnvironment("KVCOVE_SIM_SEEDS", 100);
  SimReport sum;
  for (std::uint64_t i = 0; i < seeds; ++i) {
    const SimReport report = Simulate({.seed = base + i});
    ASSERT_EQ(report.violation, "") << "replay it with KVCOVE_SIM_SEED=" << base + i;
    sum.verified_reads += report.verified_reads;
    sum.verified_loans += report.verified_loans;
    sum.voided_loans += report.voided_loans;
    sum.commits += report.commits;
    sum.stale_commits += report.stale_commits;
    sum.resets += report.resets;
    sum.deaths += report.deaths;
    sum.evictions += report.evictions;
  }
  fmt::print(
      "seeds {} to {}: {} verified reads, {} of them loans, {} loans voided, {} commits, {} stale "
      "ones refused, {} resets, {} deaths, {} evictions, 0 violations\n",
      base, base + seeds - 1, sum.verified_reads, sum.verified_loans, sum.voided_loans, sum.commits,
      sum.stale_commits, sum.resets, sum.deaths, sum.evictions);
  EXPECT_GT(sum.verified_reads, seeds * 100);
  EXPECT_GT(sum.verified_loans, seeds * 10);
  EXPECT_GT(sum.voided_loans, 0U);
  EXPECT_GT(sum.stale_commits, 0U);
  EXPECT_GT(sum.evictions, 0U);
}

TEST(SimulationTest, TheSameSeedIsTheSameRun) {
  const SimReport a = Simulate({.seed = 42});
  const SimReport b = Simulate({.seed = 42});
  EXPECT_EQ(a.verified_reads, b.verified_reads);
  EXPECT_EQ(a.commits, b.commits);
  EXPECT_EQ(a.evictions, b.evictions);
}

// With a check switched off the simulation must fail, or it could not have found its absence.
void MustFail(const SimRules& rules, const char* what) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const SimReport report = Simulate({.seed = seed, .rules = rules});
    if (report.violation.empty()) continue;
    fmt::print("without {}: {}\n", what, report.violation);
    return;
  }
  FAIL() << "300 seeds without " << what << " and nothing was noticed";
}

TEST(SimulationTest, NoticesWhenGenerationsAreNotChecked) {
  MustFail({.reader = {.generation = false}}, "the generation check");
}
TEST(SimulationTest, NoticesWhenReadersDoNotLookTwice) {
  MustFail({.reader = {.second_look = false}}, "the reader's second look");
}
TEST(SimulationTest, NoticesWhenLoansAreNotRevalidated) {
  MustFail({.reader = {.revalidation = false}}, "the revalidation of loans");
}
TEST(SimulationTest, NoticesWhenReservedMemoryIsReused) {
  MustFail({.reservation = false}, "the reservation rule");
}

}  // namespace
}  // namespace kvcove::sim
