// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/cluster_host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "kvcove/base/log.h"
#include "kvcove/requester/cluster/fake_master.h"
#include "kvcove/requester/local/fake_daemon.h"
#include "tests/becomes.h"

namespace kvcove::requester {
namespace {

std::int64_t Soon() { return SystemClock::Instance().NowNs() + 60 * kSecond; }

class ClusterHostTest : public testing::Test {
 protected:
  void SetUp() override {
    auto host = ClusterHost::Connect({.master = master_.address(), .host = "here"}, Soon(),
                                     SystemClock::Instance());
    ASSERT_TRUE(host) << host.error().ToString();
    host_ = std::move(*host);
  }
  FakeMaster master_;
  std::unique_ptr<ClusterHost> host_;
};

TEST(ClusterHostConnectTest, AMasterThatIsNotThereIsUnavailable) {
  rpc::Address nobody;
  {
    const FakeMaster master;
    nobody = master.address();
  }
  EXPECT_EQ(ClusterHost::Connect({.master = nobody}, Soon(), SystemClock::Instance()).error().code,
            Code::kUnavailable);
}

TEST_F(ClusterHostTest, WithoutAnOwnerOnThisHostThereIsNoMemoryToMap) {
  EXPECT_EQ(host_->locals().count(), 0U);
  EXPECT_TRUE(host_->LocalNumbers("").empty());
  EXPECT_FALSE(host_->LocalAt("127.0.0.1:1"));
}

TEST(HostIdentityTest, NeighboursAreOfOneBootAndTwoNetworkNamespaces) {
  EXPECT_TRUE(AreNeighbours("boot/net:[1]", "boot/net:[2]"));
  EXPECT_FALSE(AreNeighbours("boot/net:[1]", "boot/net:[1]"));
  EXPECT_FALSE(AreNeighbours("boot/net:[1]", "other/net:[1]"));
  EXPECT_FALSE(AreNeighbours("boot/net:[1]", "node-7"));
  EXPECT_FALSE(AreNeighbours("node-7", "boot/net:[1]"));
  EXPECT_FALSE(AreNeighbours("/net:[1]", "/net:[2]")) << "the boot is not known";
}

// What this process logs about owners on its machine whose memory it does not use, over ten looks.
class ClusterHostLocalTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/kvcove-local-XXXXXX";
    directory_ = mkdtemp(name.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string Said(const std::string& host, const std::string& owner_host,
                   LogLevel level = LogLevel::kWarn) {
    master_.With([&](FakeMaster::State& state) {
      state.owners = {{.number = 1,
                       .epoch = 1,
                       .address = "127.0.0.1:7401",
                       .socket = socket(),
                       .host = owner_host,
                       .live = true}};
    });
    SetLogLevel(level);
    testing::internal::CaptureStderr();
    {
      const auto connected =
          ClusterHost::Connect({.master = master_.address(), .host = host}, Soon(), clock_);
      EXPECT_TRUE(connected) << connected.error().ToString();
      const int before = master_.Asked(wire::Method::kOwners);
      EXPECT_TRUE(Becomes([&] {
        clock_.ahead_ns += 50 * kMillisecond;
        (*connected)->peers().Wake();
        return master_.Asked(wire::Method::kOwners) >= before + 10;
      }));
    }
    SetLogLevel(LogLevel::kOff);
    return testing::internal::GetCapturedStderr();
  }
  static std::size_t Count(const std::string& log, const std::string& what) {
    std::size_t count = 0;
    for (auto at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++count;
    return count;
  }
  std::string socket() const { return directory_ + "/kvcove.sock"; }

  // Looks come as fast as the master answers.
  struct HurriedClock final : Clock {
    std::int64_t NowNs() const override { return SystemClock::Instance().NowNs() + ahead_ns; }
    std::atomic<std::int64_t> ahead_ns{0};
  };

  HurriedClock clock_;
  FakeMaster master_;
  std::string directory_;
};

TEST_F(ClusterHostLocalTest, AnOwnerInAnotherNetworkNamespaceOfThisMachineIsNamedOnce) {
  FakeDaemon daemon(socket());
  daemon.Start();
  const std::string log = Said("boot/net:[1]", "boot/net:[2]");
  EXPECT_EQ(Count(log, "KVCOVE_HOST_ID"), 1U) << log;
  EXPECT_EQ(Count(log, socket()), 1U) << log;
  EXPECT_EQ(daemon.hellos, 0) << "it is looked at only";
  EXPECT_EQ(Said("boot/net:[1]", "other/net:[2]"), "") << "another machine's";
}

TEST_F(ClusterHostLocalTest, WhereItsSocketCannotBeOpenedThatIsNoWarning) {
  EXPECT_EQ(Said("boot/net:[1]", "boot/net:[2]"), "");
  const std::string log = Said("boot/net:[1]", "boot/net:[2]", LogLevel::kInfo);
  EXPECT_EQ(Count(log, "mount the directory of its socket"), 1U) << log;
}

TEST_F(ClusterHostLocalTest, ThatMemoryIsSharedIsSaidOnce) {
  FakeDaemon daemon(socket());
  daemon.Start();
  const std::string log = Said("here", "here", LogLevel::kInfo);
  EXPECT_EQ(Count(log, "its memory is mapped by way of '" + socket() + "'"), 1U) << log;
  EXPECT_EQ(Count(log, "no owner of the pool"), 0U) << log;
}

TEST_F(ClusterHostLocalTest, ThatNoOwnerIsOnThisHostIsSaidOnceWithItsName) {
  const std::string log = Said("here", "there", LogLevel::kInfo);
  EXPECT_EQ(Count(log, "no owner of the pool is on this host, which is called 'here'"), 1U) << log;
  const std::string beside = Said("boot/net:[1]", "boot/net:[2]", LogLevel::kInfo);
  EXPECT_EQ(Count(beside, "no owner of the pool"), 0U) << "another line has the reason";
}

TEST_F(ClusterHostLocalTest, EachReasonWhyAnOwnerOfThisHostIsNotUsedDirectlyIsSaidOnce) {
  std::string log = Said("here", "here");
  EXPECT_EQ(Count(log, "cannot be mapped"), 1U) << log;
  EXPECT_EQ(Count(log, "No such file"), 1U) << log;
  FakeDaemon daemon(socket());
  daemon.files = 1;
  daemon.Start();
  log = Said("here", "here");
  EXPECT_EQ(Count(log, "cannot be mapped"), 1U) << log;
  EXPECT_GT(daemon.hellos, 1) << "it is asked again and again";
}

TEST_F(ClusterHostTest, TheMasterHearsOfAnEnginesLastSessionOnly) {
  host_->OpenEngine("n", "one");
  host_->OpenEngine("n", "one");
  host_->OpenEngine("n", "two");
  host_->CloseEngine("n", "one");
  host_->CloseEngine("n", "two");
  EXPECT_TRUE(master_.Await([](const FakeMaster::State& state) { return !state.ended.empty(); }));
  master_.With(
      [](FakeMaster::State& state) { EXPECT_EQ(state.ended, std::vector<std::string>{"two"}); });
  host_->CloseEngine("n", "one");
  EXPECT_TRUE(
      master_.Await([](const FakeMaster::State& state) { return state.ended.size() == 2; }));
}

TEST_F(ClusterHostTest, AMasterOfAnotherTermIsToldWhatIsRegistered) {
  ASSERT_TRUE(host_->Register({.name = "n", .version = "v", .engine = "e"}, Soon()));
  master_.With([](FakeMaster::State& state) {
    state.registered.clear();
    state.term = 2;
  });
  EXPECT_TRUE(
      master_.Await([](const FakeMaster::State& state) { return !state.registered.empty(); }));
  master_.With([](FakeMaster::State& state) { EXPECT_EQ(state.registered[0], "e/v"); });
}

// The master knows why it has not listed a key; only this process knows that an owner was gone.
TEST_F(ClusterHostTest, ItsReportsCountMissesAndNameThoseThatTheMasterCannotKnow) {
  host_->CountMiss(FakeMaster::kSlot, "evicted", MissReason::kEvicted);
  host_->CountMiss(FakeMaster::kSlot, "gone", MissReason::kOwnerGone);
  host_->CountMiss(std::nullopt, "of an unknown slot", MissReason::kOwnerGone);
  const auto gone = static_cast<std::size_t>(MissReason::kOwnerGone);
  EXPECT_TRUE(
      master_.Await([&](const FakeMaster::State& state) { return state.misses[gone] == 2; }));
  master_.With([&](FakeMaster::State& state) {
    EXPECT_EQ(state.misses[static_cast<std::size_t>(MissReason::kEvicted)], 1U);
    ASSERT_EQ(state.recent.size(), 1U);
    EXPECT_EQ(state.recent[0].hash, DirectoryHash(FakeMaster::kSlot, "gone"));
  });
}

}  // namespace
}  // namespace kvcove::requester
