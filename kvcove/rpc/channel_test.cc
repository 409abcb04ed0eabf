// SPDX-License-Identifier: Apache-2.0
// Kept connections of a channel: used again, replaced when the server ended them.
#include "kvcove/rpc/channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/base/log.h"
#include "kvcove/rpc/fake_leader_source.h"
#include "kvcove/rpc/server.h"

namespace kvcove::rpc {
namespace {

// Answers with the request's body; the method kReset is refused, and kGoodbye closes.
class Echo final : public Handler {
 public:
  void OnOpen(ConnectionId, const Peer&) override { ++opened; }
  void OnRequest(ConnectionId, wire::Method method, std::span<const std::byte> body,
                 std::int64_t /*deadline_ns*/, Responder respond) override {
    Reply reply{.body = std::string(reinterpret_cast<const char*>(body.data()), body.size())};
    if (method == wire::Method::kReset) reply.code = Code::kNoSpace;
    if (method == wire::Method::kGoodbye) reply.close = true;
    respond(std::move(reply));
  }
  void OnClose(ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(ConnectionId) const override { return true; }
  std::atomic<int> opened{0};
};

class TcpChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    Start({.host = "127.0.0.1", .port = 0});
  }
  void Start(const Address& address) {
    ServerOptions options;
    options.listen = address;
    auto server = Server::Open(options, echo_);
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    EXPECT_TRUE(server_->Start());
  }
  static Result<std::string> Call(TcpChannel& channel, const std::string& body,
                                  wire::Method method = wire::Method::kLookup) {
    return channel.Call(method, std::as_bytes(std::span(body)),
                        SystemClock::Instance().NowNs() + 60 * kSecond);
  }

  Echo echo_;
  std::unique_ptr<Server> server_;
};

TEST_F(TcpChannelTest, OneConnectionServesCallAfterCall) {
  TcpChannel channel(server_->address(), {});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(*Call(channel, std::to_string(i)), std::to_string(i));
  EXPECT_EQ(echo_.opened, 1);
}

TEST_F(TcpChannelTest, AnErrorOfTheServerLeavesTheConnectionUsable) {
  TcpChannel channel(server_->address(), {});
  const auto refused = Call(channel, "full", wire::Method::kReset);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(refused.error().detail, "full");
  EXPECT_EQ(*Call(channel, "next"), "next");
  EXPECT_EQ(echo_.opened, 1);
}

TEST_F(TcpChannelTest, AConnectionThatEndedWhileItWasKeptIsReplaced) {
  TcpChannel channel(server_->address(), {});
  EXPECT_EQ(*Call(channel, "bye", wire::Method::kGoodbye), "bye");
  EXPECT_EQ(*Call(channel, "again"), "again");
  EXPECT_EQ(echo_.opened, 2);
}

TEST_F(TcpChannelTest, AServerThatWasStartedAgainIsUsedAgain) {
  TcpChannel channel(server_->address(), {});
  EXPECT_EQ(*Call(channel, "one"), "one");
  const Address address = server_->address();
  server_.reset();
  EXPECT_EQ(Call(channel, "nobody").error().code, Code::kUnavailable);
  Start(address);
  EXPECT_EQ(*Call(channel, "two"), "two");
}

// Answers "not the leader; the leader is ..." or, frozen, nothing.
class Follower final : public Handler {
 public:
  void OnOpen(ConnectionId, const Peer&) override {}
  void OnRequest(ConnectionId, wire::Method method, std::span<const std::byte> /*body*/,
                 std::int64_t /*deadline_ns*/, Responder respond) override {
    if (frozen && method != wire::Method::kHello) {
      held = std::move(respond);
      ++waiting;
      return;
    }
    respond(method == wire::Method::kHello ? Reply() : ErrorReply(NotTheLeader(leader)));
  }
  void OnClose(ConnectionId) override {}
  void OnProcessGone(std::uint64_t) override {}
  bool Admitted(ConnectionId) const override { return true; }
  std::string leader;
  std::atomic<bool> frozen{false};
  std::atomic<int> waiting{0};
  Responder held;
};

class LeaderChannelTest : public TcpChannelTest {
 protected:
  void SetUp() override {
    TcpChannelTest::SetUp();
    follower_.leader = server_->address().ToString();
    ServerOptions options;
    options.listen = LoopbackAddress(0);
    follower_server_ = std::move(*Server::Open(options, follower_));
    EXPECT_TRUE(follower_server_->Start());
  }
  Addresses FollowerFirst() const {
    return Addresses({follower_server_->address(), server_->address()});
  }
  Follower follower_;
  std::unique_ptr<Server> follower_server_;
};

TEST_F(LeaderChannelTest, FindsTheLeaderAndStaysThere) {
  TcpChannel channel(FollowerFirst(), {});
  EXPECT_EQ(*Call(channel, "one"), "one");
  EXPECT_EQ(channel.address(), server_->address());
  EXPECT_EQ(*Call(channel, "two"), "two");
}

// Its reset may wait a minute, and nobody else's call fails at the frozen one.
TEST_F(LeaderChannelTest, WhatWaitsAtAFrozenLeaderGoesOnAtTheOneThatASourceNames) {
  follower_.frozen = true;
  const auto source = std::make_shared<FakeLeaderSource>(follower_server_->address());
  TcpChannel channel(Addresses(source), {});
  std::thread waits([&] { EXPECT_EQ(*Call(channel, "reset"), "reset"); });
  while (follower_.waiting == 0) std::this_thread::yield();
  source->Name(server_->address());
  EXPECT_EQ(*Call(channel, "probe"), "probe");
  waits.join();
  follower_.held(Reply());
}

TEST_F(LeaderChannelTest, GoesOnWhenTheLeaderIsGone) {
  TcpChannel channel(Addresses({server_->address(), follower_server_->address()}), {});
  EXPECT_EQ(*Call(channel, "one"), "one");
  const Address address = server_->address();
  server_.reset();
  const auto nobody = Call(channel, "two");
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, Code::kUnavailable);
  EXPECT_FALSE(nobody.error().answered) << "no master has answered for the pool";
  Start(address);
  EXPECT_EQ(*Call(channel, "three"), "three");
}

