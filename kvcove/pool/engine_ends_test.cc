// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/engine_ends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kvcove/base/clock.h"

namespace kvcove::pool {
namespace {

using Engine = EngineEnds::Engine;

std::int64_t In(std::int64_t ns) { return SystemClock::Instance().NowNs() + ns; }

// Answers only while it is told to.
class Master {
 public:
  EngineEnds::Tell tell() {
    return [this](std::span<const Engine> engines) {
      const MutexLock lock(mutex_);
      ++asked_;
      changed_.NotifyAll();
      while (frozen_) changed_.Wait(mutex_);
      if (away_) return std::size_t{0};
      ended_.insert(ended_.end(), engines.begin(), engines.end());
      changed_.NotifyAll();
      return engines.size();
    };
  }
  void Set(bool frozen, bool away) {
    const MutexLock lock(mutex_);
    frozen_ = frozen;
    away_ = away;
    changed_.NotifyAll();
  }
  void AwaitAsked(int times) {
    const MutexLock lock(mutex_);
    while (asked_ < times) changed_.Wait(mutex_);
  }
  std::vector<Engine> AwaitEnded(std::size_t count) {
    const MutexLock lock(mutex_);
    while (ended_.size() < count) changed_.Wait(mutex_);
    return ended_;
  }
  std::vector<Engine> ended() const {
    const MutexLock lock(mutex_);
    return ended_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool frozen_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool away_ KVCOVE_GUARDED_BY(mutex_) = false;
  int asked_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<Engine> ended_ KVCOVE_GUARDED_BY(mutex_);
};

TEST(EngineEndsTest, NothingIsLostWhileTheMasterIsAwayAndNobodyWaits) {
  Master master;
  master.Set(/*frozen=*/false, /*away=*/true);
  EngineEnds ends(master.tell());
  ASSERT_TRUE(ends.Start());
  for (int i = 0; i < 1000; ++i) ends.Add({"acme/llama", std::to_string(i)});
  master.AwaitAsked(3);
  EXPECT_EQ(ends.waiting(), 1000U);
  master.Set(false, false);
  EXPECT_EQ(master.AwaitEnded(1000).size(), 1000U);
}

TEST(EngineEndsTest, AddReturnsWhileTheMasterIsFrozen) {
  Master master;
  master.Set(/*frozen=*/true, /*away=*/false);
  EngineEnds ends(master.tell());
  ASSERT_TRUE(ends.Start());
  ends.Add({"a", "1"});
  master.AwaitAsked(1);
  ends.Add({"a", "2"});
  ends.Add({"a", "2"});
  EXPECT_EQ(ends.waiting(), 2U);
  master.Set(false, false);
  EXPECT_THAT(master.AwaitEnded(2), testing::ElementsAre(Engine("a", "1"), Engine("a", "2")));
}

TEST(EngineEndsTest, AnEngineThatIsBackWaitsUntilTheMasterKnowsOfItsEnd) {
  Master master;
  master.Set(/*frozen=*/true, /*away=*/false);
  EngineEnds ends(master.tell());
  ASSERT_TRUE(ends.Start());
  ends.Add({"a", "told"});
  master.AwaitAsked(1);
  ends.Add({"a", "waits"});
  EXPECT_TRUE(ends.AwaitTold({"a", "unknown"}, In(0)));
  EXPECT_FALSE(ends.AwaitTold({"a", "told"}, In(kMillisecond)));
  EXPECT_FALSE(ends.AwaitTold({"a", "waits"}, In(kMillisecond)));
  std::thread thaw([&] { master.Set(false, false); });
  EXPECT_TRUE(ends.AwaitTold({"a", "waits"}, In(60 * kSecond)));
  EXPECT_TRUE(ends.AwaitTold({"a", "told"}, In(0)));
  EXPECT_THAT(master.ended(), testing::ElementsAre(Engine("a", "told"), Engine("a", "waits")));
  thaw.join();
}

TEST(EngineEndsTest, SomebodyWhoWaitsShortensThePause) {
  Master master;
  master.Set(/*frozen=*/false, /*away=*/true);
  EngineEnds ends(master.tell());
  ASSERT_TRUE(ends.Start());
  ends.Add({"a", "1"});
  for (int times = 1; times < 100; ++times) {  // the pauses alone would take a minute and a half
    master.AwaitAsked(times);
    EXPECT_FALSE(ends.AwaitTold({"a", "1"}, In(kMillisecond)));
  }
}

TEST(EngineEndsTest, WhatIsLeftAtTheEndIsTried) {
  Master master;
  {
    EngineEnds ends(master.tell());
    ASSERT_TRUE(ends.Start());
    for (int i = 0; i < 300; ++i) ends.Add({"a", std::to_string(i)});
  }
  EXPECT_EQ(master.ended().size(), 300U);
}

}  // namespace
}  // namespace kvcove::pool
