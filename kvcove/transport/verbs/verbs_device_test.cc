// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "kvcove/transport/verbs/device.h"
#include "kvcove/transport/verbs/fake_verbs.h"
#include "kvcove/transport/verbs/lane_fixture.h"
#include "kvcove/transport/verbs/reaper.h"

namespace kvcove::transport::verbs {
namespace {

using testing::HasSubstr;

TEST(PortNameTest, IsADeviceAndPerhapsItsPortAndItsGid) {
  EXPECT_EQ(*ParsePortName("mlx5_0"), (PortName{.device = "mlx5_0"}));
  EXPECT_EQ(*ParsePortName("mlx5_0:2"), (PortName{.device = "mlx5_0", .port = 2}));
  EXPECT_EQ(*ParsePortName("mlx5_0:2/3"),
            (PortName{.device = "mlx5_0", .port = 2, .gid_index = std::uint8_t{3}}));
  EXPECT_EQ(ParsePortName("mlx5_0:2/3")->ToString(), "mlx5_0:2/3");
  EXPECT_EQ(ParsePortName("mlx5_0")->ToString(), "mlx5_0:1");
  for (const char* const text : {"", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:1/",
                                 "mlx5_0:1/256", "mlx5_0:256", "mlx5_0/3", "mlx5_0:1/3x"}) {
    const auto name = ParsePortName(text);
    ASSERT_FALSE(name) << text;
    EXPECT_EQ(name.error().code, Code::kInvalid);
  }
}

TEST(PortNameTest, SeveralHaveCommasBetween) {
  const auto names = ParsePortNames("mlx5_0,mlx5_1:2,mlx5_1");
  ASSERT_TRUE(names);
  ASSERT_EQ(names->size(), 3U);
  EXPECT_EQ((*names)[1].port, 2);
  EXPECT_FALSE(ParsePortNames("mlx5_0,"));
  const auto twice = ParsePortNames("mlx5_0,mlx5_0:1/3");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().detail, "port 1 of mlx5_0 is named twice");
}

constexpr GidEntry kUnusedGid{};
constexpr GidEntry kLocalV1{.gid = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
constexpr GidEntry kLocalV2{.gid = kLocalV1.gid, .v2 = true};
constexpr GidEntry kGlobalV1{.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}};
constexpr GidEntry kGlobalV2{.gid = kGlobalV1.gid, .v2 = true};
constexpr GidEntry kLocalIpv4V2{.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 169, 254, 0, 1},
                                .v2 = true};

TEST(BestGidTest, RoutersPassOnTheFirst) {
  EXPECT_EQ(BestGid({kLocalV1, kLocalV2, kGlobalV1, kGlobalV2, kGlobalV2}), 3);
  EXPECT_EQ(BestGid({kLocalV1, kGlobalV1, kLocalIpv4V2, kLocalV2}), 2);
  EXPECT_EQ(BestGid({kUnusedGid, kLocalV1, kGlobalV1}), 2);
  EXPECT_EQ(BestGid({kUnusedGid, kLocalV1}), 1);
  EXPECT_EQ(BestGid({kUnusedGid, kUnusedGid}), std::nullopt);
  EXPECT_EQ(BestGid({}), std::nullopt);
  EXPECT_EQ(BestGid(std::vector<GidEntry>(300, kUnusedGid)), std::nullopt);
}

class VerbsDeviceTest : public ::testing::Test {
 protected:
  std::shared_ptr<Device> Open(const PortName& name = {.device = "fake0"}) {
    auto opened = Device::Open(verbs, name);
    EXPECT_TRUE(opened);
    return opened ? *opened : nullptr;
  }
  static std::string WhyNot(Device& device) {
    const auto way = device.Way();
    EXPECT_FALSE(way);
    if (way) return "";
    EXPECT_EQ(way.error().code, Code::kUnavailable);
    return way.error().detail;
  }

  FakeVerbs verbs;
};

TEST_F(VerbsDeviceTest, UsesTheGidThatReachesMostHosts) {
  const auto device = Open();
  const auto way = device->Way();
  ASSERT_TRUE(way);
  EXPECT_EQ(way->port, 1);
  EXPECT_EQ(way->gid_index, 1);
}

TEST_F(VerbsDeviceTest, UsesTheGidThatItsOperatorNames) {
  const auto device = Open({.device = "fake0", .gid_index = std::uint8_t{0}});
  EXPECT_EQ(device->Way()->gid_index, 0);
  const auto unused = Open({.device = "fake0", .gid_index = std::uint8_t{7}});
  EXPECT_THAT(WhyNot(*unused), HasSubstr("fake0:1/7 is not used"));
}

