// SPDX-License-Identifier: Apache-2.0
// Batches of exchanges over endpoints that answer, fail, are late, or cannot be stopped.
#include <gtest/gtest.h>

#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/transport/landing.h"
#include "kvcove/transport/peer.h"

namespace kvcove::transport {
namespace {

enum class Ending : std::uint8_t { kAnswer, kError, kNever };

struct Behaviour {
  Ending ending = Ending::kAnswer;
  int advances = 3;           // until it ends
  bool stops_at_once = true;  // when it is aborted
  Code refuses = Code::kOk;   // to start
};

// Time passes only when somebody waits or looks.
class FakeTransport final : public Transport {
 public:
  explicit FakeTransport(FakeClock& clock) : clock_(clock) {}
  std::string_view name() const override { return "fake"; }
  std::shared_ptr<Peer> Connect(const rpc::Address&, const PeerOptions&, const Clock&) override {
    return nullptr;
  }
  Result<std::unique_ptr<Server>> Serve(const ServerOptions&, rpc::Gate&, Service&,
                                        const Clock&) override {
    return Fail(Code::kInternal, "these tests have no server");
  }
  Result<std::unique_ptr<Registered>> Register(std::span<std::byte>) override {
    return std::unique_ptr<Registered>();
  }
  void Wait(std::span<Transfer* const> transfers, std::int64_t most_ns) override {
    ++waits;
    waited_for = transfers.size();
    clock_.AdvanceNs(most_ns);
    if (signal_at == waits) Interrupt::LookNow();
  }
  int signal_at = 0;  // the wait that a signal interrupts
  int waits = 0;
  std::size_t waited_for = 0;
  std::function<void()> on_quiet;  // of the transfer that could not be stopped
  int aborted = 0;

 private:
  FakeClock& clock_;
};

class FakeTransfer final : public Transfer {
 public:
  FakeTransfer(FakeTransport& transport, FakeClock& clock, Exchange& exchange,
               const Behaviour& behaviour)
      : transport_(transport),
        clock_(clock),
        exchange_(exchange),
        behaviour_(behaviour),
        left_(behaviour.advances) {}
  bool done() const override { return done_; }
  bool Advance() override {
    clock_.AdvanceNs(kMicrosecond);
    if (behaviour_.ending == Ending::kNever) return false;
    if (--left_ > 0) return true;
    done_ = true;
    exchange_.status = behaviour_.ending == Ending::kAnswer ? Status() : Fail(Code::kDenied, "no");
    return true;
  }
  bool Abort() override {
    ++transport_.aborted;
    if (!behaviour_.stops_at_once) transport_.on_quiet = exchange_.on_quiet;
    return behaviour_.stops_at_once;
  }

 private:
  FakeTransport& transport_;
  FakeClock& clock_;
  Exchange& exchange_;
  const Behaviour behaviour_;
  int left_;
  bool done_ = false;
};

class FakeEndpoint final : public Endpoint {
 public:
  FakeEndpoint(FakeTransport& transport, FakeClock& clock, const Behaviour& behaviour)
      : transport_(transport), clock_(clock), behaviour_(behaviour) {}
  Transport& transport() override { return transport_; }
  Result<std::unique_ptr<Transfer>> Start(Exchange& exchange, std::int64_t,
                                          std::int64_t doubt_until_ns) override {
    doubted_until = doubt_until_ns;
    if (behaviour_.refuses != Code::kOk) return Fail(behaviour_.refuses, "refused");
    return std::make_unique<FakeTransfer>(transport_, clock_, exchange, behaviour_);
  }
  std::int64_t doubted_until = 0;

 private:
  FakeTransport& transport_;
  FakeClock& clock_;
  const Behaviour behaviour_;
};

class RunTest : public testing::Test {
 protected:
  FakeEndpoint& Add(FakeTransport& transport, const Behaviour& behaviour) {
    endpoints_.push_back(std::make_unique<FakeEndpoint>(transport, clock_, behaviour));
    exchanges_.emplace_back();
    exchanges_.back().to = endpoints_.back().get();
    return *endpoints_.back();
  }
  void Go() { transport::Run(exchanges_, clock_.NowNs() + 10 * kMillisecond, clock_); }
  Code CodeOf(std::size_t i) const {
    return exchanges_[i].status ? Code::kOk : exchanges_[i].status.error().code;
  }

