// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/mutex.h"

#include <gtest/gtest.h>

#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"

namespace kvcove {
namespace {

class HeldLocksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!kChecksLocks) GTEST_SKIP() << "this build does not count locks";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(HeldLocksTest, LogLineUnderALockAborts) {
  Mutex mutex;
  const auto log_under_lock = [&] {
    const MutexLock lock(mutex);
    LogInfo("nobody may read this");
  };
  EXPECT_DEATH(log_under_lock(), "a log line under a lock");
}

TEST_F(HeldLocksTest, AThreadThatIsStartedUnderALockAborts) {
  EXPECT_DEATH(
      {
        Mutex mutex;
        const MutexLock lock(mutex);
        StartThread("t", [] {})->join();
      },
      "the start of a thread");
}

TEST_F(HeldLocksTest, LocksOfOtherThreadsDoNotCount) {
  Mutex mutex;
  const MutexLock lock(mutex);
  std::thread([] { ExpectNoLock("a call"); }).join();
}

TEST_F(HeldLocksTest, EachWayToReleaseCounts) {
  Mutex mutex;
  {
    const MutexLock lock(mutex);
  }
  ExpectNoLock("a call");
  if (mutex.try_lock()) {
    EXPECT_EQ(HeldLocks::count(), 1);
    mutex.unlock();
  }
  ExpectNoLock("a call");
}

// A wait gives the lock up and takes it again: the count must follow both.
TEST_F(HeldLocksTest, AWaitKeepsTheCount) {
  Mutex mutex;
  CondVar changed;
  {
    const MutexLock lock(mutex);
    EXPECT_FALSE(changed.WaitUntil(mutex, std::chrono::steady_clock::time_point::min()));
    EXPECT_EQ(HeldLocks::count(), 1);
  }
  EXPECT_EQ(HeldLocks::count(), 0);
}

}  // namespace
}  // namespace kvcove
