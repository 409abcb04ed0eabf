// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/policy.h"

#include <gtest/gtest.h>

#include <set>

#include "kvcove/base/random.h"
#include "kvcove/policy/simulate.h"

namespace kvcove::policy {
namespace {

const auto kAll = [](ObjectId) { return true; };

class EveryPolicyTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicyTest, testing::Values("default", "lru", "s3fifo"),
                         [](const auto& info) { return info.param; });

// Random events: a victim is always something that is there and may go.
TEST_P(EveryPolicyTest, NamesOnlyVictimsThatAreThere) {
  auto policy = *MakeSimulatedPolicy(GetParam(), 200);
  Random random(3);
  std::set<ObjectId> there;
  for (int step = 0; step < 50000; ++step) {
    const auto id = static_cast<ObjectId>(random.Below(400));
    if (there.contains(id)) {
      if (random.OneIn(5)) {
        policy->OnRemove(id, false);
        there.erase(id);
      } else {
        policy->OnHit(id);
      }
    } else if (there.size() < 200) {
      const ObjectId parent = there.empty() || random.OneIn(3) ? kNoObject : *there.begin();
      policy->OnPut({.id = id, .key = Mix64(id), .size_bytes = 1, .parent = parent});
      there.insert(id);
    } else {
      const bool odd_only = random.OneIn(2);
      const ObjectId victim = policy->Victim([&](ObjectId v) { return !odd_only || v % 2 == 1; });
      if (victim == kNoObject) continue;
      ASSERT_TRUE(there.contains(victim));
      if (odd_only) {
        ASSERT_EQ(victim % 2, 1U);
      }
      policy->OnRemove(victim, true);
      there.erase(victim);
    }
  }
}

TEST_P(EveryPolicyTest, FindsTheOneThatMayGo) {
  auto policy = *MakeSimulatedPolicy(GetParam(), 100);
  for (ObjectId id = 0; id < 100; ++id) {
    policy->OnPut({.id = id,
                   .key = Mix64(id + 1),
                   .size_bytes = 1,
                   .parent = id == 0 ? kNoObject : id - 1,
                   .parent_key = id == 0 ? 0 : Mix64(id)});
  }
  EXPECT_EQ(policy->Victim([](ObjectId id) { return id == 42; }), 42U);
  EXPECT_EQ(policy->Victim([](ObjectId) { return false; }), kNoObject);
  EXPECT_NE(policy->Victim(kAll), kNoObject) << "refused once is not refused for ever";
}

TEST(DefaultPolicyTest, GivesUpTailsBeforeTheirPrefix) {
  auto policy = *MakePolicy("default");
  for (ObjectId id = 0; id < 10; ++id) {
    policy->OnPut({.id = id,
                   .key = Mix64(id + 1),
                   .size_bytes = 1,
                   .parent = id == 0 ? kNoObject : id - 1,
                   .parent_key = id == 0 ? 0 : Mix64(id)});
  }
  policy->OnPut({.id = 50, .key = Mix64(51), .size_bytes = 1, .parent = kNoObject});
  policy->OnPut({.id = 51, .key = Mix64(52), .size_bytes = 1, .parent = kNoObject});
  std::vector<ObjectId> order;
  while (order.size() < 10) {
    const ObjectId victim = policy->Victim(kAll);
    policy->OnRemove(victim, true);
    if (victim < 10) order.push_back(victim);
  }
  EXPECT_TRUE(std::is_sorted(order.rbegin(), order.rend())) << "from the tail to the head";
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

TEST(MakePolicyTest, NamesTheRightOnes) {
  for (const char* wrong : {"arc", "s3fifo"}) {
    const auto made = MakePolicy(wrong);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().detail,
              std::string("'") + wrong + "' is not an eviction policy; use default or lru");
  }
}

TEST(MakePolicyTest, OfASimulationHasThoseThatAreComparedToo) {
  const auto made = MakeSimulatedPolicy("arc", 1);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().detail, "'arc' is not an eviction policy; use default, lru or s3fifo");
  for (const auto name : PolicyNames()) EXPECT_EQ((*MakeSimulatedPolicy(name, 1))->name(), name);
}

}  // namespace
}  // namespace kvcove::policy
