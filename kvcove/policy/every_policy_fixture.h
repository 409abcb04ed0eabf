// SPDX-License-Identifier: Apache-2.0
// What holds of every eviction policy, for the tests of each.
#pragma once

#include <gtest/gtest.h>

#include <set>

#include "kvcove/base/random.h"
#include "kvcove/policy/policy.h"

namespace kvcove::policy {

// Random events: a victim is always something that is there and may go.
inline void ExpectVictimsThatAreThere(EvictionPolicy& policy) {
  Random random(3);
  std::set<ObjectId> there;
  for (int step = 0; step < 50000; ++step) {
    const auto id = static_cast<ObjectId>(random.Below(400));
    if (there.contains(id)) {
      if (random.OneIn(5)) {
        policy.OnRemove(id, false);
        there.erase(id);
      } else {
        policy.OnHit(id);
      }
    } else if (there.size() < 200) {
      const ObjectId parent = there.empty() || random.OneIn(3) ? kNoObject : *there.begin();
      policy.OnPut({.id = id, .key = Mix64(id), .size_bytes = 1, .parent = parent});
      there.insert(id);
    } else {
      const bool odd_only = random.OneIn(2);
      const ObjectId victim = policy.Victim([&](ObjectId v) { return !odd_only || v % 2 == 1; });
      if (victim == kNoObject) continue;
      ASSERT_TRUE(there.contains(victim));
      if (odd_only) {
        ASSERT_EQ(victim % 2, 1U);
      }
      policy.OnRemove(victim, true);
      there.erase(victim);
    }
  }
}

inline void ExpectTheOneThatMayGo(EvictionPolicy& policy) {
  for (ObjectId id = 0; id < 100; ++id) {
    policy.OnPut({.id = id,
                  .key = Mix64(id + 1),
                  .size_bytes = 1,
                  .parent = id == 0 ? kNoObject : id - 1,
                  .parent_key = id == 0 ? 0 : Mix64(id)});
  }
  EXPECT_EQ(policy.Victim([](ObjectId id) { return id == 42; }), 42U);
  EXPECT_EQ(policy.Victim([](ObjectId) { return false; }), kNoObject);
  EXPECT_NE(policy.Victim([](ObjectId) { return true; }), kNoObject)
      << "refused once is not refused for ever";
}

}  // namespace kvcove::policy
