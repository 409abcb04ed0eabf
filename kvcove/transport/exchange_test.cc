// SPDX-License-Identifier: Apache-2.0
// The same service over every transport: the payload arrives whole, in order, and what goes wrong
// ends that exchange alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "kvcove/base/random.h"
#include "kvcove/transport/fake_late_transport.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/pick/transports.h"

namespace kvcove::transport {
namespace {

using testing::ElementsAre;

const Clock& TheClock() { return SystemClock::Instance(); }

// Takes the payload of a put, "N" bytes of it ("-N": unwanted), and answers with what it has taken;
// "error", "garbage" and "never" say what happens instead.
class EchoService final : public Service {
 public:
  std::unique_ptr<Visit> Open() override {
    ++visits;
    return std::make_unique<EchoVisit>(*this);
  }
  std::atomic<int> visits{0};
  std::atomic<int> ended_visits{0};
  std::atomic<int> running{0};
  std::atomic<std::uint64_t> most_at_once{0};

 private:
  class Echo final : public Served {
   public:
    Echo(EchoService& service, std::string head, Visit::Wake wake)
        : service_(service), head_(std::move(head)), wake_(std::move(wake)) {
      ++service_.running;
    }
    ~Echo() override { --service_.running; }
    Step Next() override {
      if (head_ == "error") return ReplyStep(Code::kNoSpace, "full");
      if (head_ == "garbage") return {};
      const std::int64_t bytes = std::atoll(head_.c_str());
      switch (turn_++) {
        case 0: {
          memory_.resize(static_cast<std::size_t>(std::abs(bytes)));
          Step step{.kind = Step::Kind::kReceive};
          // In two pieces.
          const std::uint64_t half = memory_.size() / 2;
          step.into = {
              {.data = bytes < 0 ? nullptr : memory_.data(), .size = half},
              {.data = bytes < 0 ? nullptr : memory_.data() + half, .size = memory_.size() - half}};
          return step;
        }
        case 1:
          return {.kind = Step::Kind::kAgain};
        case 2:
          if (head_ != "never") wake_();
          return {.kind = Step::Kind::kWait, .until_ns = TheClock().NowNs() + 20 * kSecond};
        default:
          break;
      }
      Step reply = ReplyStep(Code::kOk, std::to_string(received_));
      if (bytes > 0) reply.out = {{.data = memory_.data(), .size = memory_.size()}};
      return reply;
    }
    void Received(std::uint64_t bytes) override {
      const std::uint64_t at_once = bytes - received_;
      if (at_once > service_.most_at_once) service_.most_at_once = at_once;
      received_ = bytes;
    }

   private:
    EchoService& service_;
    const std::string head_;
    const Visit::Wake wake_;
    std::vector<std::byte> memory_;
    std::uint64_t received_ = 0;
    int turn_ = 0;
  };
  class EchoVisit final : public Visit {
   public:
    explicit EchoVisit(EchoService& service) : service_(service) {}
    ~EchoVisit() override { ++service_.ended_visits; }
    std::unique_ptr<Served> Begin(const rpc::Caller&, wire::Method method,
                                  std::span<const std::byte> head, std::int64_t /*deadline_ns*/,
                                  Wake wake) override {
      if (method != wire::Method::kDataPut) return nullptr;
      return std::make_unique<Echo>(
          service_, std::string(reinterpret_cast<const char*>(head.data()), head.size()),
          std::move(wake));
    }

