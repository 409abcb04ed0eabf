// SPDX-License-Identifier: Apache-2.0
// A transfer that cannot be stopped: both sides keep their memory until its bytes have landed.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvcove/transport/fake_late_transport.h"
#include "kvcove/transport/fake_values.h"
#include "kvcove/transport/landing.h"
#include "tests/becomes.h"

namespace kvcove::transport {
namespace {

class LateTransferTest : public testing::Test {
 protected:
  void SetUp() override {
    server_ = std::move(*late_.Serve({}, gate_, service_, clock_));
    peer_ = late_.Connect(server_->address(), {}, clock_);
    late_.HoldAfter(100);
  }
  // An exchange whose device stops after 100 bytes; the exchange is gone when this returns.
  Code RunLate() {
    Exchange exchange;
    exchange.to = peer_.get();
    exchange.head =
        wire::Encode(wire::DataGet{.token = {}, .keys = {"key"}, .room = {into_.size()}});
    exchange.on_reply = [this](std::span<const std::byte>) -> Result<std::vector<Piece>> {
      return std::vector<Piece>{
          {.data = reinterpret_cast<std::byte*>(into_.data()), .size = into_.size()}};
    };
    exchange.on_bytes = [this](std::uint64_t bytes) { arrived_ = bytes; };
    exchange.on_quiet = [this] { quiet_ = true; };
    transport::Run({&exchange, 1}, clock_.NowNs() + 20 * kMillisecond, clock_);
    return exchange.status ? Code::kOk : exchange.status.error().code;
  }

  const Clock& clock_ = SystemClock::Instance();
  LateTransport late_;
  FakeValues service_{std::string(1000, 'v')};
  rpc::Gate gate_{nullptr};
  std::unique_ptr<Server> server_;
  std::shared_ptr<Peer> peer_;
  std::string into_ = std::string(1000, '.');
  std::uint64_t arrived_ = 0;
  bool quiet_ = false;
};

TEST_F(LateTransferTest, ItsBytesLandAfterTheExchangeAndItsPeerAreGone) {
  EXPECT_EQ(RunLate(), Code::kBufferBusy);
  peer_.reset();
  EXPECT_EQ(late_.landing(), 1U);
  EXPECT_EQ(service_.served, 1) << "its pieces are read still";
  EXPECT_EQ(into_.substr(98, 4), "vv..");
  EXPECT_FALSE(quiet_);
  late_.Land();
  EXPECT_EQ(into_, service_.value) << "whoever had reused the buffer would have these bytes";
  EXPECT_TRUE(quiet_);
  EXPECT_EQ(arrived_, 100U) << "an exchange that is over hears of no more";
  EXPECT_EQ(service_.served, 0);
}

TEST_F(LateTransferTest, TheCallOfTheThreadIsBusyUntilThen) {
  const auto landing = std::make_shared<Landing>();
  {
    const Landing::Scope scope(landing);
    EXPECT_EQ(RunLate(), Code::kBufferBusy);
  }
  bool over = false;
  landing->Then([&] {
    over = true;
    EXPECT_EQ(into_, service_.value) << "nothing lands behind this";
    EXPECT_TRUE(quiet_);
  });
  EXPECT_FALSE(over);
  late_.Land();
  EXPECT_TRUE(over);
}

TEST_F(LateTransferTest, AServerStopsWhenNothingIsReadFromItsServiceAnyMore) {
  EXPECT_EQ(RunLate(), Code::kBufferBusy);
  std::atomic<bool> stopped{false};
  std::thread stopping([&] {
    server_->Stop();
    stopped = true;
  });
  // Nobody is served any more, and it still waits.
  EXPECT_TRUE(Becomes([&] { return RunLate() == Code::kUnavailable; }));
  EXPECT_FALSE(stopped);
  late_.Land();
  stopping.join();
  EXPECT_EQ(service_.served, 0);
}

}  // namespace
}  // namespace kvcove::transport
