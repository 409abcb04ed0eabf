// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/fabric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "kvcove/transport/verbs/fake_verbs.h"
#include "kvcove/transport/verbs/lane_fixture.h"

namespace kvcove::transport::verbs {
namespace {

using testing::HasSubstr;

class FabricTest : public ::testing::Test {
 protected:
  std::unique_ptr<Fabric> Open(std::vector<PortName> ports = {}) {
    auto opened = Fabric::Open(
        verbs, {.ports = std::move(ports), .reaper = {.thread = false}, .piece_bytes = 100}, clock);
    EXPECT_TRUE(opened) << opened.error().ToString();
    return opened ? std::move(*opened) : nullptr;
  }
  bool Covers(const Fabric& fabric, std::size_t offset, std::uint64_t size, Access access) {
    std::vector<Keyed> parts;
    const bool covered = fabric.Cover(bytes.data() + offset, size, access, parts);
    EXPECT_EQ(covered, !parts.empty());
    return covered;
  }

  FakeClock clock;
  FakeVerbs verbs;
  std::vector<std::byte> bytes = std::vector<std::byte>(1000);
};

TEST_F(FabricTest, UsesTheFirstPortThatWorks) {
  EXPECT_EQ(Open()->device().name().device, "fake0");
  EXPECT_EQ(Open({{.device = "fake1"}, {.device = "fake0"}})->device().name().device, "fake1");
  verbs.SetPort("fake0", false);
  EXPECT_EQ(Open()->device().name().device, "fake1");
  verbs.SetPort("fake1", false);
  const auto none =
      Fabric::Open(verbs, {.ports = {{.device = "fake7"}, {.device = "fake1"}}}, clock);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kUnavailable);
  EXPECT_THAT(none.error().detail, HasSubstr("fake7:1: no RDMA device"));
  EXPECT_THAT(none.error().detail, HasSubstr("fake1:1: port 1 of fake1 is down"));
}

TEST_F(FabricTest, MemoryIsCoveredForTheAccessThatItWasRegisteredFor) {
  const auto fabric = Open();
  EXPECT_FALSE(fabric->exposes());
  const auto own = fabric->Register(std::span(bytes).subspan(0, 250), Access::kLocal);
  ASSERT_TRUE(own);
  EXPECT_FALSE(fabric->exposes());
  auto exposed = fabric->Register(std::span(bytes).subspan(500, 300), Access::kRemote);
  ASSERT_TRUE(exposed);
  EXPECT_TRUE(fabric->exposes());
  EXPECT_TRUE(Covers(*fabric, 0, 250, Access::kLocal));
  EXPECT_FALSE(Covers(*fabric, 0, 250, Access::kRemote));
  EXPECT_FALSE(Covers(*fabric, 0, 251, Access::kLocal));
  EXPECT_TRUE(Covers(*fabric, 799, 1, Access::kRemote));
  EXPECT_FALSE(Covers(*fabric, 799, 2, Access::kRemote));
  EXPECT_FALSE(Covers(*fabric, 499, 2, Access::kRemote));
  exposed->reset();
  EXPECT_FALSE(fabric->exposes());
  EXPECT_FALSE(Covers(*fabric, 799, 1, Access::kRemote));
  EXPECT_EQ(verbs.counts().regions, 3U);
}

TEST_F(FabricTest, RegistrationsMayOverlap) {
  const auto fabric = Open();
  auto large = fabric->Register(std::span(bytes), Access::kRemote);
  const auto within = fabric->Register(std::span(bytes).subspan(100, 50), Access::kRemote);
  auto same = fabric->Register(std::span(bytes), Access::kRemote);
  ASSERT_TRUE(large && within && same);
  EXPECT_TRUE(Covers(*fabric, 120, 500, Access::kRemote));
  large->reset();
  EXPECT_TRUE(Covers(*fabric, 120, 500, Access::kRemote));
  same->reset();
  EXPECT_FALSE(Covers(*fabric, 120, 500, Access::kRemote));
  EXPECT_TRUE(Covers(*fabric, 120, 10, Access::kRemote));
}

TEST_F(FabricTest, ARegistrationThatFailsLeavesNothing) {
  const auto fabric = Open();
  verbs.FailCall(3);
  EXPECT_EQ(fabric->Register(bytes, Access::kLocal).error().code, Code::kLimit);
  EXPECT_EQ(verbs.counts().regions, 0U);
  EXPECT_FALSE(Covers(*fabric, 0, 1, Access::kLocal));
}

// Who gives up is in a hurry, and to unpin large memory takes seconds.
TEST_F(FabricTest, ARegistrationThatIsGivenUpEndsInTheBackground) {
  const auto fabric = Open();
  std::promise<void> free;
  ASSERT_TRUE(fabric->workers().Post([&] { free.get_future().wait(); }));
  int asked = 0;
  const auto given_up = fabric->Register(bytes, Access::kLocal, [&] { return ++asked < 4; });
  EXPECT_EQ(given_up.error().code, Code::kUnavailable);
  EXPECT_FALSE(Covers(*fabric, 0, 1, Access::kLocal));
  EXPECT_EQ(verbs.counts().regions, 4U);
  free.set_value();
  std::promise<void> ended;
  ASSERT_TRUE(fabric->workers().Post([&] { ended.set_value(); }));
  ended.get_future().wait();
  EXPECT_EQ(verbs.counts().regions, 0U);
}

TEST_F(FabricTest, ItsLanesReachEachOther) {
  const auto owner = Open({{.device = "fake0"}});
  const auto requester = Open({{.device = "fake1"}});
  auto one = owner->OpenLane(Access::kLocal);
  auto other = requester->OpenLane(Access::kRemote);
  ASSERT_TRUE(one && other);
  EXPECT_NE((*one)->own().first_packet, (*other)->own().first_packet);
  ASSERT_TRUE((*one)->Connect((*other)->own()));
  ASSERT_TRUE((*other)->Connect((*one)->own()));
  owner->reaper().Take(std::move(*one), nullptr);
  requester->reaper().Take(std::move(*other), nullptr);
  EXPECT_TRUE(owner->reaper().Advance());
  EXPECT_TRUE(requester->reaper().Advance());
  EXPECT_EQ(verbs.counts().pairs, 0U);
}

TEST_F(FabricTest, ItsPacketsTravelInTheClassOfItsOptions) {
  const auto owner = *Fabric::Open(verbs,
                                   {.ports = {{.device = "fake0"}},
                                    .reaper = {.thread = false},
                                    .service_level = 3,
                                    .traffic_class = 106},
                                   clock);
  const auto requester = Open({{.device = "fake1"}});
  auto one = owner->OpenLane(Access::kLocal);
  auto other = requester->OpenLane(Access::kRemote);
  ASSERT_TRUE(one && other);
  ASSERT_TRUE((*other)->Connect((*one)->own()));
  EXPECT_EQ(verbs.last_route().traffic_class, 0U);
  ASSERT_TRUE((*one)->Connect((*other)->own()));
  EXPECT_EQ(verbs.last_route().service_level, 3U);
  EXPECT_EQ(verbs.last_route().traffic_class, 106U);
  owner->reaper().Take(std::move(*one), nullptr);
  requester->reaper().Take(std::move(*other), nullptr);
  EXPECT_TRUE(owner->reaper().Advance());
  EXPECT_TRUE(requester->reaper().Advance());
}

// The device's objects are the parent's: a child that ended them would stop the parent's transfers.
TEST_F(FabricTest, AForkedChildEndsNothing) {
  auto fabric = Open();
  auto registered = fabric->Register(bytes, Access::kRemote);
  auto lane = fabric->OpenLane(Access::kRemote);
  ASSERT_TRUE(registered && lane);
  const pid_t child = fork();
  if (child == 0) {
    const FakeVerbsCounts before = verbs.counts();
    bool quiet = false;
    registered->reset();
    fabric->reaper().Take(std::move(*lane), [&] { quiet = true; });
    fabric.reset();
    const FakeVerbsCounts after = verbs.counts();
    _exit(!quiet && after.regions == before.regions && after.pairs == before.pairs ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(Covers(*fabric, 0, 1000, Access::kRemote));
}

TEST_F(FabricTest, NoLaneWhileThePortIsDown) {
  const auto fabric = Open();
  verbs.SetPort("fake0", false);
  EXPECT_EQ(fabric->OpenLane(Access::kLocal).error().code, Code::kUnavailable);
  verbs.SetPort("fake0", true);
  EXPECT_TRUE(fabric->OpenLane(Access::kLocal));
}

}  // namespace
}  // namespace kvcove::transport::verbs
