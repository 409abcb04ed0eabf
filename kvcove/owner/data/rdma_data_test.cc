// SPDX-License-Identifier: Apache-2.0
// An owner's memory behind an RDMA device of the tests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kvcove/base/metrics.h"
#include "kvcove/base/size.h"
#include "kvcove/owner/core/pieces.h"
#include "kvcove/owner/data/data_server.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/pick/fake_rdma.h"
#include "kvcove/wire/cluster.h"
#include "tests/becomes.h"
#include "tests/put_in_time.h"

namespace kvcove::owner {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr Generation kRdmaGeneration = 1ULL << 24;
constexpr SlotId kRdmaSlot = 3;
constexpr std::uint32_t kRdmaBytes = 256 * kKiB;

class RdmaDataTest : public testing::Test {
 protected:
  void SetUp() override {
    owner_ = *Owner::Open({.memory_bytes = 16 * kMiB, .huge_pages = HugePages::kOff}, clock_);
    owner_->link_side().Publish({1, 1},
                                {{.slot = kRdmaSlot, .generation = kRdmaGeneration, .name = "m"}});
    owner_->link_side().SetApplied(1);
    ASSERT_TRUE(owner_->Start());
    session_ = owner_->memory().AddSession(getpid())->number;
    ASSERT_EQ(PutInTime([&] { return StoreOnce(); }), Code::kOk);
  }
  Code StoreOnce() {
    const PutItem item{.key = "k", .size_bytes = kRdmaBytes, .value = {}, .after = {}};
    const PutResult places = owner_->data_side().Reserve(session_, token_, {&item, 1}).front();
    if (places.code != Code::kOk) return places.code;
    ForEachPiece(owner_->memory().payload(), places.extents, kRdmaBytes,
                 [](std::byte* data, std::uint64_t bytes) { std::memset(data, 'v', bytes); });
    const FinishItem finish{.reservation = places.reservation, .commit = true};
    return owner_->Finish(session_, {&finish, 1}, Soon()).front();
  }
  std::int64_t Soon() const { return clock_.NowNs() + 60 * kSecond; }
  void Serve(transport::Transport& owner, transport::Transport& requester) {
    server_ = *DataServer::Open(*owner_, {.transport = &owner}, clock_);
    peer_ = requester.Connect(server_->address(), {}, clock_);
    registered_ = *requester.Register(buffer_);
  }
  bool GetsTheValue() { return GetsTheValue(Soon()); }
  bool GetsTheValue(std::int64_t until_ns) {
    std::ranges::fill(buffer_, std::byte{0});
    transport::Exchange call;
    call.to = peer_.get();
    call.method = wire::Method::kDataGet;
    call.head = wire::Encode(wire::DataGet{.token = token_, .keys = {"k"}, .room = {kRdmaBytes}});
    call.on_reply = [this](std::span<const std::byte>) -> Result<std::vector<transport::Piece>> {
      return std::vector<transport::Piece>{{.data = buffer_.data(), .size = buffer_.size()}};
    };
    transport::Run({&call, 1}, until_ns, clock_);
    return call.status.has_value() &&
           std::ranges::all_of(buffer_, [](std::byte byte) { return byte == std::byte{'v'}; });
  }
  // Gets until the device has begun to move payload, and is held. A get that ends before that has
  // ended its lane, and those behind it go by TCP until there is another.
  bool GetUntilHeld() {
    return Becomes([&] {
      (void)GetsTheValue(clock_.NowNs() + 100 * kMillisecond);
      return !server_->MayEnd();
    });
  }
  // Gets until payload has moved by the device.
  void AwaitLane() {
    EXPECT_TRUE(Becomes([&] {
      EXPECT_TRUE(GetsTheValue());
      return Scrape().find("kvcove_owner_rdma_bytes_total{direction=\"sent\"} 0\n") ==
             std::string::npos;
    }));
  }
  std::string Scrape() const {
    Metrics metrics;
    server_->Collect(metrics);
    return metrics.Text();
  }

  const Clock& clock_ = SystemClock::Instance();
  const Token token_{.incarnation = {1, 1}, .generation = kRdmaGeneration, .slot = kRdmaSlot};
  transport::FakeRdma rdma_;
  std::unique_ptr<Owner> owner_;
  SessionNumber session_ = 0;
  std::unique_ptr<DataServer> server_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kRdmaBytes);
  std::shared_ptr<transport::Peer> peer_;
  std::unique_ptr<transport::Registered> registered_;
};

TEST_F(RdmaDataTest, PayloadOfAnOwnersMemoryMovesByTheDeviceAndIsCounted) {
  Serve(rdma_.owner(), rdma_.requester());
  AwaitLane();
  EXPECT_THAT(Scrape(), HasSubstr("kvcove_owner_rdma_lanes 1\n"));
}

TEST_F(RdmaDataTest, AnUpgradeDoesNotBeginWhileADeviceEndsNoTransfer) {
  Serve(rdma_.owner(), rdma_.requester());
  AwaitLane();
  rdma_.HoldAfter(100);
  EXPECT_TRUE(server_->MayEnd());
  EXPECT_TRUE(GetUntilHeld());
  EXPECT_EQ(server_->MayEnd().error().code, Code::kInProgress);
  rdma_.Land();
  EXPECT_TRUE(Becomes([&] { return server_->MayEnd().has_value(); }));
}

TEST_F(RdmaDataTest, AServerDoesNotEndInTimeWhileItsDeviceMovesBytes) {
  Serve(rdma_.owner(), rdma_.requester());
  AwaitLane();
  rdma_.HoldAfter(100);
  EXPECT_TRUE(GetUntilHeld());
  const Status ended = server_->EndWithin(50 * kMillisecond);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::kInProgress);
  rdma_.Land();
  EXPECT_TRUE(Becomes([&] { return server_->EndWithin(0).has_value(); }));
  EXPECT_TRUE(server_->EndWithin(0));
}

TEST_F(RdmaDataTest, AnOwnerWithoutADeviceHasNoMetricsOfOne) {
  Serve(transport::Preferred(), rdma_.requester());
  EXPECT_TRUE(GetsTheValue());
  EXPECT_THAT(Scrape(), Not(HasSubstr("rdma")));
}

}  // namespace
}  // namespace kvcove::owner