TEST_F(VerbsDeviceTest, ChoosesAgainWhenItsGidsChange) {
  const auto device = Open();
  EXPECT_EQ(device->Way()->gid_index, 1);
  verbs.SetGids("fake0", {kLocalV1, kLocalV2, kUnusedGid, kGlobalV2});
  EXPECT_EQ(device->Way()->gid_index, 3);
  verbs.SetGids("fake0", {kUnusedGid});
  EXPECT_THAT(WhyNot(*device), HasSubstr("has no GID"));
  verbs.SetGids("fake0", {kUnusedGid, kLocalV2});
  EXPECT_EQ(device->Way()->gid_index, 1);
}

// One thread has read the table, and stores its choice behind the report that another has taken.
TEST_F(VerbsDeviceTest, AChoiceThatAChangeOvertookDoesNotLast) {
  const auto device = Open();
  verbs.BehindGid([&] {
    verbs.SetGids("fake0", {kLocalV1, kLocalV2, kUnusedGid, kGlobalV2});
    EXPECT_EQ(device->Way()->gid_index, 3);
  });
  EXPECT_TRUE(device->Way());
  EXPECT_EQ(device->Way()->gid_index, 3);
}

TEST_F(VerbsDeviceTest, InfiniBandUsesTheFirstGid) {
  verbs.SetEthernet("fake0", false);
  const auto device = Open();
  EXPECT_EQ(device->Way()->gid_index, 0);
}

TEST_F(VerbsDeviceTest, APortThatIsDownMayComeUp) {
  verbs.SetPort("fake0", false);
  const auto device = Open();
  EXPECT_EQ(WhyNot(*device), "port 1 of fake0 is down");
  verbs.SetPort("fake0", true);
  EXPECT_TRUE(device->Way());
  EXPECT_FALSE(device->gone());
}

TEST_F(VerbsDeviceTest, ADeviceThatIsNotThereIsNotOpened) {
  const auto opened = Device::Open(verbs, {.device = "fake7"});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kUnavailable);
}

TEST_F(VerbsDeviceTest, ItsDescriptorIsReadableWhileThereIsAReport) {
  const auto device = Open();
  pollfd waits{.fd = device->context()->descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&waits, 1, 0), 0);
  verbs.SetPort("fake0", false);
  verbs.SetPort("fake1", false);  // of another device
  EXPECT_EQ(poll(&waits, 1, 0), 1);
  EXPECT_EQ(device->context()->TakeEvent(), DeviceEvent::kPort);
  EXPECT_EQ(poll(&waits, 1, 0), 0);
  EXPECT_EQ(device->context()->TakeEvent(), std::nullopt);
}

// The kernel has ended the queue pair of a device that was pulled out, but says so to nobody. The
// device itself may have failed, and still write: so its buffers stay busy.
TEST_F(VerbsDeviceTest, ADeviceThatIsRemovedKeepsTheBuffersOfItsLanesBusy) {
  const auto device = Open({.device = "fake1"});
  {
    FakeClock clock;
    auto reaper = Reaper::Start({.thread = false}, clock);
    ASSERT_TRUE(reaper);
    LaneEnds ends(verbs, "fake0", "fake1");
    TestMemory source(ends.owner_context, 100, Access::kLocal, 1);
    TestMemory target(ends.requester_context, 100, Access::kRemote, 2);
    verbs.RemoveDevice("fake1");
    EXPECT_THAT(WhyNot(*device), HasSubstr("was removed"));
    EXPECT_TRUE(device->gone());
    EXPECT_FALSE(ends.requester->PostReceive(0, {}));

    ASSERT_TRUE(ends.owner->Post(MoveOf(Operation::kWrite, source, target, 100)));
    EXPECT_FALSE(AdvanceUntilIdle(*ends.owner));  // the other end does not answer
    EXPECT_EQ(target.Count(2), 100U);

    bool quiet = false;
    (*reaper)->Take(std::move(ends.requester), [&] { quiet = true; });
    for (int hour = 0; hour < 3; ++hour) {
      EXPECT_FALSE((*reaper)->Advance());
      clock.AdvanceNs(3600 * kSecond);
    }
    EXPECT_FALSE(quiet);
    EXPECT_EQ((*reaper)->stats().stuck, 1U);
    verbs.ReturnDevice("fake1");
    EXPECT_TRUE((*reaper)->Advance());
    EXPECT_TRUE(quiet);
  }
  EXPECT_TRUE(device->gone());  // a device that returns is another
  EXPECT_EQ(verbs.counts().pairs, 0U);
  EXPECT_EQ(verbs.counts().mistakes, 0U);
  EXPECT_TRUE(Device::Open(verbs, {.device = "fake1"}));
}

}  // namespace
}  // namespace kvcove::transport::verbs
