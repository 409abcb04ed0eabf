// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/busy.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kvcove/base/interrupt_fixture.h"

namespace kvcove::rpc {
namespace {

const Error kBusy = BusyError({.refusal = Refusal::kTenantCalls, .retry_after_ms = 40});

TEST(BusyTest, TheAnswerSaysWhyAndWhenToComeAgain) {
  EXPECT_EQ(kBusy.code, Code::kLimit) << "which versions before this one know";
  EXPECT_EQ(kBusy.detail, "busy, ask again after 40 ms: a limit is reached (tenant calls)");
  EXPECT_EQ(BusyIn(kBusy), 40U);
  // As a client's greeting repeats it.
  EXPECT_EQ(BusyIn({.code = Code::kLimit, .detail = "10.0.0.1:7400: " + kBusy.detail}), 40U);
}

TEST(BusyTest, OtherErrorsAreNotBusy) {
  EXPECT_FALSE(BusyIn({.code = Code::kLimit, .detail = "too many calls are waiting"}));
  EXPECT_FALSE(BusyIn({.code = Code::kUnavailable, .detail = kBusy.detail}));
  EXPECT_FALSE(BusyIn({.code = Code::kLimit, .detail = "busy, ask again after a while"}));
  EXPECT_FALSE(BusyIn({.code = Code::kLimit, .detail = "busy, ask again after 40"}));
}

TEST(BusyTest, AServerCannotMakeItsClientsWaitForEver) {
  EXPECT_EQ(BusyIn({.code = Code::kLimit, .detail = "busy, ask again after 4000000 ms"}),
            static_cast<std::uint32_t>(CallLimits::kMostRetryMs));
}

TEST(BusyTest, CallersThatWereRefusedTogetherComeBackOneByOne) {
  std::set<std::int64_t> moments;
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t wait_ns = RetryNs(40, random.Next());
    EXPECT_GE(wait_ns, 40 * kMillisecond) << "not before the server said";
    EXPECT_LE(wait_ns, 60 * kMillisecond);
    moments.insert(wait_ns / kMillisecond);
  }
  EXPECT_GE(moments.size(), 20U) << "each millisecond of that";
}

TEST(BusyTest, AnInterruptedCallDoesNotWaitUntilItMayAskAgain) {
  AskedInterrupt interrupt(/*ends_at=*/1);
  const Clock& clock = SystemClock::Instance();
  const std::int64_t began_ns = clock.NowNs();
  EXPECT_FALSE(WaitWhileBusy(400'000, began_ns + 4000 * kSecond, clock));
  EXPECT_LT(clock.NowNs() - began_ns, 300 * kSecond);
}

TEST(BackoffTest, WaitsDoubleUpToTheLongestAndDiffer) {
  Backoff backoff(10, 100, /*seed=*/7);
  const std::vector<std::pair<std::int64_t, std::int64_t>> ranges = {
      {5, 10}, {10, 20}, {20, 40}, {40, 80}, {50, 100}, {50, 100}};
  for (const auto& [least, most] : ranges) {
    const std::int64_t wait = backoff.NextNs();
    EXPECT_GE(wait, least);
    EXPECT_LE(wait, most);
  }
  backoff.Reset();
  EXPECT_LE(backoff.NextNs(), 10);
  Backoff another(1000, 1000, 8);
  Backoff third(1000, 1000, 9);
  EXPECT_NE(another.NextNs(), third.NextNs());
}

}  // namespace
}  // namespace kvcove::rpc
