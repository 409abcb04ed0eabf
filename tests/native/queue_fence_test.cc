// SPDX-License-Identifier: Apache-2.0
#include "queue_fence.h"

#include <gtest/gtest.h>

#include "kvcove/base/log.h"

namespace kvcove::python {
namespace {

Token At(Generation generation, std::uint64_t incarnation = 1) {
  return {.incarnation = {.high = incarnation, .low = 0}, .generation = generation, .slot = 0};
}

class QueueFenceTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }

  // Of `calls`, one each `every_ms`.
  int Admitted(int calls, int every_ms, const Token& token) {
    int admitted = 0;
    for (int i = 0; i < calls; ++i) {
      admitted += fence_.Admits(token) ? 1 : 0;
      clock_.AdvanceNs(every_ms * kMillisecond);
    }
    return admitted;
  }

  FakeClock clock_;
  QueueFence fence_{clock_};
};

TEST_F(QueueFenceTest, AllPutsAreTakenUntilItBegins) {
  EXPECT_EQ(Admitted(10, 1, At(5)), 10);
  EXPECT_EQ(Admitted(10, 1, At(6)), 10);
}

TEST_F(QueueFenceTest, AQueueIsRefusedAfterAnothersResetUntilItHasRunDry) {
  fence_.Begin(At(5));
  EXPECT_EQ(Admitted(100, 1, At(5)), 100);
  EXPECT_EQ(Admitted(200, 20, At(6)), 0);
  clock_.AdvanceNs(QueueFence::kPauseNs);
  EXPECT_EQ(Admitted(100, 1, At(6)), 100);
  EXPECT_EQ(Admitted(3, 1, At(7)), 0) << "the next reset";
}

TEST_F(QueueFenceTest, TheFirstCallIsRefusedAlsoLongAfterTheReset) {
  fence_.Begin(At(5));
  clock_.AdvanceNs(60'000 * kMillisecond);
  EXPECT_EQ(Admitted(1, 200, At(6)), 0) << "the queue may have stood still";
  EXPECT_EQ(Admitted(2, 1, At(6)), 2);
}

TEST_F(QueueFenceTest, ACallerThatNeverPausesIsBelievedAfterTheBound) {
  fence_.Begin(At(5));
  const auto calls = static_cast<int>(QueueFence::kBoundNs / (10 * kMillisecond));
  EXPECT_EQ(Admitted(calls, 10, At(6)), 0);
  EXPECT_EQ(Admitted(100, 10, At(6)), 100);
}

TEST_F(QueueFenceTest, AnotherResetMeanwhileBeginsItAnew) {
  fence_.Begin(At(5));
  EXPECT_EQ(Admitted(5, 10, At(6)), 0);
  EXPECT_EQ(Admitted(1, 200, At(7)), 0);
  EXPECT_EQ(Admitted(1, 1, At(7)), 1);
}

TEST_F(QueueFenceTest, AnOwnResetRefusesNothing) {
  fence_.Begin(At(5));
  fence_.OwnReset(At(5), At(9));
  EXPECT_EQ(Admitted(10, 1, At(9)), 10);
}

TEST_F(QueueFenceTest, AnOwnResetAfterAnothersThatNoPutHasSeenRefuses) {
  fence_.Begin(At(5));
  fence_.OwnReset(At(7), At(9));
  EXPECT_EQ(Admitted(3, 1, At(9)), 0) << "the one to 7 was another's";
}

TEST_F(QueueFenceTest, APoolThatBeganAnewIsLikeAReset) {
  fence_.Begin(At(5));
  EXPECT_EQ(Admitted(3, 1, At(1, 2)), 0);
}

TEST_F(QueueFenceTest, AnOldTokenIsForThePoolToRefuse) {
  fence_.Begin(At(5));
  EXPECT_EQ(Admitted(3, 1, At(4)), 3);
  EXPECT_EQ(Admitted(3, 1, At(5)), 3);
}

}  // namespace
}  // namespace kvcove::python
