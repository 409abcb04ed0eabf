// SPDX-License-Identifier: Apache-2.0
// Experts on the ranks of several engines: the version is of all of them.
#include "kvcove/connector/roles_fixture.h"

namespace kvcove::connector {
namespace {

using testing::StartsWith;

const std::vector<std::string> kOwn{"a;4;0.0=p", "b;4;0.1=q"};
constexpr const char* kPeer = "a|b|;4;0.2=r,0.3=s";

class PeersTest : public RolesTest {
 protected:
  void SetUp() override {
    RolesTest::SetUp();
    scheduler_ = std::make_unique<SchedulerRole>(options_, store_, *runner_, clock_);
    Tell(kOwn);
  }
  // A step in which the ranks answer what they were asked.
  void Tell(const std::vector<std::string>& ranks) {
    plan_ = scheduler_->BuildPlan(pins_);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      workers_[rank]->Begin(plan_);
      EXPECT_TRUE(workers_[rank]->FingerprintWanted());
      workers_[rank]->SetFingerprint(ranks[rank]);
      workers_[rank]->FinishStep({});
      scheduler_->OnReport(workers_[rank]->TakeReport());
    }
  }
  std::uint64_t Number() const { return scheduler_->TakesPeers()->number; }
  bool Closed() const { return scheduler_->stats().closed == 1; }
};

TEST_F(PeersTest, AnEngineIsClosedUntilItsPeersHaveTold) {
  EXPECT_TRUE(Closed());
  EXPECT_TRUE(scheduler_->Matched(View("r", 8), 0).ask_again);
  ASSERT_TRUE(scheduler_->TakesPeers());
  EXPECT_EQ(scheduler_->TakesPeers()->text, "a|b|;4;0.0=p,0.1=q");
  scheduler_->SetPeers(Number(), {}, /*alone=*/false);
  EXPECT_TRUE(Closed());
  scheduler_->SetPeers(Number(), {kPeer}, false);
  EXPECT_FALSE(Closed());
  EXPECT_THAT(scheduler_->version(), StartsWith("w"));
  // The same as one engine with all of them.
  const std::string version = scheduler_->version();
  scheduler_->WeightsChanging();
  scheduler_->WeightsChanged();
  Tell({"a;4;0.0=p,0.3=s", "b;4;0.1=q,0.2=r"});
  EXPECT_EQ(scheduler_->version(), version);
  EXPECT_FALSE(scheduler_->TakesPeers());
}

TEST_F(PeersTest, APeerWhoseWeightsChangeClosesItAndOpensItWithAnotherVersion) {
  scheduler_->SetPeers(Number(), {kPeer}, false);
  const std::string version = scheduler_->version();
  StoreAll(8);
  EXPECT_EQ(scheduler_->Matched(View("r", 10), 0).tokens, 8U);
  scheduler_->SetPeers(Number(), {}, false);
  EXPECT_TRUE(Closed());
  EXPECT_TRUE(scheduler_->Matched(View("s", 10), 0).ask_again);
  plan_ = scheduler_->BuildPlan(pins_);
  EXPECT_EQ(plan_.fingerprint, 0U) << "its own ranks have nothing new to tell";
  scheduler_->SetPeers(Number(), {"a|b|;4;0.2=r,0.3=other"}, false);
  EXPECT_FALSE(Closed());
  EXPECT_NE(scheduler_->version(), version);
  scheduler_->SetPeers(Number(), {kPeer}, false);
  EXPECT_EQ(scheduler_->version(), version) << "and back";
}

TEST_F(PeersTest, WhatPeersToldBeforeAnUpdateDoesNotCount) {
  const std::uint64_t before = Number();
  scheduler_->SetPeers(before, {kPeer}, false);
  scheduler_->WeightsChanging();
  EXPECT_FALSE(scheduler_->TakesPeers());
  scheduler_->SetPeers(before, {kPeer}, false);
  EXPECT_TRUE(Closed());
  EXPECT_FALSE(scheduler_->Pending());
  scheduler_->WeightsChanged();
  EXPECT_TRUE(scheduler_->Pending()) << "peers wait for what it has now";
  Tell({"c;4;0.0=x", "d;4;0.1=y"});
  scheduler_->SetPeers(before, {"c|d|;4;0.2=r,0.3=s"}, false);
  EXPECT_TRUE(Closed());
  scheduler_->SetPeers(Number(), {kPeer}, false);
  EXPECT_TRUE(Closed()) << "the peer has not changed yet";
  scheduler_->SetPeers(Number(), {"c|d|;4;0.2=r,0.3=s"}, false);
  EXPECT_FALSE(Closed());
}

TEST_F(PeersTest, AnEngineAloneHasAVersionOfItsOwn) {
  scheduler_->SetPeers(Number(), {kPeer}, false);
  const std::string version = scheduler_->version();
  scheduler_->SetPeers(Number(), {}, /*alone=*/true);
  EXPECT_FALSE(Closed());
  EXPECT_NE(scheduler_->version(), version);
}

}  // namespace
}  // namespace kvcove::connector
