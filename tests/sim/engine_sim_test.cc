// SPDX-License-Identifier: Apache-2.0
// KVCOVE_SIM_SEED replays one seed; KVCOVE_SIM_LOADS sets how many loads a run has.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine_simulation.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"

namespace kvcove::sim {
namespace {

using connector::VersionSource;

std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class EngineSimTest : public testing::TestWithParam<VersionSource> {};

TEST_P(EngineSimTest, NoEngineLoadsWhatOtherWeightsComputed) {
  SetLogLevel(LogLevel::kOff);
  const std::uint64_t seed = FromEnvironment("KVCOVE_SIM_SEED", RandomU64() % 1'000'000'000);
  // Without versions engines share little, as each reset closes the others until theirs: a load
  // takes sixty requests.
  const std::uint64_t loads =
      FromEnvironment("KVCOVE_SIM_LOADS", 100'000) / (GetParam() == VersionSource::kNone ? 25 : 1);
  const EngineSimReport report =
      SimulateEngines({.seed = seed, .loads = loads, .versions = GetParam()});
  fmt::print(
      "seed {}: {} loads verified, {} requests finished, {} aborted, {} preempted, {} blocks "
      "failed, {} loads void, {} updates, {} resets unproven, {} engines and {} owners died, {} "
      "messages lost, {} puts late, {} stale ones refused, {} evictions\n",
      seed, report.loads, report.finished, report.aborted, report.preempted, report.failed_blocks,
      report.void_loads, report.updates, report.resets_unproven, report.engine_deaths,
      report.owner_deaths, report.lost_messages, report.late_puts, report.stale_puts,
      report.evictions);
  ASSERT_EQ(report.violation, "") << "replay it with KVCOVE_SIM_SEED=" << seed;
  EXPECT_GE(report.loads, loads);
  if (std::getenv("KVCOVE_SIM_LOADS") != nullptr) return;  // a short one need not meet everything
  EXPECT_GT(report.updates, 0U);
  EXPECT_GT(report.aborted, 0U);
  EXPECT_GT(report.preempted, 0U);
  EXPECT_GT(report.failed_blocks, 0U);
}

std::string NameOf(const testing::TestParamInfo<VersionSource>& info) {
  static constexpr const char* kNames[] = {"Fingerprint", "Engine", "Salt", "None"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Sources, EngineSimTest,
                         testing::Values(VersionSource::kFingerprint, VersionSource::kEngine,
                                         VersionSource::kSalt, VersionSource::kNone),
                         NameOf);

// With a check switched off the simulation must fail, or it could not have found its absence.
void MustFail(const EngineChecks& checks, VersionSource versions, const char* what) {
  SetLogLevel(LogLevel::kOff);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const EngineSimReport report = SimulateEngines(
        {.seed = seed, .engines = 6, .loads = 20'000, .versions = versions, .checks = checks});
    if (report.violation.empty()) continue;
    fmt::print("without {}: {}\n", what, report.violation);
    return;
  }
  FAIL() << "nobody noticed that " << what << " is missing";
}

TEST(EngineSimTest, NoticesWhenThePoolDoesNotCompareGenerations) {
  MustFail({.generation = false}, VersionSource::kNone, "generations");
}
TEST(EngineSimTest, NoticesWhenRanksDoNotTellThatTheirWeightsChange) {
  MustFail({.worker_gate = false}, VersionSource::kFingerprint, "the ranks' word");
}

TEST(EngineSimTest, WhatIsComputedOnOwnOldBlocksStaysOutOfThePool) {
  SetLogLevel(LogLevel::kOff);
  const std::uint64_t loads = FromEnvironment("KVCOVE_SIM_LOADS", 100'000) / 5;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const EngineSimReport report = SimulateEngines(
        {.seed = seed, .engines = 6, .loads = loads, .checks = {.own_reset = false}});
    ASSERT_EQ(report.violation, "");
  }
}

}  // namespace
}  // namespace kvcove::sim
