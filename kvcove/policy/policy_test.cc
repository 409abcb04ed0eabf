// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/policy.h"

#include <gtest/gtest.h>

#include "kvcove/base/random.h"
#include "kvcove/policy/every_policy_fixture.h"

namespace kvcove::policy {
namespace {

const auto kAll = [](ObjectId) { return true; };

class EveryPolicyTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicyTest, testing::Values("default", "lru"),
                         [](const auto& info) { return info.param; });

TEST_P(EveryPolicyTest, NamesOnlyVictimsThatAreThere) {
  ExpectVictimsThatAreThere(**MakePolicy(GetParam()));
}

TEST_P(EveryPolicyTest, FindsTheOneThatMayGo) { ExpectTheOneThatMayGo(**MakePolicy(GetParam())); }

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

TEST(MakePolicyTest, NamesTheRightOnes) {
  for (const char* wrong : {"arc", "s3fifo"}) {
    const auto made = MakePolicy(wrong);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().detail,
              std::string("'") + wrong + "' is not an eviction policy; use default or lru");
  }
}

}  // namespace
}  // namespace kvcove::policy