  FakeClock clock_;
  FakeTransport one_{clock_};
  FakeTransport other_{clock_};
  std::vector<std::unique_ptr<FakeEndpoint>> endpoints_;
  std::vector<Exchange> exchanges_;
};

TEST_F(RunTest, EachExchangeEndsInItsOwnWay) {
  Add(one_, {});
  Add(one_, {.ending = Ending::kError});
  const FakeEndpoint& last = Add(one_, {.refuses = Code::kUnavailable});
  const std::int64_t began_ns = clock_.NowNs();
  Go();
  EXPECT_EQ(CodeOf(0), Code::kOk);
  EXPECT_EQ(CodeOf(1), Code::kDenied);
  EXPECT_EQ(CodeOf(2), Code::kUnavailable);
  EXPECT_EQ(last.doubted_until, began_ns + 10 * kMillisecond) << "all of a batch share it";
  EXPECT_EQ(one_.aborted, 0);
}

TEST_F(RunTest, WhatIsLateIsStoppedAndNothingLandsAnyMore) {
  Add(one_, {.ending = Ending::kNever});
  Add(one_, {});
  Go();
  EXPECT_EQ(CodeOf(0), Code::kTimeout);
  EXPECT_EQ(CodeOf(1), Code::kOk);
  EXPECT_EQ(one_.aborted, 1);
  EXPECT_GT(one_.waits, 0);
  EXPECT_EQ(one_.waited_for, 1U) << "what has ended is not waited for";
}

TEST_F(RunTest, AnInterruptedCallStopsItsTransfersAtOnce) {
  Add(one_, {.ending = Ending::kNever});
  Add(one_, {});
  one_.signal_at = 1;
  AskedInterrupt interrupt(/*ends_at=*/1);
  const std::int64_t began_ns = clock_.NowNs();
  transport::Run(exchanges_, began_ns + 600 * kSecond, clock_);
  EXPECT_LT(clock_.NowNs() - began_ns, 300 * kSecond);
  EXPECT_EQ(CodeOf(0), Code::kTimeout);
  EXPECT_EQ(CodeOf(1), Code::kOk);
  EXPECT_EQ(one_.aborted, 1);
}

TEST_F(RunTest, WhatCannotBeStoppedIsBusyUntilItsTransportSaysSo) {
  Add(one_, {.ending = Ending::kNever, .stops_at_once = false});
  bool quiet = false;
  exchanges_[0].on_quiet = [&] { quiet = true; };
  Go();
  EXPECT_EQ(CodeOf(0), Code::kBufferBusy);
  EXPECT_FALSE(quiet);
  one_.on_quiet();
  EXPECT_TRUE(quiet);
}

TEST_F(RunTest, TheCallOfThisThreadIsBusyWithWhatCannotBeStopped) {
  Add(one_, {.ending = Ending::kNever, .stops_at_once = false});
  Add(other_, {.ending = Ending::kNever});
  bool told = false;
  exchanges_[0].on_quiet = [&] { told = true; };
  const auto landing = std::make_shared<Landing>();
  {
    const Landing::Scope scope(landing);
    Go();
  }
  EXPECT_EQ(CodeOf(0), Code::kBufferBusy);
  EXPECT_TRUE(landing->busy());
  bool quiet = false;
  landing->Then([&] { quiet = true; });
  EXPECT_FALSE(quiet);
  one_.on_quiet();
  EXPECT_TRUE(told);
  EXPECT_TRUE(quiet);
}

TEST_F(RunTest, NoTransportKeepsAnotherOnesTransfersWaiting) {
  Add(one_, {.ending = Ending::kNever});
  Add(other_, {.ending = Ending::kNever});
  Go();
  EXPECT_GE(one_.waits, 40) << "short waits, in turn, until the deadline";
  EXPECT_LE(std::abs(one_.waits - other_.waits), 1);
}

}  // namespace
}  // namespace kvcove::transport
