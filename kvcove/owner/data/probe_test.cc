// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/metrics.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/data/data_server.h"
#include "kvcove/rpc/breaker.h"
#include "kvcove/transport/peer_probe.h"
#include "kvcove/transport/pick/fake_rdma.h"
#include "tests/becomes.h"

namespace kvcove::owner {
namespace {

using testing::HasSubstr;
using testing::Not;

class PeerProbeTest : public testing::Test {
 protected:
  PeerProbeTest() { SetLogLevel(LogLevel::kOff); }
  ~PeerProbeTest() override { SetLogLevel(LogLevel::kInfo); }
  void Serve(transport::Transport& transport, const rpc::CallLimitsOptions& limits = {}) {
    owner_ = *Owner::Open({.memory_bytes = 4 * kMiB, .huge_pages = HugePages::kOff}, clock_);
    ASSERT_TRUE(owner_->Start());
    server_ = *DataServer::Open(*owner_, {.transport = &transport, .limits = limits}, clock_);
  }
  transport::PeerProbe ProbeBy(transport::Transport& transport) {
    return transport::PeerProbe(transport, server_->address(), {}, clock_);
  }

  const Clock& clock_ = SystemClock::Instance();
  transport::FakeRdma rdma_;
  std::unique_ptr<Owner> owner_;
  std::unique_ptr<DataServer> server_;
};

TEST_F(PeerProbeTest, AConnectionIsMeasuredBothWays) {
  Serve(transport::Preferred());
  const auto figures = ProbeBy(transport::Preferred()).ByConnection();
  ASSERT_TRUE(figures) << figures.error().ToString();
  EXPECT_GT(figures->round_trip_ns, 0);
  EXPECT_GT(figures->from_peer, 0);
  EXPECT_GT(figures->to_peer, 0);
  EXPECT_EQ(owner_->Stat().objects, 0U) << "nothing is stored";
}

TEST_F(PeerProbeTest, LimitsOfCallsAndBytesLeaveAMeasurement) {
  Serve(transport::Preferred(),
        {.connection = {.calls_per_second = 20}, .tenant = {}, .all = {.bytes = 2 * kMiB}});
  const auto figures = ProbeBy(transport::Preferred()).ByConnection();
  ASSERT_TRUE(figures) << figures.error().ToString();
  EXPECT_GT(figures->from_peer, 0);
  EXPECT_GT(figures->to_peer, 0);
}

TEST_F(PeerProbeTest, ADeviceIsMeasuredByWhatItMoves) {
  Serve(rdma_.owner());
  Result<transport::WayFigures> figures;
  EXPECT_TRUE(Becomes([&] {  // once the owner's memory is registered
    figures = ProbeBy(rdma_.requester()).ByDevice();
    return figures.has_value();
  }));
  ASSERT_TRUE(figures) << figures.error().ToString();
  EXPECT_GT(figures->round_trip_ns, 0);
  EXPECT_GT(figures->from_peer, 0);
  Metrics metrics;
  server_->Collect(metrics);
  EXPECT_THAT(metrics.Text(), HasSubstr("kvcove_owner_rdma_bytes_total{direction=\"sent\"} "));
  EXPECT_THAT(metrics.Text(),
              Not(HasSubstr("kvcove_owner_rdma_bytes_total{direction=\"sent\"} 0\n")));
}

TEST_F(PeerProbeTest, AnOwnerWithoutADeviceSaysSo) {
  Serve(transport::Preferred());
  const auto figures = ProbeBy(rdma_.requester()).ByDevice();
  ASSERT_FALSE(figures);
  EXPECT_THAT(figures.error().detail, HasSubstr("this owner has no RDMA"));
  EXPECT_TRUE(figures.error().answered);
}

TEST_F(PeerProbeTest, WithoutADeviceHereThereIsNothingToMeasure) {
  Serve(rdma_.owner());
  const auto figures = ProbeBy(transport::Preferred()).ByDevice();
  ASSERT_FALSE(figures);
  EXPECT_THAT(figures.error().detail, HasSubstr("no RDMA device is open"));
}

TEST_F(PeerProbeTest, APeerThatIsNotThereIsAnError) {
  Serve(transport::Preferred());
  transport::PeerProbe probe = ProbeBy(transport::Preferred());
  server_.reset();
  EXPECT_FALSE(probe.ByConnection());
}

// A peer whose exchanges end at once, by the device or by the connection as the test says.
class ProbedPeer final : public transport::Peer {
 public:
  explicit ProbedPeer(transport::Transport& transport) : transport_(transport) {}
  transport::Transport& transport() override { return transport_; }
  const rpc::Address& address() const override { return address_; }
  wire::Channel& channel() override { std::abort(); }
  bool broken() const override { return false; }
  std::int64_t ProbeDueNs() const override { return doubted ? 0 : rpc::Breaker::kNever; }
  void Probe() override {}
  Result<std::int64_t> TryDevice() override {
    if (lanes == most_lanes) return Fail(Code::kLimit, "no lane (a test's)");
    return ++lanes;
  }
  Result<std::unique_ptr<transport::Transfer>> Start(transport::Exchange& exchange, std::int64_t,
                                                     std::int64_t) override {
    exchange.status = Status();
    exchange.by_device = ++exchanges > by_connection;
    return std::make_unique<Over>();
  }
  bool doubted = false;
  int lanes = 0;
  int most_lanes = 100;
  int exchanges = 0;
  int by_connection = 0;  // the first so many exchanges