// A pod that is being started again has no name for a while.
TEST_F(LeaderChannelTest, GoesOnWhenTheDnsLacksTheMastersName) {
  const Address unknown{.host = "no.such.host.invalid", .port = 7400};
  TcpChannel channel(Addresses({unknown, server_->address()}), {});
  EXPECT_EQ(Call(channel, "one").value_or("nothing"), "one");
  EXPECT_EQ(channel.address(), server_->address());
}

TEST_F(LeaderChannelTest, ANameThatTheDnsLacksIsNoRefusal) {
  TcpChannel channel(Address{.host = "no.such.host.invalid", .port = 7400}, {});
  const auto reply = Call(channel, "one");
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Code::kUnavailable);
  EXPECT_FALSE(reply.error().answered);
}

TEST_F(LeaderChannelTest, ACallThatWaitsAtAFrozenMasterGoesOnAtTheNext) {
  TcpChannel channel(FollowerFirst(), {});
  follower_.frozen = true;
  Result<std::string> waited = Fail(Code::kInternal, "");
  std::thread patient([&] { waited = Call(channel, "patient"); });
  while (follower_.waiting == 0) std::this_thread::yield();
  // Another call gives up; what waits there follows it to the leader.
  const std::int64_t began = SystemClock::Instance().NowNs();
  EXPECT_FALSE(channel.Call(wire::Method::kLookup, {}, began + 200 * kMillisecond));
  patient.join();
  EXPECT_EQ(waited.value_or("nothing"), "patient");
  EXPECT_LT(SystemClock::Instance().NowNs() - began, 20 * kSecond);
}

// The GIL may be away for longer than the call has.
TEST_F(LeaderChannelTest, AnAnswerThatComesDuringALookComesInTime) {
  TcpChannel channel(follower_server_->address(), {});
  follower_.frozen = true;
  const Clock& clock = SystemClock::Instance();
  const std::int64_t deadline_ns = clock.NowNs() + kSecond;
  bool came = false;
  AskedInterrupt interrupt(/*ends_at=*/0, [&] {
    if (follower_.waiting == 0 || came || clock.NowNs() > deadline_ns) return;
    came = true;
    follower_.held(Reply());
    std::this_thread::sleep_for(std::chrono::nanoseconds(deadline_ns - clock.NowNs() + kSecond));
  });
  const auto reply = channel.Call(wire::Method::kLookup, {}, deadline_ns);
  if (came) {  // else the machine stood still until the deadline
    EXPECT_TRUE(reply) << reply.error().ToString();
  }
}

TEST_F(LeaderChannelTest, AnInterruptedCallMovesNobody) {
  TcpChannel channel(FollowerFirst(), {});
  follower_.frozen = true;
  AskedInterrupt interrupt(/*ends_at=*/3);
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
  EXPECT_FALSE(channel.Call(wire::Method::kLookup, {}, deadline_ns));
  EXPECT_TRUE(Interrupt::Ended());
  EXPECT_EQ(channel.address(), follower_server_->address());
}

TEST_F(LeaderChannelTest, AnImpatientCallMovesNobody) {
  follower_.frozen = true;
  const Clock& clock = SystemClock::Instance();
  std::int64_t took_ns = 0;
  do {  // where the machine stood still the call has waited long
    TcpChannel channel(FollowerFirst(), {});
    const std::int64_t began_ns = clock.NowNs();
    EXPECT_FALSE(channel.Call(wire::Method::kLookup, {}, began_ns + 20 * kMillisecond));
    took_ns = clock.NowNs() - began_ns;
    if (took_ns < 50 * kMillisecond) {
      EXPECT_EQ(channel.address(), follower_server_->address());
    }
  } while (took_ns >= 50 * kMillisecond);
}

}  // namespace
}  // namespace kvcove::rpc
