// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

const auto kAny = [](ObjectId) { return true; };

// A cache of chains over a SegmentPolicy, as an owner keeps it.
class SegmentPolicyTest : public testing::Test {
 protected:
  // Reads and stores the keys of one request, in order.
  void Request(const std::vector<std::uint64_t>& keys, bool tell_end = true) {
    std::uint64_t parent_key = 0;
    ObjectId parent = kNoObject;
    for (const std::uint64_t key : keys) {
      auto at = objects_.find(key);
      if (at != objects_.end()) {
        Tell([&](SegmentPolicy& policy) { policy.OnHit(at->second); });
      } else {
        at = objects_.emplace(key, NewId()).first;
        keys_[at->second] = key;
        const PutEvent put{.id = at->second,
                           .key = key,
                           .size_bytes = 1,
                           .parent = parent,
                           .parent_key = parent_key};
        Tell([&](SegmentPolicy& policy) { policy.OnPut(put); });
      }
      parent = at->second;
      parent_key = key;
    }
    if (tell_end) Tell([&](SegmentPolicy& policy) { policy.EndRequest(parent); });
  }
  template <typename What>
  void Tell(const What& what) {
    what(policy_);
    if (twin_) what(*twin_);
  }
  void Remove(std::uint64_t key, bool evicted = false) {
    const ObjectId id = objects_.at(key);
    Tell([&](SegmentPolicy& policy) { policy.OnRemove(id, evicted); });
    objects_.erase(key);
    keys_.erase(id);
    free_.push_back(id);
  }
  std::uint64_t Evict() {
    const ObjectId id = policy_.Victim(kAny);
    if (twin_) {
      EXPECT_EQ(twin_->Victim(kAny), id);
    }
    if (id == kNoObject) return 0;
    const std::uint64_t key = keys_.at(id);
    Remove(key, true);
    return key;
  }
  ObjectId NewId() {
    if (free_.empty()) return next_++;
    const ObjectId id = free_.back();
    free_.pop_back();
    return id;
  }
  // Keys whose upper half differs, as hashes do.
  static std::uint64_t Key(std::uint64_t conversation, std::uint64_t block) {
    return Mix64(conversation * 1000 + block) | 1;
  }
  static std::vector<std::uint64_t> Chain(std::uint64_t conversation, std::uint64_t blocks) {
    std::vector<std::uint64_t> keys;
    for (std::uint64_t b = 0; b < blocks; ++b) keys.push_back(Key(conversation, b));
    return keys;
  }

  SegmentPolicy policy_;
  std::optional<SegmentPolicy> twin_;  // hears the same, and must answer the same
  std::map<std::uint64_t, ObjectId> objects_;
  std::map<ObjectId, std::uint64_t> keys_;
  std::vector<ObjectId> free_;
  ObjectId next_ = 0;
};

TEST_F(SegmentPolicyTest, ARequestGoesFromItsEnd) {
  Request(Chain(1, 10));
  for (std::uint64_t b = 10; b-- > 0;) EXPECT_EQ(Evict(), Key(1, b));
  EXPECT_EQ(Evict(), 0U);
}

TEST_F(SegmentPolicyTest, TheOpenRequestIsSpared) {
  Request(Chain(1, 10));
  Request(Chain(2, 10), /*tell_end=*/false);
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t key = Evict();
    EXPECT_TRUE(std::ranges::count(Chain(1, 10), key)) << i;
  }
  EXPECT_NE(Evict(), 0U) << "when nothing else is left, it gives way";
}

// Without a word about the end: a block whose parent is another than the last one starts a request.
TEST_F(SegmentPolicyTest, ABlockThatDoesNotContinueTheChainStartsARequest) {
  Request(Chain(1, 10), false);
  Request(Chain(2, 3), false);
  Request(Chain(3, 3), false);
  EXPECT_EQ(policy_.Contradiction(), "");
  std::vector<std::uint64_t> order;
  while (const std::uint64_t key = Evict()) order.push_back(key);
  const auto place = [&](std::uint64_t key) { return std::ranges::find(order, key); };
  for (const std::uint64_t c : {1, 2, 3}) {
    EXPECT_LT(place(Key(c, 2)), place(Key(c, 0))) << "each from its own end";
  }
  EXPECT_GT(place(Key(3, 0)), place(Key(1, 9))) << "the open one went last";
}

