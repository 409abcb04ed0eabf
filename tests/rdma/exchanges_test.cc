// SPDX-License-Identifier: Apache-2.0
// Exchanges whose payload moves by RDMA on real verbs, between the first and the last device of
// this host.
#include <gtest/gtest.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/transport/fake_one_value.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/transport/verbs/fabric.h"
#include "kvcove/transport/verbs/library.h"
#include "tests/becomes.h"

namespace kvcove::transport {
namespace {

constexpr std::size_t kBytes = 2 << 20;

class RdmaExchangesTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto library = verbs::VerbsOfProcess();
    ASSERT_TRUE(library) << library.error().ToString();
    const auto devices = (*library)->Devices();
    ASSERT_TRUE(devices && !devices->empty()) << "this host has no RDMA device";
    owners_ = Open(**library, devices->front());
    requesters_ = Open(**library, devices->back());
    ASSERT_TRUE(owners_ != nullptr && requesters_ != nullptr);
    owner_transport_ = WithRdma(*owners_, /*plaintext=*/false);
    requester_transport_ = WithRdma(*requesters_, /*plaintext=*/false);
    std::fill(service_.value.begin(), service_.value.end(), std::byte{1});
    auto server =
        owner_transport_->Serve({.memory = {std::span(service_.value)}}, gate_, service_, clock());
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = std::move(*server);
    registered_ = *requester_transport_->Register(buffer_);
    ASSERT_NE(registered_, nullptr);
    peer_ = requester_transport_->Connect(server_->address(), {}, clock());
  }
  static std::unique_ptr<verbs::Fabric> Open(verbs::Verbs& library, const std::string& device) {
    auto fabric = verbs::Fabric::Open(library, {.ports = {{.device = device}}}, clock());
    EXPECT_TRUE(fabric) << fabric.error().ToString();
    return fabric ? std::move(*fabric) : nullptr;
  }
  ~RdmaExchangesTest() override {
    peer_.reset();
    if (server_ != nullptr) server_->Stop();
  }
  static const Clock& clock() { return SystemClock::Instance(); }

  Exchange GetOf() {
    Exchange exchange;
    exchange.to = peer_.get();
    exchange.method = wire::Method::kDataGet;
    exchange.head = std::to_string(kBytes);
    exchange.on_reply = [this](std::span<const std::byte>) -> Result<std::vector<Piece>> {
      return std::vector<Piece>{{buffer_.data(), 1000}, {buffer_.data() + 1000, kBytes - 1000}};
    };
    return exchange;
  }
  Exchange PutOf() {
    Exchange exchange;
    exchange.to = peer_.get();
    exchange.method = wire::Method::kDataPut;
    exchange.head = std::to_string(kBytes);
    exchange.out = {{buffer_.data(), kBytes}};
    exchange.on_reply = [](std::span<const std::byte>) -> Result<std::vector<Piece>> {
      return std::vector<Piece>();
    };
    return exchange;
  }
  static Status Run(Exchange& exchange, std::int64_t for_ns = 60 * kSecond) {
    transport::Run({&exchange, 1}, clock().NowNs() + for_ns, clock());
    return exchange.status;
  }
  // Bytes of a socket arrive in several parts; those of the device are announced at once.
  bool GetsByLane() {
    int arrivals = 0;
    Exchange get = GetOf();
    get.on_bytes = [&](std::uint64_t) { ++arrivals; };
    const Status status = Run(get);
    EXPECT_TRUE(status) << status.error().ToString();
    return arrivals == 1;
  }
  void AwaitLane() {
    ASSERT_TRUE(Becomes([&] { return GetsByLane() && GetsByLane(); }));
  }

  std::unique_ptr<verbs::Fabric> owners_, requesters_;
  std::unique_ptr<Transport> owner_transport_, requester_transport_;
  OneValue service_{kBytes};
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kBytes);
  rpc::Gate gate_{nullptr};
  std::unique_ptr<Registered> registered_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<Peer> peer_;
};

TEST_F(RdmaExchangesTest, GetsAndPutsArriveWhole) {
  AwaitLane();
  EXPECT_EQ(buffer_, service_.value);
  for (std::size_t i = 0; i < kBytes; ++i) buffer_[i] = static_cast<std::byte>(i * 7);
  Exchange put = PutOf();
  const Status status = Run(put);
  ASSERT_TRUE(status) << status.error().ToString();
  EXPECT_EQ(service_.value, buffer_);
  std::fill(buffer_.begin(), buffer_.end(), std::byte{0});
  EXPECT_TRUE(GetsByLane());
  EXPECT_EQ(buffer_, service_.value);
}

// P5 through the whole transport: gets that are late, each at another moment.
TEST_F(RdmaExchangesTest, NothingLandsBehindQuiet) {
  std::mt19937 random{11};
  int rounds = 20;
  if (const char* const text = std::getenv("KVCOVE_RDMA_ROUNDS"); text != nullptr) {
    std::from_chars(text, text + std::strlen(text), rounds);
  }
  int busy = 0;
  for (int round = 0; round < rounds; ++round) {
    AwaitLane();
    std::fill(buffer_.begin(), buffer_.end(), std::byte{2});
    std::atomic<bool> quiet{false};
    Exchange get = GetOf();
    get.on_quiet = [&] { quiet = true; };
    const Status status = Run(get, static_cast<std::int64_t>(random() % 60) * kMillisecond);
    if (status) continue;  // in time
    if (status.error().code == Code::kBufferBusy) {
      ++busy;
      ASSERT_TRUE(Becomes([&] { return quiet.load(); }));
    }
    std::fill(buffer_.begin(), buffer_.end(), std::byte{7});
    SleepNs(50 * kMillisecond);
    EXPECT_EQ(std::count(buffer_.begin(), buffer_.end(), std::byte{7}),
              static_cast<std::ptrdiff_t>(kBytes))
        << round;
    EXPECT_TRUE(Becomes([&] { return service_.served == 0; }));
  }
  std::printf("late while the device was moving in %d of %d rounds\n", busy, rounds);
}

}  // namespace
}  // namespace kvcove::transport
