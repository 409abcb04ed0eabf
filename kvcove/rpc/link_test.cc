// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/link.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcove::rpc {
namespace {

// Answers as it is told to, and notes for how long it was asked.
class FakeChannel final : public wire::Channel {
 public:
  explicit FakeChannel(FakeClock& clock) : clock_(clock) {}
  Result<std::string> Call(wire::Method /*method*/, std::span<const std::byte> /*body*/,
                           std::int64_t deadline_ns) override {
    given_ns = deadline_ns - clock_.NowNs();
    ++calls;
    if (error == Code::kOk) return std::string("answer");
    if (error == Code::kTimeout) clock_.AdvanceNs(given_ns);
    return std::unexpected(Error{.code = error, .detail = {}, .answered = answered});
  }
  Code error = Code::kOk;
  bool answered = false;
  int calls = 0;
  std::int64_t given_ns = 0;

 private:
  FakeClock& clock_;
};

TEST(LinkTest, AGuardedCallAsksADeadPeerBrieflyAndThenNotAtAll) {
  FakeClock clock;
  FakeChannel inner(clock);
  std::vector<Breaker::Change> changes;
  Link link(inner,
            {.peer = "the master",
             .on_change = [&](Breaker::Change change) { changes.push_back(change); }},
            clock);
  wire::Channel& channel = link.channel(kGuarded);
  const auto call = [&] {
    return channel.Call(wire::Method::kLookup, {}, clock.NowNs() + kSecond);
  };
  EXPECT_EQ(*call(), "answer");
  inner.error = Code::kStale;  // an answer, too
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(call().error().code, Code::kStale);
  inner.error = Code::kTimeout;
  EXPECT_EQ(call().error().code, Code::kTimeout) << "its own deadline";
  EXPECT_EQ(call().error().code, Code::kUnavailable) << "not its own deadline";
  EXPECT_EQ(inner.given_ns, 10 * kMillisecond);
  const int calls = inner.calls;
  EXPECT_EQ(call().error().code, Code::kUnavailable);
  EXPECT_EQ(inner.calls, calls);
  clock.AdvanceNs(kSecond);
  inner.error = Code::kOk;
  EXPECT_EQ(*call(), "answer");
  EXPECT_EQ(changes,
            (std::vector<Breaker::Change>{Breaker::Change::kSuspected, Breaker::Change::kBroken,
                                          Breaker::Change::kMended}));
}

// A master whose control store is full refuses new namespaces, and looks up what it has.
TEST(LinkTest, APeerThatAnswersThatSomethingIsUnavailableIsTrusted) {
  FakeClock clock;
  FakeChannel inner(clock);
  Link link(inner, {.peer = "the master", .on_change = [](Breaker::Change) { FAIL(); }}, clock);
  wire::Channel& channel = link.channel(kGuarded);
  inner.answered = true;
  for (const Code code : {Code::kUnavailable, Code::kTimeout}) {
    for (int i = 0; i < 10; ++i) {
      inner.error = code;
      EXPECT_EQ(channel.Call(wire::Method::kRegister, {}, clock.NowNs() + kSecond).error().code,
                code);
      inner.error = Code::kOk;
      EXPECT_TRUE(channel.Call(wire::Method::kLookup, {}, clock.NowNs() + kSecond));
      EXPECT_EQ(inner.given_ns, kSecond);
    }
  }
}

// Answers "busy" so often, then well.
class BusyChannel final : public wire::Channel {
 public:
  Result<std::string> Call(wire::Method, std::span<const std::byte>, std::int64_t) override {
    ++calls;
    if (busy > 0) {
      --busy;
      return std::unexpected(
          BusyError({.refusal = Refusal::kTenantCalls, .retry_after_ms = retry_after_ms}));
    }
    return std::string("answer");
  }
  int calls = 0;
  int busy = 0;
  std::uint32_t retry_after_ms = 1;
};

TEST(LinkTest, ABusyServerIsAskedAgain) {
  BusyChannel channel;
  channel.busy = 3;
  Link link(channel, {.peer = "the master"}, SystemClock::Instance());
  wire::Channel& patient = link.channel(kPatient);
  const auto reply =
      patient.Call(wire::Method::kLookup, {}, SystemClock::Instance().NowNs() + 10 * kSecond);
  ASSERT_TRUE(reply);
  EXPECT_EQ(*reply, "answer");
  EXPECT_EQ(channel.calls, 4);
}

TEST(LinkTest, WhatOneCallerWasToldHoldsForAll) {
  BusyChannel channel;
  channel.busy = 1;
  channel.retry_after_ms = 300;
  FakeClock clock;
  Link link(channel, {.peer = "the master"}, clock);
  wire::Channel& patient = link.channel(kPatient);
  ASSERT_FALSE(patient.Call(wire::Method::kLookup, {}, clock.NowNs() + kMillisecond));
  // Nobody asks a server that would not read the call.
  clock.AdvanceNs(100 * kMillisecond);
  const auto reply = patient.Call(wire::Method::kLookup, {}, clock.NowNs() + kMillisecond);
  ASSERT_FALSE(reply);
  EXPECT_EQ(BusyIn(reply.error()), 200U) << "what is left of it";
  EXPECT_EQ(channel.calls, 1);
  clock.AdvanceNs(200 * kMillisecond);
  EXPECT_TRUE(patient.Call(wire::Method::kLookup, {}, clock.NowNs() + kMillisecond));
}

TEST(LinkTest, NobodyWaitsForWhatComesAfterTheDeadline) {
  BusyChannel channel;
  channel.busy = 1000;
  channel.retry_after_ms = 500;
  FakeClock clock;  // a caller that waits for it would wait for ever
  Link link(channel, {.peer = "the master"}, clock);
  wire::Channel& patient = link.channel(kPatient);
  const auto reply = patient.Call(wire::Method::kLookup, {}, clock.NowNs() + 5 * kMillisecond);
  ASSERT_FALSE(reply);
  EXPECT_EQ(BusyIn(reply.error()), 500U) << "the caller learns that the server is busy";
  EXPECT_EQ(channel.calls, 1);
}

TEST(LinkTest, ACallThatIsNeitherIsAskedOnceWhateverIsKnown) {
  BusyChannel channel;
  channel.busy = 1;
  channel.retry_after_ms = 300;
  FakeClock clock;
  Link link(channel, {.peer = "the master"}, clock);
  const std::int64_t deadline_ns = clock.NowNs() + kSecond;
  EXPECT_FALSE(link.Call({}, wire::Method::kLookup, {}, deadline_ns)) << "it does not wait";
  EXPECT_EQ(channel.calls, 1);
  EXPECT_TRUE(link.Call({}, wire::Method::kLookup, {}, deadline_ns)) << "and is not held back";
}

// A busy server answers, so the breaker trusts it; a dead one is not waited for.
TEST(LinkTest, AGuardedPatientCallWaitsForABusyServerOnly) {
  BusyChannel channel;
  channel.busy = 30;
  Link link(channel, {.peer = "the master", .on_change = [](Breaker::Change) { FAIL(); }},
            SystemClock::Instance());
  EXPECT_TRUE(link.Call(kPatientGuarded, wire::Method::kLookup, {},
                        SystemClock::Instance().NowNs() + 60 * kSecond));
  EXPECT_EQ(channel.calls, 31);
  EXPECT_FALSE(link.breaker().broken());
  FakeClock clock;
  FakeChannel dead(clock);
  dead.error = Code::kUnavailable;
  Link broken(dead, {.peer = "the master"}, clock);
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(broken.Call(kPatientGuarded, wire::Method::kLookup, {}, clock.NowNs() + kSecond));
  }
  EXPECT_TRUE(broken.breaker().broken());
  EXPECT_LT(dead.calls, 10);
}

// Look-ups that were told "busy" hold no reset back.
TEST(LinkTest, WhatGuardedCallsWereToldHoldsForThemAlone) {
  BusyChannel channel;
  channel.busy = 1;
  channel.retry_after_ms = 300;
  FakeClock clock;
  Link link(channel, {.peer = "the master"}, clock);
  const std::int64_t deadline_ns = clock.NowNs() + kMillisecond;
  EXPECT_FALSE(link.Call(kPatientGuarded, wire::Method::kLookup, {}, deadline_ns));
  EXPECT_FALSE(link.Call(kPatientGuarded, wire::Method::kLookup, {}, deadline_ns));
  EXPECT_EQ(channel.calls, 1);
  EXPECT_TRUE(link.Call(kPatient, wire::Method::kReset, {}, deadline_ns));
}

}  // namespace
}  // namespace kvcove::rpc