// Conversations that go on are worth more than requests that nobody repeats.
TEST_F(SegmentPolicyTest, LearnsWhichRequestsComeBack) {
  constexpr std::uint64_t kCapacity = 2000;
  std::uint64_t found = 0;
  std::uint64_t asked = 0;
  for (std::uint64_t round = 0; round < 3000; ++round) {
    // A conversation of 8 turns that come back after about 100 requests, among one-off requests.
    const std::uint64_t conversation = 1'000'000 + (round % 50) + (round / 400) * 50;
    const std::uint64_t turn = (round % 400) / 50;
    std::vector<std::vector<std::uint64_t>> requests = {Chain(conversation, 4 + 4 * turn)};
    for (int i = 0; i < 2; ++i) requests.push_back(Chain(2'000'000 + round * 2 + i, 30));
    for (const auto& keys : requests) {
      if (round > 1000 && keys == requests[0] && turn > 0) {
        asked += 4 * turn;
        for (std::uint64_t b = 0; b < 4 * turn && objects_.contains(keys[b]); ++b) ++found;
      }
      while (objects_.size() + keys.size() > kCapacity) ASSERT_NE(Evict(), 0U);
      Request(keys);
    }
  }
  // A least-recently-used cache keeps 2,000 / 80 = 25 rounds and finds nothing of what is 50 old.
  EXPECT_GT(static_cast<double>(found), 0.6 * static_cast<double>(asked));
}

TEST_F(SegmentPolicyTest, WhatIsRefusedComesBackInItsTurn) {
  Request(Chain(1, 200));
  const auto odd = [](ObjectId id) { return id % 2 == 1; };
  for (int i = 0; i < 100; ++i) {
    const ObjectId id = policy_.Victim(odd);
    ASSERT_NE(id, kNoObject);
    ASSERT_EQ(id % 2, 1U);
    Remove(keys_.at(id), true);
    ASSERT_EQ(policy_.Contradiction(), "");
  }
  EXPECT_EQ(policy_.Victim(odd), kNoObject);
  EXPECT_EQ(policy_.Contradiction(), "");
  for (int i = 0; i < 100; ++i) EXPECT_NE(Evict(), 0U);
}

// Random requests, removals and refusals; the books are right throughout, and every object is given
// up in the end.
TEST_F(SegmentPolicyTest, TheBooksAreRightOverRandomHistories) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    Random random(seed);
    for (int step = 0; step < 6000; ++step) {
      const std::uint64_t conversation = random.Below(60);
      std::vector<std::uint64_t> keys = Chain(0, random.Below(4));  // a shared prefix
      for (const std::uint64_t key : Chain(1 + conversation, 1 + random.Below(12))) {
        keys.push_back(key);
      }
      Request(keys, random.OneIn(2));
      if (random.OneIn(3)) {  // true or not
        policy_.OnHints(objects_.at(keys[random.Below(keys.size())]),
                        {.output_tokens = static_cast<std::uint32_t>(random.Below(2000)),
                         .ephemeral = random.OneIn(3),
                         .session_ends = random.OneIn(3)});
      }
      while (objects_.size() > 250) {
        if (random.OneIn(10)) {
          Remove(objects_.begin()->first);
        } else if (random.OneIn(10)) {
          const ObjectId id = policy_.Victim([](ObjectId v) { return v % 3 == 0; });
          if (id != kNoObject) Remove(keys_.at(id), true);
        } else {
          ASSERT_NE(Evict(), 0U);
        }
      }
      if (step % 50 == 0) {
        ASSERT_EQ(policy_.Contradiction(), "") << step;
      }
    }
    while (!objects_.empty()) ASSERT_NE(Evict(), 0U);
    ASSERT_EQ(policy_.Contradiction(), "");
  }
}

