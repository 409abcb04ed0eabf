// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster_host.h"

#include <gtest/gtest.h>

#include "kvcove/requester/fake_master.h"

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
