// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/base/mutex.h"

namespace kvcove {
namespace {

const Clock& Now() { return SystemClock::Instance(); }

TEST(InterruptTest, AThreadWithoutOneWaitsAsLongAsItIsTold) {
  EXPECT_FALSE(Interrupt::Set());
  EXPECT_FALSE(Interrupt::Ended());
  EXPECT_EQ(Interrupt::TurnNs(7 * kSecond), 7 * kSecond);
  Interrupt::LookNow();  // nobody is asked
  FakeClock clock;
  EXPECT_EQ(LeftNs(clock.NowNs() + 5, clock), 5);
}

TEST(InterruptTest, AWaitLooksAfterATurnAndGoesOn) {
  AskedInterrupt interrupt(/*ends_at=*/0);
  const std::int64_t began_ns = Now().NowNs();
  EXPECT_LE(Interrupt::TurnNs(7 * kSecond), Interrupt::kLookNs);
  EXPECT_LE(Interrupt::TurnNs(5), 5) << "no longer than is left";
  Interrupt::LookIfDue();
  if (Now().NowNs() - began_ns < Interrupt::kLookNs) {  // the machine has not stood still
    EXPECT_EQ(interrupt.asked(), 0) << "not before the turn is over";
  }
  SleepNs(Interrupt::kLookNs + kMillisecond);
  EXPECT_GE(interrupt.asked(), 1);
  EXPECT_FALSE(Interrupt::Ended());
}

TEST(InterruptTest, OnceItIsToEndEveryDeadlineOfTheThreadIsReached) {
  AskedInterrupt interrupt(/*ends_at=*/2);
  FakeClock clock;
  const std::int64_t deadline_ns = clock.NowNs() + kSecond;
  Interrupt::LookNow();
  EXPECT_EQ(LeftNs(deadline_ns, clock), kSecond);
  Interrupt::LookNow();
  EXPECT_TRUE(Interrupt::Ended());
  EXPECT_EQ(LeftNs(deadline_ns, clock), 0);
  Interrupt::LookNow();
  EXPECT_EQ(interrupt.asked(), 2) << "it has answered";
  std::int64_t others_ns = 0;
  std::thread([&] { others_ns = LeftNs(deadline_ns, clock); }).join();
  EXPECT_EQ(others_ns, kSecond);
}

TEST(InterruptTest, ASleepEndsWithTheCall) {
  AskedInterrupt interrupt(/*ends_at=*/1);
  const std::int64_t began_ns = Now().NowNs();
  SleepNs(600 * kSecond);
  EXPECT_LT(Now().NowNs() - began_ns, 300 * kSecond);
  EXPECT_EQ(interrupt.asked(), 1);
}

TEST(InterruptTest, AWaitForAConditionEndsWithTheCallAndLooksWithoutTheLock) {
  Mutex mutex;
  CondVar changed;
  bool free = false;
  AskedInterrupt interrupt(/*ends_at=*/1, [&] {
    if (!mutex.try_lock()) return;
    free = true;
    mutex.unlock();
  });
  const std::int64_t deadline_ns = Now().NowNs() + 600 * kSecond;
  const MutexLock lock(mutex);
  int turns = 0;
  while (true) {
    const std::int64_t left_ns = LeftNs(deadline_ns, Now());
    if (left_ns <= 0) break;
    ++turns;
    changed.WaitFor(mutex, std::chrono::nanoseconds(left_ns));
  }
  EXPECT_LT(Now().NowNs(), deadline_ns - 300 * kSecond);
  EXPECT_TRUE(free);
  EXPECT_EQ(interrupt.asked(), 1);
  EXPECT_GE(turns, 1);
}

// It has no deadline of its own, and what it waits for may still write into the caller's memory.
TEST(InterruptTest, AWaitWithoutADeadlineGoesOnUntilWhatItWaitsForHasCome) {
  Mutex mutex;
  CondVar changed;
  bool came = false;
  AskedInterrupt interrupt(/*ends_at=*/1);
  Interrupt::LookNow();
  ASSERT_TRUE(Interrupt::Ended());
  std::thread other([&] {
    const MutexLock lock(mutex);
    came = true;
    changed.NotifyAll();
  });
  {
    const MutexLock lock(mutex);
    while (!came) changed.Wait(mutex);
  }
  other.join();
  EXPECT_TRUE(came);
}

// Nobody else was told, so nobody else would act on it during a look, which may take long.
TEST(InterruptTest, AThreadThatIsNotifiedGoesOnAtOnce) {
  Mutex mutex;
  CondVar changed;
  bool notified = false;
  bool looked = false;
  AskedInterrupt interrupt(/*ends_at=*/0, [&] { looked = notified; });
  const std::int64_t began_ns = Now().NowNs();
  std::thread other([&] {
    // Its turn is over by then, in a wait that has lasted.
    std::this_thread::sleep_for(std::chrono::nanoseconds(Interrupt::kLookNs / 2));
    const MutexLock lock(mutex);
    notified = true;
    changed.NotifyOne();
  });
  {
    const MutexLock lock(mutex);
    while (!notified) changed.WaitFor(mutex, std::chrono::seconds(60));
  }
  other.join();
  if (Now().NowNs() - began_ns < Interrupt::kLookNs) {
    EXPECT_FALSE(looked);
  }
}

TEST(InterruptTest, AChildThatAHandlerMadeDoesNotGoOnWithItsParentsCall) {
  bool parent = true;
  AskedInterrupt interrupt(/*ends_at=*/0, [&] {
    const pid_t child = fork();
    parent = child != 0;
    int status = 0;
    if (parent) {
      EXPECT_EQ(waitpid(child, &status, 0), child);
    }
    EXPECT_EQ(status, 0);
  });
  Interrupt::LookNow();
  if (!parent) _exit(Interrupt::Ended() ? 0 : 1);
  EXPECT_FALSE(Interrupt::Ended());
}

TEST(InterruptTest, AWaitUntilAMomentThatIsReachedSaysSo) {
  Mutex mutex;
  CondVar changed;
  AskedInterrupt interrupt(/*ends_at=*/0);
  const MutexLock lock(mutex);
  EXPECT_FALSE(changed.WaitFor(mutex, std::chrono::milliseconds(1)));
}

TEST(InterruptTest, WhatIsCalledInsideALookHasNone) {
  bool set = true;
  AskedInterrupt interrupt(/*ends_at=*/1, [&] {
    set = Interrupt::Set();
    AskedInterrupt inner(/*ends_at=*/1);  // as a handler that calls the pool
    Interrupt::LookNow();
    EXPECT_TRUE(Interrupt::Ended());
  });
  Interrupt::LookNow();
  EXPECT_FALSE(set);
  EXPECT_TRUE(Interrupt::Ended());
  {
    const Interrupt::Aside aside;
    EXPECT_FALSE(Interrupt::Ended());
  }
  EXPECT_TRUE(Interrupt::Ended());
}

TEST(InterruptTest, TheCallsThatOtherThreadsMakeForOneEndWithIt) {
  std::atomic<bool> ends{false};
  std::thread part([&] {
    InterruptBy interrupt(ends);
    SleepNs(600 * kSecond);
  });
  const std::int64_t began_ns = Now().NowNs();
  ends = true;
  part.join();
  EXPECT_LT(Now().NowNs() - began_ns, 300 * kSecond);
}

}  // namespace
}  // namespace kvcove
