// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/etcd_masters.h"

#include <gtest/gtest.h>

#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/master/etcd/etcd_format.h"
#include "kvcove/master/etcd/fake_etcd.h"
#include "kvcove/pool/masters.h"
#include "tests/becomes.h"

namespace kvcove::server {
namespace {

const rpc::Address kFirst{.host = "m1", .port = 7400};
const rpc::Address kSecondMaster{.host = "m2", .port = 7401};
constexpr std::int64_t kShortly = 100 * kMillisecond;

class EtcdMastersTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    UseEtcd();
  }
  static Result<rpc::Addresses> Find(const std::string& text, std::int64_t within_ns) {
    const Clock& clock = SystemClock::Instance();
    return pool::FindMasters(text, clock.NowNs() + within_ns, clock);
  }
  std::string Place() const { return "etcd://" + etcd_.address().ToString() + "/pool"; }
  void Leads(const rpc::Address& address) {
    etcd_.Set("/pool/leader",
              master::Encode(master::EtcdLeader{.address = address.ToString(), .admin = ""}));
  }
  // What a client finds while kFirst leads.
  rpc::Addresses FindFirst() {
    Leads(kFirst);
    return Find(Place(), 60 * kSecond).value();
  }

  master::FakeEtcd etcd_;
};

TEST_F(EtcdMastersTest, AListNeedsNoEtcd) {
  const auto found = Find("m1,m2:7401", 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->list(), (std::vector{kFirst, kSecondMaster}));
  EXPECT_EQ(found->source(), nullptr);
  EXPECT_EQ(Find("etcd://m1", 0).error().code, Code::kInvalid) << "without a prefix";
}

TEST_F(EtcdMastersTest, WaitsForALeader) {
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    Leads(kFirst);
  });
  const auto found = Find(Place(), 60 * kSecond);
  later.join();
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(found->front(), kFirst);
  EXPECT_EQ(found->ToString(), Place());
}

TEST_F(EtcdMastersTest, SaysWhyEtcdNamesNone) {
  const auto says = [](const std::string& place, const std::string& text) {
    return Becomes([&] {  // on a slow machine not at first
      const auto none = Find(place, kShortly);
      return !none && none.error().code == Code::kUnavailable && none.error().detail.contains(text);
    });
  };
  EXPECT_TRUE(says(Place(), Place() + " names no leader: no pool is there"));
  etcd_.Set("/pool/head", "a pool's");
  EXPECT_TRUE(says(Place(), "none of its masters leads"));
  etcd_.Set("/pool/leader", "no leader's");
  EXPECT_EQ(Find(Place(), 60 * kSecond).error().code, Code::kCorrupt) << "and at once";
  const rpc::Address nobody = [] {
    rpc::Address free = rpc::LoopbackAddress(0);
    const auto taken = rpc::ListenTcp(free);
    return free;
  }();
  EXPECT_TRUE(says("etcd://" + nobody.ToString() + "/pool", "Connection refused"));
}

TEST_F(EtcdMastersTest, LooksAgainOnlyWhenTheLeaderIsDoubted) {
  const rpc::Addresses found = FindFirst();
  rpc::LeaderSource& source = *found.source();
  const std::size_t reads = etcd_.reads();
  Leads(kSecondMaster);
  source.Doubt(kSecondMaster);  // nobody asked that one
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(etcd_.reads(), reads);
  EXPECT_EQ(source.Current(), kFirst);
  source.Doubt(kFirst);
  EXPECT_TRUE(Becomes([&] { return source.Current() == kSecondMaster; }));
}

// The key of one that was killed stays for its lease, and then there is none for a moment.
TEST_F(EtcdMastersTest, StaysInDoubtUntilAnotherIsNamed) {
  const rpc::Addresses found = FindFirst();
  rpc::LeaderSource& source = *found.source();
  // One doubt lasts for several looks. It is over after 5 s, for which a busy machine may stand
  // still: then it is raised anew.
  const auto looks_twice = [&] {
    std::size_t reads = 0;
    std::int64_t until_ns = 0;
    for (int raised = 0; raised < 6;) {
      if (SystemClock::Instance().NowNs() >= until_ns) {
        ++raised;
        reads = etcd_.reads();
        until_ns = SystemClock::Instance().NowNs() + 4 * kSecond;
        source.Doubt(kFirst);
      }
      if (etcd_.reads() >= reads + 2) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  };
  EXPECT_TRUE(looks_twice());
  etcd_.Remove("/pool/leader");
  EXPECT_TRUE(looks_twice());
  EXPECT_EQ(source.Current(), kFirst);
  Leads(kSecondMaster);
  EXPECT_TRUE(Becomes([&] {
    source.Doubt(kFirst);
    return source.Current() == kSecondMaster;
  }));
}

TEST_F(EtcdMastersTest, WithoutEtcdTheLastLeaderStays) {
  const rpc::Addresses found = FindFirst();
  rpc::LeaderSource& source = *found.source();
  etcd_.Silence(true);
  const auto follows = [&] {
    source.Doubt(kFirst);
    return source.Current() == kSecondMaster;
  };
  EXPECT_TRUE(Becomes([&] { return follows() || etcd_.unanswered() > 0; }));
  EXPECT_EQ(source.Current(), kFirst);
  Leads(kSecondMaster);
  etcd_.Silence(false);
  EXPECT_TRUE(Becomes(follows));
}

}  // namespace
}  // namespace kvcove::server
