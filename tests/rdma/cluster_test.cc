// SPDX-License-Identifier: Apache-2.0
// A master, two owners on the first device of this host, and a requester on its last one, opened as
// the options open them. Real verbs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "kvcove/base/metrics.h"
#include "kvcove/transport/peer_probe.h"
#include "kvcove/transport/pick/transports.h"
#include "kvcove/transport/verbs/library.h"
#include "tests/integration/cluster_fixture.h"

namespace kvcove {
namespace {

constexpr std::size_t kRdmaValue = 1 << 20;
constexpr std::size_t kRdmaValues = 8;
// A guest without the processor's help takes seconds for a call on a busy machine.
constexpr std::chrono::milliseconds kGuestTime{60'000};

class RdmaClusterTest : public ClusterFixture {
 protected:
  void Prepare() override {
    const auto library = transport::verbs::VerbsOfProcess();
    ASSERT_TRUE(library) << library.error().ToString();
    devices_ = Must((*library)->Devices());
    ASSERT_FALSE(devices_.empty()) << "this host has no RDMA device";
  }
  void Configure(std::size_t /*number*/, server::DaemonOptions& options) override {
    options.host.cluster->transport = Must(transport::OpenTransport(
        {.kind = transport::TransportOptions::Kind::kVerbs, .devices = devices_.front()}));
  }
  std::unique_ptr<Pool> OpenByRdma() {
    return Open("elsewhere", "&placement=random&transport=verbs&devices=" + devices_.back());
  }
  static std::string KeyOf(std::size_t i) { return "k" + std::to_string(i); }
  std::span<std::byte> PartOf(std::size_t i) {
    return std::span(memory_).subspan(i * kRdmaValue, kRdmaValue);
  }
  // The sum over both owners. `line`: the metric with its label.
  double Sum(const std::string& line) const {
    double sum = 0;
    for (const auto& owner : owners_) {
      Metrics metrics;
      owner->host().Collect(metrics);
      const std::string text = metrics.Text();
      // At the beginning of a line: the metric's help and type have its name, too.
      const std::size_t at = text.find("\n" + line + " ");
      if (at != std::string::npos) sum += std::stod(text.substr(at + 1 + line.size()));
    }
    return sum;
  }
  void PutAll(Session& session, const std::string& prefix) {
    std::vector<std::string> keys;
    std::vector<ConstBuffer> pieces;
    for (std::size_t i = 0; i < kRdmaValues; ++i) {
      keys.push_back(prefix + KeyOf(i));
      const std::string value = Value(keys.back(), kRdmaValue);
      std::memcpy(PartOf(i).data(), value.data(), kRdmaValue);
      pieces.push_back({.data = PartOf(i).data(), .size = kRdmaValue});
    }
    const Token token = Must(session.Capture({.timeout = kGuestTime}));
    std::vector<PutItem> items(kRdmaValues);
    for (std::size_t i = 0; i < kRdmaValues; ++i) {
      items[i] = {.key = keys[i], .value = {&pieces[i], 1}, .after = {}};
    }
    std::vector<ItemResult> results(kRdmaValues);
    EXPECT_TRUE(session.Put(token, items, results, {.timeout = kGuestTime}));
    for (const ItemResult& result : results) EXPECT_EQ(result.code, Code::kOk);
  }
  void GetAll(Session& session, const std::string& prefix) {
    std::ranges::fill(memory_, std::byte{0});
    std::vector<std::string> keys;
    std::vector<MutableBuffer> pieces;
    for (std::size_t i = 0; i < kRdmaValues; ++i) {
      keys.push_back(prefix + KeyOf(i));
      pieces.push_back({.data = PartOf(i).data(), .size = kRdmaValue});
    }
    std::vector<GetItem> items(kRdmaValues);
    for (std::size_t i = 0; i < kRdmaValues; ++i) {
      items[i] = {.key = keys[i], .into = {&pieces[i], 1}};
    }
    std::vector<ItemResult> results(kRdmaValues);
    EXPECT_TRUE(session.Get(items, results, {.timeout = kGuestTime}));
    for (std::size_t i = 0; i < kRdmaValues; ++i) {
      ASSERT_TRUE(results[i].ok()) << i;
      const std::string value = Value(keys[i], kRdmaValue);
      EXPECT_EQ(std::memcmp(PartOf(i).data(), value.data(), kRdmaValue), 0) << "wrong bytes";
    }
  }

  std::vector<std::string> devices_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kRdmaValue * kRdmaValues);
};

TEST_F(RdmaClusterTest, PayloadOfRegisteredMemoryMovesByTheDevice) {
  const std::string sent = "kvcove_owner_rdma_bytes_total{direction=\"sent\"}";
  const std::string received = "kvcove_owner_rdma_bytes_total{direction=\"received\"}";
  const auto pool = OpenByRdma();
  const SessionPtr session = OpenSession(*pool);
  const auto registered = Must(pool->Register(memory_));
  // The first exchanges ask for lanes, and take the sockets.
  for (int round = 0; round < 40 && (Sum(sent) == 0 || Sum(received) == 0); ++round) {
    const std::string prefix = "round" + std::to_string(round) + "-";
    PutAll(*session, prefix);
    GetAll(*session, prefix);
    SleepNs(100 * kMillisecond);
  }
  EXPECT_GT(Sum(sent), 0);
  EXPECT_GT(Sum(received), 0);
  EXPECT_EQ(Sum("kvcove_owner_rdma_stuck_lanes"), 0);
}

// As 'kvcove doctor --peer' does.
TEST_F(RdmaClusterTest, TheWayToAnOwnerIsMeasuredByTheDevice) {
  transport::Transport* const requester = Must(transport::OpenTransport(
      {.kind = transport::TransportOptions::Kind::kVerbs, .devices = devices_.back()}));
  const auto address = rpc::ParseAddress(owners_[0]->host().address(), 0);
  ASSERT_TRUE(address);
  transport::PeerProbe probe(*requester, *address, {}, SystemClock::Instance());
  Result<transport::WayFigures> figures;
  // A guest may be too slow for a lane's first packet, and the owner registers its memory.
  EXPECT_TRUE(Becomes(
      [&] {
        figures = probe.ByDevice();
        return figures.has_value();
      },
      kGuestTime));
  ASSERT_TRUE(figures) << figures.error().ToString();
  EXPECT_GT(figures->round_trip_ns, 0);
  EXPECT_GT(figures->from_peer, 0);
  std::printf("first packet %.1f us, %.1f MB/s from the owner\n",
              static_cast<double>(figures->round_trip_ns) * 1e-3, figures->from_peer * 1e-6);
}

}  // namespace
}  // namespace kvcove
