// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/simulate.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"
#include "kvcove/policy/every_policy_fixture.h"

namespace kvcove::lab {
namespace {

TEST(S3FifoTest, NamesOnlyVictimsThatAreThere) {
  policy::ExpectVictimsThatAreThere(**MakeSimulatedPolicy("s3fifo", 200));
}

TEST(S3FifoTest, FindsTheOneThatMayGo) {
  policy::ExpectTheOneThatMayGo(**MakeSimulatedPolicy("s3fifo", 100));
}

TEST(SimulateTest, TheOptimumIsNeverBeaten) {
  Random random(1);
  std::vector<Chain> requests;
  for (int i = 0; i < 2000; ++i) {
    Chain chain;
    const auto conversation = static_cast<std::uint32_t>(random.Below(150));
    for (std::uint32_t b = 0; b < 3 + random.Below(6); ++b) chain.push_back(conversation * 100 + b);
    requests.push_back(chain);
  }
  for (const std::uint64_t capacity : {50, 200, 400}) {
    const double best = SimulateOptimum(requests, capacity).ratio();
    for (const auto name : SimulatedPolicies())
      EXPECT_LE(Simulate(name, requests, capacity)->ratio(), best + 0.01) << name;
  }
}

TEST(SimulateTest, CountsLeadingRunsOnly) {
  const std::vector<Chain> requests = {{1, 2, 3}, {1, 2, 4, 3}, {9, 1}};
  const HitCount count = *Simulate("lru", requests, 100);
  EXPECT_EQ(count.blocks, 9U);
  EXPECT_EQ(count.hit_blocks, 2U) << "3 behind a miss, and 1 behind 9, are of no use";
}

TEST(SimulateTest, OfASimulationHasThoseThatAreComparedToo) {
  const auto made = MakeSimulatedPolicy("arc", 1);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().detail, "'arc' is not an eviction policy; use default, lru or s3fifo");
  for (const auto name : policy::PolicyNames())
    EXPECT_EQ((*MakeSimulatedPolicy(name, 1))->name(), name);
}

}  // namespace
}  // namespace kvcove::lab
