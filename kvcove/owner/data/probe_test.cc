// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/base/log.h"
#include "kvcove/base/metrics.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/data/data_server.h"
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

}  // namespace
}  // namespace kvcove::owner
