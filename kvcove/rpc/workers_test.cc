// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/workers.h"

#include <gtest/gtest.h>

#include <atomic>

namespace kvcove::rpc {
namespace {

constexpr std::int64_t kLong = 10'000'000'000;

TEST(WorkersTest, WhilePausedNothingBeginsAndNothingIsLost) {
  std::atomic<int> ran{0};
  {
    Workers workers(2);
    ASSERT_TRUE(workers.Start());
    workers.Pause();
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(workers.Post([&] { ++ran; }));
    EXPECT_TRUE(workers.AwaitQuiet(kLong));
    EXPECT_EQ(ran, 0);
    workers.Resume();
  }
  EXPECT_EQ(ran, 10) << "destruction runs what is queued";
}

TEST(WorkersTest, AwaitQuietWaitsForWhatRuns) {
  std::atomic<bool> begun{false};
  std::atomic<bool> go_on{false};
  std::atomic<bool> ended{false};
  Workers workers(1);
  ASSERT_TRUE(workers.Start());
  ASSERT_TRUE(workers.Post([&] {
    begun = true;
    while (!go_on) std::this_thread::yield();
    ended = true;
  }));
  while (!begun) std::this_thread::yield();
  workers.Pause();
  EXPECT_FALSE(workers.AwaitQuiet(1'000'000));
  go_on = true;
  EXPECT_TRUE(workers.AwaitQuiet(kLong));
  EXPECT_TRUE(ended);
}

TEST(WorkersTest, DestructionEndsAPauseAndRunsWhatIsQueued) {
  std::atomic<int> ran{0};
  {
    Workers workers(1);
    ASSERT_TRUE(workers.Start());
    workers.Pause();
    ASSERT_TRUE(workers.Post([&] { ++ran; }));
  }
  EXPECT_EQ(ran, 1);
}

}  // namespace
}  // namespace kvcove::rpc