// What a successor gets is all that the policy knows: open requests, what was refused, the ages.
TEST_F(SegmentPolicyTest, ACarriedPolicyAnswersAsTheFirstOneWould) {
  Random random(9);
  const auto serve = [&](int requests) {
    for (int i = 0; i < requests; ++i) {
      Request(Chain(random.Below(150), 1 + random.Below(14)), random.OneIn(2));
      while (objects_.size() > 400) ASSERT_NE(Evict(), 0U);
    }
  };
  serve(3000);
  for (int i = 0; i < 40; ++i) policy_.Victim([](ObjectId id) { return id % 5 == 0; });  // refused
  Request(Chain(500, 7), /*tell_end=*/false);
  StateWriter writer = *StateWriter::Open();
  policy_.Save(writer);
  const UniqueFd file = *writer.Finish();
  StateReader reader = *StateReader::Open(file);
  twin_.emplace().Load(reader);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(twin_->Contradiction(), "");
  serve(3000);
  EXPECT_EQ(twin_->Contradiction(), "");
}

// Requests of several callers whose chunks come in turns, and whose end nobody tells.
TEST_F(SegmentPolicyTest, RequestsThatInterleaveAreApart) {
  const auto a = Chain(1, 8);
  const auto b = Chain(2, 8);
  for (std::size_t i = 0; i < 8; ++i) {
    for (const auto* chain : {&a, &b}) {
      const ObjectId id = objects_.emplace((*chain)[i], NewId()).first->second;
      keys_[id] = (*chain)[i];
      policy_.OnPut({.id = id,
                     .key = (*chain)[i],
                     .size_bytes = 1,
                     .parent = i == 0 ? kNoObject : objects_.at((*chain)[i - 1]),
                     .parent_key = i == 0 ? 0 : (*chain)[i - 1]});
    }
  }
  EXPECT_EQ(policy_.Contradiction(), "");
  policy_.EndRequest(objects_.at(a.back()));
  for (std::size_t i = 8; i-- > 0;) EXPECT_EQ(Evict(), a[i]) << "only the one that ended";
  EXPECT_EQ(Evict(), b.back()) << "an open one when nothing else is left";
}

// A request whose end nobody tells does not hold its place for ever.
TEST_F(SegmentPolicyTest, ARequestThatNothingContinuesEnds) {
  Request(Chain(1, 10), /*tell_end=*/false);
  for (std::uint64_t c = 2; c < 30; ++c) Request(Chain(c, 10));
  bool gone = false;
  for (int i = 0; i < 280 && !gone; ++i) {
    const std::uint64_t key = Evict();
    gone = std::ranges::count(Chain(1, 10), key) > 0;
  }
  EXPECT_TRUE(gone);
}

// A chain longer than what is kept open is closed in parts; it still goes from its end.
TEST_F(SegmentPolicyTest, AVeryLongRequestIsClosedInParts) {
  const auto keys = Chain(1, 900);  // of one conversation's numbers
  auto all = keys;
  for (const std::uint64_t key : Chain(5000, 900)) all.push_back(key);
  Request(all);
  EXPECT_EQ(policy_.Contradiction(), "");
  EXPECT_EQ(Evict(), all.back());
  while (Evict() != 0) {
  }
  EXPECT_EQ(policy_.Contradiction(), "");
}