   private:
    EchoService& service_;
  };
};

class ExchangeTest : public testing::TestWithParam<Transport*> {
 protected:
  void SetUp() override {
    auto server = GetParam()->Serve({.stall_ns = 20 * kSecond}, gate_, service_, TheClock());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    peer_ = GetParam()->Connect(server_->address(), {}, TheClock());
  }
  struct Call {
    std::string out;
    std::string in;
    std::string head;
    std::uint64_t arrived = 0;
  };
  Exchange Make(Call& call, const std::string& head) {
    Exchange exchange;
    exchange.to = peer_.get();
    exchange.method = wire::Method::kDataPut;
    exchange.head = head;
    exchange.out = {
        {.data = reinterpret_cast<const std::byte*>(call.out.data()), .size = call.out.size()}};
    exchange.on_reply = [&call](std::span<const std::byte> body) -> Result<std::vector<Piece>> {
      call.head.assign(reinterpret_cast<const char*>(body.data()), body.size());
      auto* to = reinterpret_cast<std::byte*>(call.in.data());
      // In pieces of 100,000.
      std::vector<Piece> into;
      for (std::size_t at = 0; at < call.in.size(); at += 100'000) {
        into.push_back({.data = to + at, .size = std::min(call.in.size() - at, 100'000UL)});
      }
      return into;
    };
    exchange.on_bytes = [&call](std::uint64_t bytes) {
      EXPECT_GT(bytes, call.arrived);
      call.arrived = bytes;
    };
    return exchange;
  }
  static std::int64_t Soon() { return TheClock().NowNs() + 20 * kSecond; }
  static std::string RandomBytes(std::size_t size) {
    Random random(size);
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.Next());
    return bytes;
  }

  EchoService service_;
  rpc::Gate gate_{nullptr};
  std::unique_ptr<Server> server_;
  std::shared_ptr<Peer> peer_;
};

TEST_P(ExchangeTest, PayloadOfEverySizeComesBackWhole) {
  std::vector<Call> calls(5);
  std::vector<Exchange> exchanges;
  const std::size_t sizes[] = {1, 1000, 99'999, 1'000'000, 9'000'000};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].out = RandomBytes(sizes[i]);
    calls[i].in.resize(sizes[i]);
    exchanges.push_back(Make(calls[i], std::to_string(sizes[i])));
  }
  transport::Run(exchanges, Soon(), TheClock());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_TRUE(exchanges[i].status) << exchanges[i].status.error().ToString();
    EXPECT_TRUE(calls[i].in == calls[i].out);
    EXPECT_EQ(calls[i].arrived, sizes[i]);
    EXPECT_EQ(calls[i].head, std::to_string(sizes[i]));
  }
  EXPECT_LE(service_.most_at_once, 1U << 20) << "so much may be hashed behind each receive";
}

TEST_P(ExchangeTest, UnwantedBytesAreTakenAndThrownAway) {
  Call call{.out = RandomBytes(300'000), .in = {}};
  Exchange exchange = Make(call, "-300000");
  transport::Run({&exchange, 1}, Soon(), TheClock());
  EXPECT_TRUE(exchange.status);
  EXPECT_EQ(call.head, "300000");
}

TEST_P(ExchangeTest, AnErrorOrGarbageEndsThatExchangeAlone) {
  std::vector<Call> calls(3);
  calls[2] = {.out = "hello", .in = "....."};
  std::vector<Exchange> exchanges = {Make(calls[0], "error"), Make(calls[1], "garbage"),
                                     Make(calls[2], "5")};
  transport::Run(exchanges, Soon(), TheClock());
  ASSERT_FALSE(exchanges[0].status);
  EXPECT_EQ(exchanges[0].status.error().code, Code::kNoSpace);
  EXPECT_EQ(exchanges[0].status.error().detail, "full");
  EXPECT_FALSE(exchanges[1].status);
  EXPECT_TRUE(exchanges[2].status);
  EXPECT_EQ(calls[2].in, "hello");
}

TEST_P(ExchangeTest, WhatIsLateHasEndedAtBothSides) {
  Call call{.out = "", .in = std::string(10, '.')};
  Exchange exchange = Make(call, "never");
  transport::Run({&exchange, 1}, TheClock().NowNs() + 30 * kMillisecond, TheClock());
  ASSERT_FALSE(exchange.status);
  EXPECT_EQ(exchange.status.error().code, Code::kTimeout);
  EXPECT_EQ(call.in, "..........");
  // A socket's other side learns of it when the server ends, or when it wants to answer.
  server_->Stop();
  EXPECT_EQ(service_.running, 0);
  EXPECT_EQ(service_.visits, service_.ended_visits);
}

// Every transport of this build, and that of the other tests.
std::vector<Transport*> AllTransports() {
  static LateTransport late;
  std::vector<Transport*> all = Transports();
  all.push_back(&late);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Transports, ExchangeTest, testing::ValuesIn(AllTransports()),
                         [](const auto& test) { return std::string(test.param->name()); });

}  // namespace
}  // namespace kvcove::transport
