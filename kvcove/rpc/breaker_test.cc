// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/breaker.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcove::rpc {
namespace {

using Change = Breaker::Change;
using Outcome = Breaker::Outcome;

class BreakerTest : public testing::Test {
 protected:
  // A call that ends when it has taken `took_ns`, or at its deadline.
  Change Call(std::int64_t budget_ns, std::int64_t took_ns, Outcome outcome = Outcome::kAnswered) {
    const auto pass = breaker_.Begin(clock_.NowNs() + budget_ns);
    EXPECT_TRUE(pass) << "the call fails at once";
    if (!pass) return Change::kNone;
    const std::int64_t given_ns = pass->until_ns - clock_.NowNs();
    if (outcome == Outcome::kAnswered && took_ns > given_ns) outcome = Outcome::kMissed;
    clock_.AdvanceNs(std::min(took_ns, given_ns));
    return breaker_.End(*pass, outcome);
  }
  Change MissedCall(std::int64_t budget_ns) { return Call(budget_ns, budget_ns, Outcome::kMissed); }
  // How long the next call would be given; 0: it fails at once.
  std::int64_t Given(std::int64_t budget_ns = kSecond) {
    const auto pass = breaker_.Begin(clock_.NowNs() + budget_ns);
    if (!pass) return 0;
    breaker_.End(*pass, Outcome::kMissed);
    return pass->until_ns - clock_.NowNs();
  }
  // A peer that is broken for the rest of the test.
  void Break() {
    MissedCall(kSecond);
    ASSERT_EQ(MissedCall(10 * kMillisecond), Change::kBroken);
  }

  FakeClock clock_;
  Breaker breaker_{clock_};
};

TEST_F(BreakerTest, OneImpatientCallChangesNothingForOthers) {
  EXPECT_EQ(MissedCall(5 * kMillisecond), Change::kNone);
  EXPECT_EQ(Given(), kSecond);
  EXPECT_EQ(breaker_.ProbeDueNs(), Breaker::kNever);
}

TEST_F(BreakerTest, ImpatientCallsAddUpWhileNothingIsHeard) {
  for (int i = 1; i < 50; ++i) ASSERT_EQ(MissedCall(5 * kMillisecond), Change::kNone) << i;
  EXPECT_EQ(MissedCall(5 * kMillisecond), Change::kSuspected);
  EXPECT_EQ(Given(), 10 * kMillisecond);
}

TEST_F(BreakerTest, AnAnswerForgetsTheSilenceBefore) {
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(MissedCall(5 * kMillisecond), Change::kNone);
    if (i % 30 == 0) Call(kSecond, kMillisecond);
  }
}

TEST_F(BreakerTest, CallsSideBySideCountOnce) {
  std::vector<Breaker::Pass> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(*breaker_.Begin(clock_.NowNs() + kSecond));
  clock_.AdvanceNs(5 * kMillisecond);
  for (const Breaker::Pass& call : calls) {
    ASSERT_EQ(breaker_.End(call, Outcome::kMissed), Change::kNone);
  }
  EXPECT_EQ(Given(), kSecond);
}

TEST_F(BreakerTest, TheTimeBetweenCallsIsNoSilence) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(MissedCall(5 * kMillisecond), Change::kNone);
    clock_.AdvanceNs(3600 * kSecond);
  }
}

TEST_F(BreakerTest, APeerThatIsUsuallySlowIsGivenMoreTime) {
  for (int i = 0; i < 100; ++i) Call(kSecond, 100 * kMillisecond);
  EXPECT_EQ(MissedCall(700 * kMillisecond), Change::kNone);
  EXPECT_EQ(Given(), kSecond);
  EXPECT_EQ(MissedCall(200 * kMillisecond), Change::kSuspected);
  EXPECT_EQ(Given(), 50 * kMillisecond) << "a bound for probes";
}

TEST_F(BreakerTest, OneLateAnswerIsNotTheUsual) {
  for (int i = 0; i < 10; ++i) Call(kSecond, kMillisecond / 10);
  Call(kSecond, 900 * kMillisecond);
  MissedCall(kSecond);
  EXPECT_EQ(Given(), 10 * kMillisecond);
}

TEST_F(BreakerTest, AnAnswerThatTeachesNothingLeavesTheUsualLatency) {
  for (int i = 0; i < 100; ++i) {
    const auto pass = breaker_.Begin(clock_.NowNs() + kSecond);
    clock_.AdvanceNs(900 * kMillisecond);
    breaker_.End(*pass, Outcome::kAnswered, /*teaches=*/false);
  }
  EXPECT_EQ(MissedCall(250 * kMillisecond), Change::kSuspected);
}

TEST_F(BreakerTest, ACallThatStillWaitsWarnsTheOthers) {
  const auto waiting = breaker_.Begin(clock_.NowNs() + 10 * kSecond);
  clock_.AdvanceNs(kSecond - 1);
  const auto another = breaker_.Begin(clock_.NowNs() + kSecond);
  EXPECT_EQ(another->until_ns, clock_.NowNs() + kSecond) << "it may be answered yet";
  breaker_.Heard();
  breaker_.End(*another, Outcome::kAnswered);
  clock_.AdvanceNs(kSecond);
  EXPECT_EQ(Given(), 10 * kMillisecond);
  breaker_.Heard();
  EXPECT_EQ(Given(), kSecond) << "its answer is on the way";
  EXPECT_EQ(breaker_.End(*waiting, Outcome::kAnswered), Change::kNone);
}

