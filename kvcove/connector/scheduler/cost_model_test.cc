// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace kvcove::connector {
namespace {

constexpr std::int64_t kNow = 1'000'000'000'000;
constexpr std::uint64_t kStride = 100;

std::array<std::uint64_t, kTiers> Bytes(std::uint64_t memory, std::uint64_t disk = 0) {
  return {0, memory, 0, disk};
}

// A token takes 1,000 ns to compute.
CostModel Engine(double context_ns = 0) {
  CostModel model;
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t tokens = 500 + 50 * i;
    const double context = static_cast<double>(tokens) * 2000 * (i % 5);
    const double ns = static_cast<double>(tokens) * 1000 + context * context_ns;
    model.AddStep(tokens, context, std::llround(ns));
  }
  return model;
}

std::vector<Tier> Strides(std::size_t memory, std::size_t disk = 0) {
  std::vector<Tier> strides(memory, Tier::kMemory);
  strides.insert(strides.end(), disk, Tier::kDisk);
  return strides;
}

std::size_t Worth(const CostModel& model, const std::vector<Tier>& strides, std::uint64_t from = 0,
                  bool whole = false, std::int64_t now = kNow) {
  return model.Worth(from, kStride, strides, whole, now);
}

TEST(CostModelTest, LoadsEverythingWhileNothingIsMeasured) {
  CostModel nothing;
  EXPECT_EQ(Worth(nothing, Strides(7)), 7U);
  nothing.AddLoad(1000, Bytes(1), 1'000'000'000, kNow);
  EXPECT_EQ(Worth(nothing, Strides(7)), 7U) << "what computing costs is not known";
  EXPECT_EQ(Worth(Engine(), Strides(7)), 7U) << "what loading costs is not known";
  EXPECT_EQ(nothing.costs(kNow).token_ns, 0U);
  EXPECT_EQ(Engine().costs(kNow).tier_ns, (std::array<std::uint64_t, kTiers>{}));
}

TEST(CostModelTest, RefusesWhatIsSlowerToLoadThanToCompute) {
  CostModel fast = Engine();
  fast.AddLoad(1000, Bytes(8), 500'000, kNow);
  EXPECT_EQ(Worth(fast, Strides(7)), 7U);
  CostModel slow = Engine();
  slow.AddLoad(1000, Bytes(8), 3'000'000, kNow);
  EXPECT_EQ(Worth(slow, Strides(7)), 0U);
  CostModel equal = Engine();
  equal.AddLoad(1000, Bytes(8), 1'050'000, kNow);
  EXPECT_EQ(Worth(equal, Strides(7)), 7U) << "a load leaves the engine to others";
}

TEST(CostModelTest, StopsWhereComputingBecomesFaster) {
  CostModel model = Engine();
  model.AddLoad(1000, Bytes(8), 100'000, kNow);
  model.AddLoad(1000, Bytes(0, 8), 5'000'000, kNow);
  EXPECT_EQ(Worth(model, Strides(4, 3)), 4U);
  EXPECT_EQ(Worth(model, Strides(0, 3)), 0U);
  // Behind a stride of the disk enough of the memory may follow.
  std::vector<Tier> strides = Strides(2, 1);
  strides.insert(strides.end(), 9, Tier::kMemory);
  EXPECT_EQ(Worth(model, strides), 12U);
  EXPECT_EQ(Worth(model, Strides(4, 3), 0, /*whole=*/true), 0U);
}

TEST(CostModelTest, AShortPrefixIsNotWorthTheWait) {
  CostModel model = Engine();
  model.AddLoad(1000, Bytes(8), 100'000, kNow);
  model.AddWait(40'000'000);
  model.AddWait(400'000);  // the others waited for other requests
  EXPECT_EQ(Worth(model, Strides(3)), 0U);
  EXPECT_EQ(Worth(model, Strides(8)), 8U);
  EXPECT_EQ(model.costs(kNow).wait_ns, 400'000U);
  for (int i = 0; i < 40; ++i) model.AddWait(900'000);
  EXPECT_EQ(Worth(model, Strides(8)), 0U) << "the old ones are forgotten";
}

TEST(CostModelTest, ComputingBehindALongContextCostsMore) {
  CostModel model = Engine(/*context_ns=*/0.1);
  const CostModel::Costs costs = model.costs(kNow);
  EXPECT_NEAR(static_cast<double>(costs.token_ns), 1000, 20);
  EXPECT_NEAR(static_cast<double>(costs.context_ns), 100, 5);
  model.AddLoad(1000, Bytes(8), 2'500'000, kNow);
  EXPECT_EQ(Worth(model, Strides(5)), 0U);
  EXPECT_EQ(Worth(model, Strides(5), /*from=*/50'000), 5U);
}

TEST(CostModelTest, ShortStepsAndClocksThatStandStillSayNothing) {
  CostModel model;
  model.AddStep(8, 0, 30'000'000);  // decodes
  model.AddStep(800, 0, 0);
  model.AddLoad(1000, Bytes(8), 0, kNow);
  EXPECT_EQ(model.costs(kNow), CostModel::Costs{});
}

TEST(CostModelTest, AMixedLoadTellsWhatItsSlowestTierCosts) {
  CostModel model = Engine();
  model.AddLoad(1000, Bytes(8), 100'000, kNow);
  model.AddLoad(1000, Bytes(4, 4), 1'050'000, kNow);
  EXPECT_EQ(model.costs(kNow).tier_ns[static_cast<std::size_t>(Tier::kDisk)], 2000U);
  EXPECT_EQ(model.costs(kNow).tier_ns[static_cast<std::size_t>(Tier::kMemory)], 100U);
}

TEST(CostModelTest, ATierThatWasSlowIsTriedAgain) {
  CostModel model = Engine();
  model.AddLoad(1000, Bytes(0, 8), 50'000'000, kNow);
  EXPECT_EQ(Worth(model, Strides(0, 3)), 0U);
  constexpr std::int64_t kLater = kNow + 31'000'000'000;
  EXPECT_EQ(Worth(model, Strides(0, 3), 0, false, kLater), 3U);
  model.AddLoad(1000, Bytes(0, 8), 300'000, kLater);
  EXPECT_EQ(model.costs(kLater).tier_ns[static_cast<std::size_t>(Tier::kDisk)], 300U)
      << "what was forgotten has no share in it";
}

}  // namespace
}  // namespace kvcove::connector
