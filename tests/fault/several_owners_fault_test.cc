// SPDX-License-Identifier: Apache-2.0
// Two owners of one host as processes of a cluster, in one socket directory. One is killed.
#include "tests/fault/cluster_fault_fixture.h"

namespace kvcove {
namespace {

class SeveralOwnersFaultTest : public ClusterFaultTest {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    StartMaster();
    for (std::size_t i = 0; i < 2; ++i) StartOwnerOn("host", i, i + 1);
    // One requester knows the master, the other one only the socket directory.
    pool_ = Open("host");
    session_ = OpenSession(*pool_);
    ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
    near_ = Must(Pool::Open("unix:" + directory() + "/host/kvcove.sock", kCallTime));
    near_session_ = OpenSession(*near_);
  }
  void TearDown() override {
    near_session_.reset();
    near_.reset();
    ClusterFaultTest::TearDown();
  }
  std::uint64_t ObjectsAt(std::size_t i) {
    const auto pool = Pool::Open("unix:" + SocketOn("host", i), kCallTime);
    if (!pool) {
      ADD_FAILURE() << "owner " << i << ": " << pool.error().ToString();
      return 0;
    }
    return AwaitStat(**pool).objects;
  }
  // Batches, each of which goes to one owner.
  std::vector<std::string> FillBoth(Session& session, const std::string& prefix) {
    std::vector<std::string> all;
    for (int batch = 0; batch < 64; ++batch) {
      const auto keys = Keys(4, fmt::format("{}-{}", prefix, batch));
      const auto results = Put(session, keys);
      EXPECT_EQ(CountOk(results), keys.size()) << CodeName(results[0].code);
      all.insert(all.end(), keys.begin(), keys.end());
    }
    EXPECT_GT(ObjectsAt(0), 0U);
    EXPECT_GT(ObjectsAt(1), 0U);
    return all;
  }
  std::size_t AwaitGot(Session& session, const std::vector<std::string>& keys, std::size_t wanted) {
    const std::int64_t until = NowMs() + 60'000;
    std::size_t got = 0;
    while ((got = CountOk(Get(session, keys))) != wanted && NowMs() < until) {
      std::this_thread::sleep_for(milliseconds(20));
    }
    return got;
  }

  std::unique_ptr<Pool> near_;
  SessionPtr near_session_;
};

TEST_F(SeveralOwnersFaultTest, BothRequestersSeeOnePool) {
  const auto keys = FillBoth(*session_, "a");
  EXPECT_EQ(ObjectsAt(0) + ObjectsAt(1), keys.size()) << "each value lies once";
  EXPECT_EQ(CountOk(Get(*near_session_, keys)), keys.size());
  const auto again = Put(*near_session_, keys);
  EXPECT_TRUE(std::ranges::all_of(
      again, [](const ItemResult& result) { return result.code == Code::kExists; }));
  const auto more = FillBoth(*near_session_, "b");
  EXPECT_EQ(CountOk(Get(*session_, more)), more.size());
  std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  ASSERT_TRUE(near_session_->Remove(views, results, {.timeout = kCallTime}));
  EXPECT_EQ(CountOk(results), keys.size());
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  EXPECT_EQ(CountOk(Get(*session_, more)), 0U);
  EXPECT_EQ(CountOk(Get(*near_session_, more)), 0U) << "the reset is fenced at both owners";
}

TEST_F(SeveralOwnersFaultTest, AKilledOwnerCostsItsOwnObjectsOnly) {
  const auto keys = FillBoth(*session_, "a");
  const std::uint64_t left = ObjectsAt(0);
  End(std::exchange(owner(1), 0), SIGKILL);
  EXPECT_EQ(AwaitGot(*session_, keys, left), left);
  EXPECT_EQ(AwaitGot(*near_session_, keys, left), left);
  // Puts go on, to the other one.
  EXPECT_EQ(CountOk(Put(*near_session_, Keys(20, "meanwhile"))), 20U);
  EXPECT_EQ(CountOk(Get(*near_session_, Keys(20, "meanwhile"))), 20U);
  // A reset is proven although one owner is dead, and what comes back is under the new generation.
  ASSERT_TRUE(near_session_->Reset({.timeout = kCallTime}));
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
  StartOwnerOn("host", 1, 2);
  EXPECT_EQ(CountOk(Get(*near_session_, keys)), 0U);
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
  // Both requesters find it again by themselves.
  const std::int64_t until = NowMs() + 60'000;
  for (int round = 0; ObjectsAt(1) == 0 && NowMs() < until; ++round) {
    EXPECT_EQ(CountOk(Put(*near_session_, Keys(4, fmt::format("again-{}", round)))), 4U);
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_GT(ObjectsAt(1), 0U);
}

}  // namespace
}  // namespace kvcove