TEST_F(BreakerTest, AFrozenPeerCostsEachCallTenMillisecondsAtMost) {
  EXPECT_EQ(MissedCall(kSecond), Change::kSuspected);
  EXPECT_FALSE(breaker_.broken());
  const std::int64_t began_ns = clock_.NowNs();
  EXPECT_EQ(Call(kSecond, kSecond), Change::kBroken);
  EXPECT_EQ(clock_.NowNs() - began_ns, 10 * kMillisecond);
  EXPECT_TRUE(breaker_.broken());
  int asked = 0;
  for (int i = 0; i < 10'000; ++i) {
    const auto pass = breaker_.Begin(clock_.NowNs() + kSecond);
    if (!pass) {
      clock_.AdvanceNs(kMillisecond / 10);
      continue;
    }
    ++asked;
    EXPECT_LE(pass->until_ns - clock_.NowNs(), 10 * kMillisecond);
    clock_.AdvanceNs(pass->until_ns - clock_.NowNs());
    EXPECT_EQ(breaker_.End(*pass, Outcome::kMissed), Change::kNone);
  }
  // After 5, 10, 20, 40, 80 and 160 ms, then every 250.
  EXPECT_GE(asked, 7);
  EXPECT_LE(asked, 9);
}

TEST_F(BreakerTest, TheFirstAnswerMends) {
  Break();
  clock_.AdvanceNs(5 * kMillisecond);
  EXPECT_EQ(Call(kSecond, kMillisecond), Change::kMended);
  EXPECT_FALSE(breaker_.broken());
  EXPECT_EQ(Given(), kSecond);
  EXPECT_EQ(breaker_.ProbeDueNs(), Breaker::kNever);
}

TEST_F(BreakerTest, TheSuspectsAnswerIsNoNews) {
  MissedCall(kSecond);
  EXPECT_EQ(Call(kSecond, kMillisecond), Change::kNone);
  EXPECT_EQ(Given(), kSecond);
}

TEST_F(BreakerTest, ManyCallsMayAskASuspectAndOneABrokenPeer) {
  MissedCall(kSecond);
  std::vector<Breaker::Pass> calls;
  for (int i = 0; i < 10; ++i) {
    const auto pass = breaker_.Begin(clock_.NowNs() + kSecond);
    ASSERT_TRUE(pass);
    calls.push_back(*pass);
  }
  clock_.AdvanceNs(10 * kMillisecond);
  EXPECT_EQ(breaker_.End(calls[0], Outcome::kMissed), Change::kBroken);
  for (std::size_t i = 1; i < calls.size(); ++i) {
    EXPECT_EQ(breaker_.End(calls[i], Outcome::kMissed), Change::kNone);
  }
  clock_.AdvanceNs(kSecond);
  const auto one = breaker_.Begin(clock_.NowNs() + kSecond);
  ASSERT_TRUE(one);
  EXPECT_FALSE(breaker_.Begin(clock_.NowNs() + kSecond));
  breaker_.End(*one, Outcome::kAnswered);
}

TEST_F(BreakerTest, ARefusalIsEvidenceAtOnce) {
  EXPECT_EQ(Call(kSecond, 0, Outcome::kLost), Change::kSuspected);
  EXPECT_EQ(Call(kSecond, 0, Outcome::kLost), Change::kBroken);
  EXPECT_EQ(Given(), 0);
}

TEST_F(BreakerTest, ACallWithoutTimeToSpareDoesNotBreakASuspect) {
  MissedCall(kSecond);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(MissedCall(5 * kMillisecond), Change::kNone);
  EXPECT_FALSE(breaker_.broken());
}

TEST_F(BreakerTest, TheBackgroundProbesSoonAndThenLessOften) {
  EXPECT_EQ(MissedCall(kSecond), Change::kSuspected);
  std::vector<std::int64_t> pauses_ms;
  for (int i = 0; i < 8; ++i) {
    const std::int64_t pause_ns = breaker_.ProbeDueNs() - clock_.NowNs();
    pauses_ms.push_back(pause_ns / kMillisecond);
    clock_.AdvanceNs(pause_ns);
    const Breaker::Pass probe = breaker_.BeginProbe(clock_.NowNs() + 50 * kMillisecond);
    clock_.AdvanceNs(50 * kMillisecond);
    EXPECT_EQ(breaker_.End(probe, Outcome::kMissed), i == 0 ? Change::kBroken : Change::kNone);
  }
  EXPECT_EQ(pauses_ms, (std::vector<std::int64_t>{5, 5, 10, 20, 40, 80, 160, 250}));
  EXPECT_EQ(breaker_.End(breaker_.BeginProbe(Breaker::kNever), Outcome::kAnswered),
            Change::kMended);
}

}  // namespace
}  // namespace kvcove::rpc
