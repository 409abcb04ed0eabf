// SPDX-License-Identifier: Apache-2.0
// A peer's connections: kept after an exchange that was answered, never after one that was not.
#include "kvcove/transport/tcp/peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "kvcove/base/log.h"
#include "kvcove/rpc/address.h"
#include "kvcove/transport/tcp/server.h"
#include "tests/becomes.h"

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
  static Code Call(Peer& peer, wire::Method method, std::int64_t for_ns = 60 * kSecond) {
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

// ---- limits

// Takes payload, or sends it, as far as it is permitted.
class Permitted final : public Service {
 public:
  std::unique_ptr<Visit> Open() override { return std::make_unique<OneVisit>(*this); }
  static constexpr std::uint64_t kBytes = 300'000;
  std::atomic<int> begun{0};

 private:
  class OneVisit final : public Visit {
   public:
    explicit OneVisit(Permitted& service) : service_(service) {}
    std::unique_ptr<Served> Begin(const rpc::Caller&, wire::Method method,
                                  std::span<const std::byte>, std::int64_t, Wake) override {
      ++service_.begun;
      const std::uint64_t bytes = method == wire::Method::kDataPut ? kBytes : 0;
      if (const Status may = permit_(kBytes); !may) {
        return std::make_unique<Refused>(bytes, may.error());
      }
      return std::make_unique<Refused>(bytes, Error{.code = Code::kOk, .detail = {}});
    }
    std::optional<std::uint64_t> PayloadOf(wire::Method method,
                                           std::span<const std::byte>) const override {
      return method == wire::Method::kDataPut ? kBytes : 0;
    }
    void SetPermit(Permit permit) override { permit_ = std::move(permit); }

   private:
    Permitted& service_;
    Permit permit_;
  };
};

class LimitedPeerTest : public testing::Test {
 protected:
  void StartLimited(const rpc::CallLimitsOptions& limits) {
    SetLogLevel(LogLevel::kOff);
    admission_ = std::make_shared<rpc::CallLimits>(limits);
    server_ = *Server::Open({.admission = admission_}, gate_, service_, SystemClock::Instance());
  }
  Status Call(Peer& peer, wire::Method method) {
    Exchange exchange;
    exchange.to = &peer;
    exchange.method = method;
    if (method == wire::Method::kDataPut) exchange.out = {{payload_.data(), payload_.size()}};
    exchange.on_reply = [](std::span<const std::byte>) { return std::vector<Piece>(); };
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
    transport::Run({&exchange, 1}, until_ns, SystemClock::Instance());
    return exchange.status;
  }

  static void Await(const Status& busy) {
    const std::int64_t until_ns = SystemClock::Instance().NowNs() + 60 * kSecond;
    EXPECT_TRUE(rpc::WaitWhileBusy(*rpc::BusyIn(busy.error()), until_ns, SystemClock::Instance()));
  }

  // The server counts an exchange until it has sent the answer, which its caller may have by then.
  bool NothingInFlight() {
    return Becomes([&] { return admission_->Count(0).bytes == 0; });
  }

  const std::vector<std::byte> payload_ = std::vector<std::byte>(Permitted::kBytes);
  Permitted service_;
  rpc::Gate gate_{nullptr};
  std::shared_ptr<rpc::CallLimits> admission_;
  std::unique_ptr<Server> server_;
};

TEST_F(LimitedPeerTest, ACallBeyondTheLimitIsBusyAndItsPayloadIsThrownAway) {
  StartLimited({.connection = {.calls_per_second = 3}});
  Peer peer(server_->address(), {}, SystemClock::Instance());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Call(peer, wire::Method::kDataPut));
  const Status busy = Call(peer, wire::Method::kDataPut);
  ASSERT_FALSE(busy);
  EXPECT_TRUE(rpc::BusyIn(busy.error())) << busy.error().ToString();
  EXPECT_EQ(service_.begun, 3) << "the service hears nothing of it";
  EXPECT_FALSE(peer.broken()) << "it has answered";
  // Until then nobody asks it.
  EXPECT_FALSE(Call(peer, wire::Method::kDataPut));
  Await(busy);
  // The connection lives; its next call is served when there is room again.
  EXPECT_TRUE(Call(peer, wire::Method::kDataPut));
  EXPECT_EQ(server_->Connections().open, 1U);
  EXPECT_TRUE(NothingInFlight());
}

TEST_F(LimitedPeerTest, PayloadIsInFlightUntilTheExchangeIsOver) {
  StartLimited({.connection = {}, .all = {.bytes = Permitted::kBytes}, .reserve = 0});
  Peer peer(server_->address(), {}, SystemClock::Instance());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Call(peer, wire::Method::kDataGet)) << "alone, whatever its size";
    EXPECT_TRUE(NothingInFlight());
  }
  const auto other = admission_->Enter({});
  other->Hold(Permitted::kBytes);
  const Status busy = Call(peer, wire::Method::kDataPut);
  ASSERT_FALSE(busy);
  EXPECT_TRUE(rpc::BusyIn(busy.error())) << busy.error().ToString();
  other->End(Permitted::kBytes);
  Await(busy);
  EXPECT_TRUE(Call(peer, wire::Method::kDataPut));
}

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

// The caller's deadline may be nearer than the usual limit of a connect.
TEST_F(PeerTest, AConnectionIsReplacedByTheDeadline) {
  rpc::Address silent{.host = "127.0.0.1", .port = 0};
  const auto listener = rpc::ListenTcp(silent);  // accepts nobody
  ASSERT_TRUE(listener) << listener.error().ToString();
  Peer peer(silent, {}, clock(), {});
  std::int64_t least_ns = kSecond;
  for (int turn = 0; turn < 5; ++turn) {
    const std::int64_t began_ns = clock().NowNs();
    EXPECT_FALSE(peer.ConnectAgain(began_ns + 10 * kMillisecond));
    least_ns = std::min(least_ns, clock().NowNs() - began_ns);
  }
  EXPECT_LT(least_ns, 150 * kMillisecond);
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
  const std::int64_t took_ns = clock().NowNs() + 20 * kSecond - deadline_ns;
  // Both read the same clock here; milliseconds travel, and they are rounded up.
  EXPECT_GT(service_.deadline_ns, deadline_ns - kSecond);
  EXPECT_LT(service_.deadline_ns, deadline_ns + kSecond + took_ns);
  EXPECT_EQ(Call(peer, wire::Method::kDataGet), Code::kOk);
  EXPECT_EQ(service_.deadline_ns, 0) << "batches carry their budget themselves";
}

}  // namespace
}  // namespace kvcove::transport::tcp