// Conversations whose turns carry a tool's output that the next turn leaves out. Told which blocks
// those are, the policy finds more; told lies, it finds less, and all else holds.
std::uint64_t FoundWithTools(bool told, bool lies) {
  constexpr std::uint64_t kCapacity = 600;
  SegmentPolicy policy;
  std::map<std::uint64_t, ObjectId> objects;
  std::vector<std::uint64_t> keys_of(kCapacity + 1);
  std::vector<ObjectId> free;
  for (ObjectId id = 0; id <= kCapacity; ++id) free.push_back(id);
  Random random(4);
  std::uint64_t found = 0;
  std::vector<std::uint64_t> turns(120);
  for (std::uint64_t round = 0; round < 12'000; ++round) {
    const std::uint64_t c = random.Below(turns.size());
    const std::uint64_t turn = turns[c] % 6;
    const std::uint64_t conversation = c + 1000 * (turns[c] / 6);
    ++turns[c];
    std::vector<std::uint64_t> keys;
    for (std::uint64_t b = 0; b < 2 + turn; ++b) keys.push_back(Mix64(conversation * 100 + b) | 1);
    const std::size_t lasting = keys.size();
    for (std::uint64_t b = 0; b < 6; ++b) {
      keys.push_back(Mix64(conversation * 100 + 20 + turn * 10 + b) | 1);
    }
    for (const std::uint64_t key : keys) {
      if (!objects.contains(key)) break;
      ++found;
    }
    ObjectId parent = kNoObject;
    std::uint64_t parent_key = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto at = objects.find(keys[i]);
      ObjectId id = kNoObject;
      if (at != objects.end()) {
        id = at->second;
        policy.OnHit(id);
      } else {
        if (objects.size() == kCapacity) {
          const ObjectId victim = policy.Victim(kAny);
          policy.OnRemove(victim, true);
          objects.erase(keys_of[victim]);
          free.push_back(victim);
          if (victim == parent) parent = kNoObject;
        }
        id = free.back();
        free.pop_back();
        objects[keys[i]] = id;
        keys_of[id] = keys[i];
        policy.OnPut({.id = id,
                      .key = keys[i],
                      .size_bytes = 1,
                      .parent = parent,
                      .parent_key = parent_key});
      }
      const bool ephemeral = lies ? random.OneIn(2) : i >= lasting;
      if (told) policy.OnHints(id, {.ephemeral = ephemeral});
      parent = id;
      parent_key = keys[i];
    }
    policy.EndRequest(parent);
  }
  EXPECT_EQ(policy.Contradiction(), "");
  return found;
}

TEST(HintsTest, EphemeralBlocksMakeRoomForOthersAndLiesCostHitsOnly) {
  const std::uint64_t untold = FoundWithTools(false, false);
  const std::uint64_t told = FoundWithTools(true, false);
  const std::uint64_t lied = FoundWithTools(true, true);
  EXPECT_GT(told, untold + untold / 50);
  EXPECT_GT(lied, untold / 4);
  EXPECT_LT(lied, told);
}

// Above the bound only a share of conversations is followed: memory stays bounded, and the policy
// still learns.
TEST_F(SegmentPolicyTest, FollowsAShareOfManyConversations) {
  constexpr std::uint64_t kCapacity = 150'000;
  for (std::uint64_t c = 0; c < 12'000; ++c) {
    const std::vector<std::uint64_t> keys = Chain(c, 20);
    while (objects_.size() + keys.size() > kCapacity) ASSERT_NE(Evict(), 0U);
    Request(keys);
    if (c > 500) {
      const std::vector<std::uint64_t> again = Chain(c - 500, 20);
      if (objects_.contains(again[0])) {
        std::vector<std::uint64_t> there;
        for (const std::uint64_t key : again) {
          if (!objects_.contains(key)) break;
          there.push_back(key);
        }
        Request(there);
      }
    }
  }
  EXPECT_EQ(policy_.Contradiction(), "");
  const std::size_t bytes = policy_.bytes();
  EXPECT_LT(bytes, 28 * kCapacity + (5 << 20)) << "objects and segments, ghost and tables";
  for (std::uint64_t c = 12'000; c < 20'000; ++c) {
    const std::vector<std::uint64_t> keys = Chain(c, 20);
    while (objects_.size() + keys.size() > kCapacity) ASSERT_NE(Evict(), 0U);
    Request(keys);
  }
  EXPECT_LT(policy_.bytes(), bytes + bytes / 10) << "more of the same takes no more";
}

// Nobody keeps a caller from it. The segment that is being made is the one that the key leaves.
TEST_F(SegmentPolicyTest, AKeyThatIsPutBehindItselfLeavesItsOwnSegment) {
  const std::uint64_t key = Mix64(7);
  policy_.OnPut({.id = 0, .key = key, .size_bytes = 1});
  policy_.OnRemove(0, /*evicted=*/false);
  policy_.OnPut({.id = 0, .key = key, .size_bytes = 1, .parent_key = key});
  policy_.OnPut({.id = 1, .key = Mix64(8), .size_bytes = 1, .parent = 0, .parent_key = key});
  policy_.EndRequest(1);
  EXPECT_EQ(policy_.Contradiction(), "");
}

}  // namespace
}  // namespace kvcove::policy
