// SPDX-License-Identifier: Apache-2.0
// A peer's connections: kept after an exchange that was answered, never after one that was not.
#include "kvcove/transport/tcp/peer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "kvcove/base/log.h"
#include "kvcove/transport/tcp/server.h"

namespace kvcove::transport::tcp {
namespace {

// Answers a get at once, and a put never.
class OneAnswer final : public Service {
 public:
  std::unique_ptr<Visit> Open() override {
    ++visits;
    return std::make_unique<OneVisit>(*this);
  }
  std::atomic<int> visits{0};
  std::atomic<std::int64_t> deadline_ns{-1};  // of the last call

 private:
  class Answer final : public Served {
   public:
    explicit Answer(bool answers) : answers_(answers) {}
    Step Next() override {
      if (answers_) return ReplyStep(Code::kOk, {});
      return {.kind = Step::Kind::kWait,
              .until_ns = SystemClock::Instance().NowNs() + 60 * kSecond};
    }
    void Received(std::uint64_t) override {}

   private:
    const bool answers_;
  };
  class OneVisit final : public Visit {
   public:
    explicit OneVisit(OneAnswer& service) : service_(service) {}
    std::unique_ptr<Served> Begin(const rpc::Caller&, wire::Method method,
                                  std::span<const std::byte>, std::int64_t deadline_ns,
                                  Wake) override {
      service_.deadline_ns = deadline_ns;
      return std::make_unique<Answer>(method != wire::Method::kDataPut);
    }

   private:
    OneAnswer& service_;
  };
};

class PeerTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    auto server = Server::Open({}, gate_, service_, clock());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
  }
  static const Clock& clock() { return SystemClock::Instance(); }
  static Code Call(Peer& peer, wire::Method method, std::int64_t for_ns = 5 * kSecond) {
    Exchange exchange;
    exchange.to = &peer;
    exchange.method = method;
    exchange.on_reply = [](std::span<const std::byte>) { return std::vector<Piece>(); };
    transport::Run({&exchange, 1}, clock().NowNs() + for_ns, clock());
    return exchange.status ? Code::kOk : exchange.status.error().code;
  }

  OneAnswer service_;
  rpc::Gate gate_{nullptr};
  std::unique_ptr<Server> server_;
};

TEST_F(PeerTest, AnAnsweredExchangeLeavesItsConnectionToTheNext) {
  Peer peer(server_->address(), {}, clock());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kOk);
  EXPECT_EQ(service_.visits, 1);
}

TEST_F(PeerTest, ALateExchangeEndsItsConnection) {
  Peer peer(server_->address(), {}, clock());
  EXPECT_EQ(Call(peer, wire::Method::kDataPut, 20 * kMillisecond), Code::kTimeout);
  EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kOk);
  EXPECT_EQ(service_.visits, 2) << "a late answer would be taken for another exchange's";
}

TEST_F(PeerTest, APeerThatIsGoneIsUnavailableAndUsedAgainAfterAProbe) {
  int doubts = 0;
  const rpc::Address address = server_->address();
  Peer peer(address, {}, clock(), [&] { ++doubts; });
  EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kOk);
  server_.reset();
  EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kUnavailable);
  EXPECT_GT(doubts, 0);
  auto server = Server::Open({.listen = address}, gate_, service_, clock());
  ASSERT_TRUE(server) << server.error().ToString();
  server_ = std::move(*server);
  peer.Probe();
  EXPECT_FALSE(peer.broken());
  EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kOk);
}

TEST_F(PeerTest, TheServiceLearnsHowLongItsCallerWaits) {
  Peer peer(server_->address(), {}, clock());
  const std::int64_t deadline_ns = clock().NowNs() + 20 * kSecond;
  ASSERT_TRUE(peer.channel().Call(wire::Method::kPin, {}, deadline_ns));
  // Both read the same clock here; milliseconds travel, and they are rounded up.
  EXPECT_GT(service_.deadline_ns, deadline_ns - kSecond);
  EXPECT_LT(service_.deadline_ns, deadline_ns + kSecond);
  EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kOk);
  EXPECT_EQ(service_.deadline_ns, 0) << "batches carry their budget themselves";
}

}  // namespace
}  // namespace kvcove::transport::tcp
