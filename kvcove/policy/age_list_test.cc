// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/age_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kvcove/base/random.h"

namespace kvcove::policy {
namespace {

struct Node {
  Link link;
  std::uint32_t time = 0;
};
using Nodes = ChunkedArray<Node>;

class AgeListTest : public testing::Test {
 protected:
  static std::size_t AgeAt(std::uint32_t now, std::uint32_t time) {
    return AgeBucket(std::uint64_t{now - time} << kTimeUnit);
  }
  void Insert(ObjectId id, std::uint32_t now, std::uint32_t time) {
    nodes_.Reach(id);
    nodes_[id].time = time;
    list_.Insert(nodes_, id, AgeAt(now, time));
  }
  // The ages that have something.
  std::vector<std::size_t> Advance(std::uint32_t now, std::uint32_t left = ~0U) {
    std::vector<std::size_t> ages;
    list_.Advance(nodes_, now, left);
    for (std::size_t age = 0; age < kAges; ++age) {
      if (!list_.Empty(age)) ages.push_back(age);
    }
    return ages;
  }
  std::vector<ObjectId> Of(std::size_t age) const {
    std::vector<ObjectId> ids;
    const ObjectId end = age == 0 ? kNoObject : list_.first(age - 1);
    for (ObjectId id = list_.first(age); id != end; id = nodes_[id].link.next) ids.push_back(id);
    return ids;
  }

  Nodes nodes_;
  AgeList<Nodes> list_;
};

TEST_F(AgeListTest, MarksMoveAsTimePasses) {
  Insert(1, 100, 100);
  Insert(2, 101, 101);
  EXPECT_EQ(Advance(101), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(Of(0), std::vector<ObjectId>{2});
  EXPECT_EQ(Of(1), std::vector<ObjectId>{1});
  EXPECT_EQ(Advance(1101), std::vector<std::size_t>{AgeAt(1101, 100)});
  EXPECT_EQ(Of(AgeAt(1101, 100)), (std::vector<ObjectId>{1, 2}));
  EXPECT_TRUE(list_.Empty(0));
}

TEST_F(AgeListTest, WhatIsErasedTakesNoMarkWithIt) {
  for (const ObjectId id : {1, 2, 3}) Insert(id, 100, 100);
  list_.Erase(nodes_, 1);
  EXPECT_EQ(list_.first(0), 2U);
  list_.Erase(nodes_, 2);
  list_.Erase(nodes_, 3);
  EXPECT_TRUE(list_.empty());
  EXPECT_TRUE(list_.Empty(kAges - 1));
  EXPECT_TRUE(list_.Consistent(nodes_));
}

// What waits at its mark is not looked at: only what changes its age costs a step.
TEST_F(AgeListTest, GrowingOldCostsAStepForEachThatChangesItsAge) {
  for (ObjectId id = 0; id < 100; ++id) Insert(id, 1000, 1000);
  std::uint32_t left = 1000;
  list_.Advance(nodes_, 1000, left);
  EXPECT_EQ(left, 1000U);
  list_.Advance(nodes_, 1001, left);
  EXPECT_EQ(left, 900U);
  // Few steps a call: it ends after some calls.
  for (int call = 0; call < 50 && Advance(1002, 2) != std::vector<std::size_t>{2}; ++call) {
    ASSERT_TRUE(list_.Consistent(nodes_));
  }
  EXPECT_EQ(Advance(1002, 2), std::vector<std::size_t>{2});
}

// After many puts without a victim: however many ages are skipped, each costs one step.
TEST_F(AgeListTest, SkippedAgesCostNothing) {
  for (ObjectId id = 0; id < 100; ++id) Insert(id, 1000, 1000);
  std::uint32_t left = 1000;
  list_.Advance(nodes_, 900'000, left);
  EXPECT_EQ(left, 900U);
  EXPECT_EQ(Of(AgeAt(900'000, 1000)).size(), 100U);
}

// Against what each segment's time says, over random histories, the wrap of the time included.
TEST_F(AgeListTest, EachIsOfItsAgeOverRandomHistories) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(seed);
    Random random(seed);
    list_ = {};
    auto now = static_cast<std::uint32_t>(0U - random.Below(4000));
    std::vector<ObjectId> in;
    std::vector<ObjectId> out;
    for (ObjectId id = 0; id < 300; ++id) out.push_back(id);
    const auto move = [&](std::vector<ObjectId>& from, std::vector<ObjectId>& to) {
      std::swap(from[random.Below(from.size())], from.back());
      to.push_back(from.back());
      from.pop_back();
      return to.back();
    };
    for (int step = 0; step < 8000; ++step) {
      if (!out.empty() && random.OneIn(2)) {
        // Late ones, and those that come back after long, are not in the order of time.
        const std::uint32_t late = random.OneIn(4) ? random.Below(random.OneIn(4) ? 3000 : 8) : 0;
        Insert(move(out, in), now, now - late);
      } else if (!in.empty() && random.OneIn(2)) {
        list_.Erase(nodes_, move(in, out));
      }
      if (random.OneIn(3))
        now += static_cast<std::uint32_t>(random.Below(random.OneIn(9) ? 200 : 3));
      if (random.OneIn(5)) Advance(now, static_cast<std::uint32_t>(random.Below(20)));
      ASSERT_TRUE(list_.Consistent(nodes_)) << step;
    }
    // With enough steps, and in the order of time, each is where its time says.
    for (const ObjectId id : in) list_.Erase(nodes_, id);
    ASSERT_TRUE(list_.empty());
    std::ranges::sort(in);
    for (const ObjectId id : in) {
      now += 3;
      Insert(id, now, now);
    }
    now += 500;
    Advance(now);
    for (std::size_t age = 0; age < kAges; ++age) {
      for (const ObjectId id : Of(age)) EXPECT_EQ(AgeAt(now, nodes_[id].time), age) << id;
    }
  }
}

}  // namespace
}  // namespace kvcove::policy
