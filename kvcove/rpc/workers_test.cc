// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "tests/becomes.h"

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

// Work that ends when the test says so.
class Waiting {
 public:
  ~Waiting() { go_on_ = true; }
  std::function<void()> Piece() {
    return [this] {
      ++running_;
      while (!go_on_) SleepNs(kMillisecond);
      --running_;
    };
  }
  int running() const { return running_; }
  void End() { go_on_ = true; }

 private:
  std::atomic<int> running_{0};
  std::atomic<bool> go_on_{false};
};

// Posts so many pieces of work, and waits until all of them run.
void Occupy(Workers& workers, Waiting& waiting, int pieces) {
  for (int i = 0; i < pieces; ++i) ASSERT_TRUE(workers.Post(waiting.Piece()));
  if (Becomes([&] { return waiting.running() == pieces; })) return;
  const int running = waiting.running();
  waiting.End();  // else the end of the workers waits for these
  FAIL() << running << " of " << pieces << " run";
}

TEST(WorkersTest, OneThreadRunsUntilThereIsWorkForMore) {
  Waiting waiting;
  Workers workers(5, std::chrono::hours(1));
  ASSERT_TRUE(workers.Start());
  EXPECT_EQ(workers.threads(), 1U);
  ASSERT_NO_FATAL_FAILURE(Occupy(workers, waiting, 1));
  EXPECT_TRUE(Becomes([&] { return workers.threads() == 2; })) << "one is free for the next work";
  waiting.End();
}

// Each piece waits for all others: with a thread too few none would end.
TEST(WorkersTest, AllThatMayRunAtATimeDo) {
  constexpr int kMost = 12;
  for (int round = 0; round < 20; ++round) {
    Waiting waiting;
    Workers workers(kMost, std::chrono::hours(1));
    ASSERT_TRUE(workers.Start());
    for (int i = 0; i < kMost + 3; ++i) ASSERT_TRUE(workers.Post(waiting.Piece()));
    EXPECT_TRUE(Becomes([&] { return waiting.running() == kMost; })) << waiting.running();
    EXPECT_EQ(workers.threads(), std::size_t{kMost});
    waiting.End();
  }
}

TEST(WorkersTest, ThoseWithoutWorkEndButForOne) {
  Waiting waiting;
  Workers workers(6, std::chrono::milliseconds(20));
  ASSERT_TRUE(workers.Start());
  ASSERT_NO_FATAL_FAILURE(Occupy(workers, waiting, 6));
  waiting.End();
  EXPECT_TRUE(Becomes([&] { return workers.threads() == 1; }));
  // And again, with the one that stayed.
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(workers.Post([&] { ++ran; }));
  EXPECT_TRUE(Becomes([&] { return ran == 100; }));
}

// The one that stayed and the destructor both look for threads that have ended and are not joined.
TEST(WorkersTest, AnEndRightBehindARestJoinsEachThreadOnce) {
  for (int round = 0; round < 20; ++round) {
    Waiting waiting;
    Workers workers(3, std::chrono::milliseconds(1));
    ASSERT_TRUE(workers.Start());
    ASSERT_NO_FATAL_FAILURE(Occupy(workers, waiting, 3));
    waiting.End();
    ASSERT_TRUE(Becomes([&] { return workers.threads() == 1; }));
  }
}

// Threads end and start all the time.
TEST(WorkersTest, NothingIsLostWhileThreadsComeAndGo) {
  std::atomic<int> ran{0};
  int posted = 0;
  {
    Workers workers(4, std::chrono::microseconds(50));
    ASSERT_TRUE(workers.Start());
    for (; posted < 2000; ++posted) {
      ASSERT_TRUE(workers.Post([&] { ++ran; }));
      if (posted % 100 == 0) {
        EXPECT_TRUE(Becomes([&] { return ran == posted + 1; })) << ran << " of " << posted + 1;
      }
    }
  }
  EXPECT_EQ(ran, posted);
}

TEST(WorkersTest, AThreadThatCannotBeStartedCostsNoWork) {
  SetLogLevel(LogLevel::kOff);
  std::atomic<int> ran{0};
  {
    Workers workers(4);
    ASSERT_TRUE(workers.Start());
    RefuseThreadsAfter(0);
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(workers.Post([&] { ++ran; }));
    EXPECT_TRUE(Becomes([&] { return ran == 50; }));
    EXPECT_EQ(workers.threads(), 1U);
    RefuseThreadsAfter(-1);
    ASSERT_TRUE(workers.Post([&] { ++ran; }));
    EXPECT_TRUE(Becomes([&] { return workers.threads() == 2; }));
  }
  EXPECT_EQ(ran, 51);
}

}  // namespace
}  // namespace kvcove::rpc