 private:
  class Over final : public transport::Transfer {
   public:
    bool Advance() override { return true; }
    bool done() const override { return true; }
    bool Abort() override { return true; }
  };
  transport::Transport& transport_;
  const rpc::Address address_;
};

class ProbedTransport final : public transport::Transport {
 public:
  std::string_view name() const override { return "probed"; }
  std::shared_ptr<transport::Peer> Connect(const rpc::Address&, const transport::PeerOptions&,
                                           const Clock&) override {
    return peer;
  }
  Result<std::unique_ptr<transport::Server>> Serve(const transport::ServerOptions&, rpc::Gate&,
                                                   transport::Service&, const Clock&) override {
    return Fail(Code::kInternal, "these tests have no server");
  }
  Result<std::unique_ptr<transport::Registered>> Register(std::span<std::byte>) override {
    return std::make_unique<transport::Registered>();
  }
  void Wait(std::span<transport::Transfer* const>, std::int64_t) override {}
  const std::shared_ptr<ProbedPeer> peer = std::make_shared<ProbedPeer>(*this);
};

TEST(PeerProbeLaneTest, ALaneThatHasEndedIsReplacedOnce) {
  ProbedTransport probed;
  ProbedPeer& peer = *probed.peer;
  transport::PeerProbe probe(probed, {}, {}, SystemClock::Instance());
  ASSERT_TRUE(probe.ByDevice());
  const int lanes = std::exchange(peer.lanes, 0);
  peer.by_connection = peer.exchanges + 1;
  ASSERT_TRUE(probe.ByDevice());
  EXPECT_EQ(peer.lanes, lanes + 1);
}

TEST(PeerProbeLaneTest, TheReasonIsNamedWhyPayloadTookTheConnection) {
  ProbedTransport probed;
  ProbedPeer& peer = *probed.peer;
  peer.by_connection = 100;
  const auto reason = [&] {
    peer.lanes = 0;
    peer.exchanges = 0;
    const auto figures = transport::PeerProbe(probed, {}, {}, SystemClock::Instance()).ByDevice();
    EXPECT_FALSE(figures);
    return figures ? "" : figures.error().detail;
  };
  EXPECT_THAT(reason(), HasSubstr("does not know the memory"));
  EXPECT_EQ(peer.exchanges, 2) << "it tries once more";
  peer.doubted = true;
  EXPECT_THAT(reason(), HasSubstr("answered so late"));
  peer.most_lanes = 3;
  EXPECT_THAT(reason(), HasSubstr("no other is made: no lane (a test's)"));
}

}  // namespace
}  // namespace kvcove::owner
