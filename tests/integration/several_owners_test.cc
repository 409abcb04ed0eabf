// SPDX-License-Identifier: Apache-2.0
// Several owners on one host are one pool: in one process under one authority (`serve --numa`), and
// in a cluster as members that share a host. Processes that are killed: tests/fault.
#include <gtest/gtest.h>

#include "kvcove/pool/host_status.h"
#include "kvcove/requester/local/local_owners.h"
#include "kvcove/server/daemons.h"
#include "tests/becomes.h"
#include "tests/integration/cluster_fixture.h"

namespace kvcove {
namespace {

constexpr std::uint64_t kOwnerMemory = 4 << 20;

class SeveralOwnersTest : public ClusterFixture {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    std::string name = "/tmp/kvcove-several-XXXXXX";
    directory_ = mkdtemp(name.data());
    socket_ = directory_ + "/kvcove.sock";
    Serve();
    pool_ = Must(Pool::Open("unix:" + socket_, kCallTime));
    session_ = Must(pool_->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
    owners_.clear();
    ClusterFixture::TearDown();
  }
  void Serve() {
    server::DaemonOptions whole;
    whole.socket_path = socket_;
    whole.host.data_directory = directory_ + "/data";
    whole.host.owner.memory_bytes = 2 * kOwnerMemory;
    if (disks_) {
      for (const char* name : {"/disk-a", "/disk-b"}) {
        std::filesystem::create_directories(directory_ + name);
        whole.host.owner.disks.push_back({.path = directory_ + name, .size_bytes = 32 << 20});
      }
    }
    // As two nodes have it, without binding: this machine may have one.
    auto parts = Must(server::SplitDaemon(whole, {{.place = {}, .memory_bytes = kOwnerMemory},
                                                  {.place = {}, .memory_bytes = kOwnerMemory}}));
    auto daemons = server::OpenDaemons(parts, SystemClock::Instance());
    if (!daemons && daemons.error().detail.find("O_DIRECT") != std::string::npos) {
      GTEST_SKIP() << daemons.error().ToString();
    }
    ASSERT_TRUE(daemons) << daemons.error().ToString();
    owners_ = std::move(*daemons);
  }
  std::uint64_t Objects(std::size_t owner) { return owners_[owner]->host().owner().Stat().objects; }
  // The hint of what is free comes with the janitor's next round.
  void AwaitHints() {
    for (const auto& daemon : owners_) {
      owner::Owner& owner = daemon->host().owner();
      EXPECT_TRUE(Becomes(
          [&] { return owner.memory().header().header().free_bytes == owner.Stat().free_bytes; }));
    }
  }
  // Keys until each owner has some.
  std::vector<std::string> PutOnBoth(Session& session) {
    std::vector<std::string> keys;
    for (int i = 0; i < 200 && (Objects(0) == 0 || Objects(1) == 0); ++i) {
      keys.push_back(fmt::format("key-{}", i));
      EXPECT_EQ(Put(session, keys.back()), Code::kOk);
    }
    EXPECT_GT(Objects(0), 0U);
    EXPECT_GT(Objects(1), 0U);
    return keys;
  }

  void Restart() {
    session_.reset();
    pool_.reset();
    owners_.clear();
    Serve();
    if (HasFatalFailure() || IsSkipped()) return;
    pool_ = Must(Pool::Open("unix:" + socket_, kCallTime));
    session_ = Must(pool_->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  }

  bool disks_ = false;
  std::string socket_;
  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

// Each has a disk of its own. What was on it comes back to its owner, and a removal has reached
// all.
TEST_F(SeveralOwnersTest, EachHasItsDiskAndFindsItAgain) {
  disks_ = true;
  Restart();
  if (HasFatalFailure() || IsSkipped()) return;
  const std::string value(50'000, 'v');
  const auto put = [&](const std::string& key) {
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    (void)session_->Put(Must(session_->Capture({.timeout = kCallTime})), {&item, 1}, {&result, 1},
                        {.timeout = kCallTime});
    return result.code;
  };
  const auto look = [&](const std::string& key) {
    const std::string_view one = key;
    ItemResult result;
    (void)session_->Exists({&one, 1}, {&result, 1}, {.timeout = kCallTime});
    return result;
  };
  const auto disk_objects = [&](std::size_t owner) {
    return owners_[owner]->host().owner().Stat().disk_objects;
  };
  std::vector<std::string> keys;
  for (int i = 0; i < 400; ++i) {
    keys.push_back(fmt::format("key-{}", i));
    ASSERT_EQ(put(keys.back()), Code::kOk);
    ASSERT_TRUE(Becomes([&] { return AwaitStat(*pool_).disk_queued_bytes < (1 << 20); }));
  }
  ASSERT_TRUE(Becomes([&] { return AwaitStat(*pool_).disk_queued_bytes == 0; }));
  EXPECT_TRUE(Becomes([&] { return disk_objects(0) > 20 && disk_objects(1) > 20; }));
  std::vector<std::string> on_disk;
  for (const std::string& key : keys) {
    if (look(key).tier == Tier::kDisk) on_disk.push_back(key);
  }
  ASSERT_GT(on_disk.size(), 60U);
  for (std::size_t i = 0; i < on_disk.size(); ++i) {
    const std::string_view one = on_disk[i];
    ItemResult removed;
    if (i % 2 == 0) (void)session_->Remove({&one, 1}, {&removed, 1}, {.timeout = kCallTime});
  }
  Restart();
  ASSERT_FALSE(HasFatalFailure());
  for (std::size_t i = 0; i < on_disk.size(); ++i) {
    EXPECT_EQ(look(on_disk[i]).ok(), i % 2 == 1) << on_disk[i];
    if (i % 2 == 0) continue;
    EXPECT_EQ(put(on_disk[i]), Code::kExists) << "whichever owner has it";
  }
  // Without its disks the pool may remove what is on them: they start empty after that.
  disks_ = false;
  Restart();
  disks_ = true;
  Restart();
  for (const std::string& key : on_disk) EXPECT_FALSE(look(key).ok()) << key;
  EXPECT_EQ(disk_objects(0) + disk_objects(1), 0U);
}

TEST_F(SeveralOwnersTest, PutsSpreadAndEachIsFoundByAll) {
  const auto keys = PutOnBoth(*session_);
  EXPECT_EQ(Objects(0) + Objects(1), keys.size()) << "each value lies once";
  auto other = Must(Pool::Open("unix:" + socket_, kCallTime));
  auto session = Must(other->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  for (const std::string& key : keys) {
    EXPECT_TRUE(Exists(*session, key).ok()) << key;
    EXPECT_TRUE(Get(*session, key).ok()) << key;
    EXPECT_EQ(Put(*session, key), Code::kExists) << key;
  }
  std::vector<std::string_view> views(keys.begin(), keys.end());
  EXPECT_EQ(Must(session->LongestPrefix(views, {.timeout = kCallTime})), keys.size());
  EXPECT_EQ(Must(session->Count({.timeout = kCallTime})).objects, keys.size());
  EXPECT_EQ(Must(session->List("key-", {.timeout = kCallTime})).size(), keys.size());
  EXPECT_THAT(Must(session->Stat(views, {.timeout = kCallTime})),
              testing::Each(testing::Optional(testing::_)));
  EXPECT_EQ(AwaitStat(*pool_).objects, keys.size());
  EXPECT_EQ(AwaitStat(*pool_).payload_bytes, 2 * kOwnerMemory);
}

TEST_F(SeveralOwnersTest, OnlyThePlainSocketIsNeededAndASiblingsFindsTheRestNot) {
  EXPECT_EQ(requester::SocketsOf(socket_).size(), 2U);
  const std::string second = requester::SocketsOf(socket_)[1];
  EXPECT_EQ(requester::SocketsOf(second), std::vector<std::string>{second});
  const auto status = pool::StatusOfOwners(socket_, 15 * kSecond);
  ASSERT_EQ(status.size(), 2U);
  for (const auto& owner : status) {
    EXPECT_TRUE(owner.reached);
    EXPECT_TRUE(owner.lease_holds);
    EXPECT_EQ(owner.stat.payload_bytes, kOwnerMemory);
    EXPECT_EQ(owner.stat.sessions.size(), 1U) << "this pool's, and not that of the look";
  }
}

TEST_F(SeveralOwnersTest, AResetIsProvenAtEachOwner) {
  const auto keys = PutOnBoth(*session_);
  const Token before = Must(session_->Capture({.timeout = kCallTime}));
  auto other = Must(Pool::Open("unix:" + socket_, kCallTime));
  auto second = Must(other->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  for (const std::string& key : keys) EXPECT_TRUE(Exists(*second, key).ok());
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  for (const std::string& key : keys) {
    EXPECT_EQ(Exists(*session_, key).code, Code::kMiss) << key;
    EXPECT_EQ(Exists(*second, key).code, Code::kMiss) << key;
    EXPECT_EQ(Get(*second, key).code, Code::kMiss) << key;
    EXPECT_EQ(Put(*second, key, 5000, before), Code::kStale) << "begun before the reset";
  }
  for (const std::string& key : keys) EXPECT_EQ(Put(*second, key), Code::kOk);
}

TEST_F(SeveralOwnersTest, RemovalsPinsAndVersionsGoToEachOwner) {
  const auto keys = PutOnBoth(*session_);
  std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  ASSERT_TRUE(
      session_->Pin(views, PinKind::kSoft, milliseconds(60'000), results, {.timeout = kCallTime}));
  for (const ItemResult& result : results) EXPECT_TRUE(result.ok());
  const auto pinned = [](bool is) {
    return testing::Each(testing::Optional(testing::Field(&ObjectStat::soft_pinned, is)));
  };
  EXPECT_THAT(Must(session_->Stat(views, {.timeout = kCallTime})), pinned(true));
  ASSERT_TRUE(session_->Unpin(views, results, {.timeout = kCallTime}));
  EXPECT_THAT(Must(session_->Stat(views, {.timeout = kCallTime})), pinned(false));
  const std::string_view absent = "absent";
  ASSERT_TRUE(session_->Pin({&absent, 1}, PinKind::kSoft, milliseconds(1), results,
                            {.timeout = kCallTime}));
  EXPECT_EQ(results[0].code, Code::kMiss);
  EXPECT_TRUE(session_->NameVersions({}, {.timeout = kCallTime}));
  ASSERT_TRUE(session_->Remove(views, results, {.timeout = kCallTime}));
  for (const ItemResult& result : results) EXPECT_TRUE(result.ok());
  EXPECT_EQ(Objects(0) + Objects(1), 0U);
  ASSERT_TRUE(session_->Remove(views, results, {.timeout = kCallTime}));
  EXPECT_EQ(results[0].code, Code::kMiss);
  const auto again = PutOnBoth(*session_);
  EXPECT_EQ(Must(session_->RemoveMatching("key-*", {.timeout = kCallTime})), again.size());
}

// A hint of free memory decides; without it, an owner that is full would evict beside an empty one.
TEST_F(SeveralOwnersTest, AFullOwnerGivesWayToOneWithRoomBeforeItEvicts) {
  for (int i = 0; i < 24; ++i) {
    ASSERT_EQ(Put(*session_, fmt::format("big-{}", i), 256 << 10), Code::kOk);
    AwaitHints();
  }
  EXPECT_EQ(owners_[0]->host().owner().Stat().evictions, 0U);
  EXPECT_EQ(owners_[1]->host().owner().Stat().evictions, 0U);
  EXPECT_GE(Objects(0), 8U);
  EXPECT_GE(Objects(1), 8U);
  for (int i = 0; i < 24; ++i)
    EXPECT_TRUE(Get(*session_, fmt::format("big-{}", i), 256 << 10).ok());
}

// What is counted is what the engine asked, not how many owners were asked for it.
TEST_F(SeveralOwnersTest, ALookUpIsCountedOnceWhoeverHasTheKey) {
  const auto keys = PutOnBoth(*session_);
  const auto counted = [&] {
    wire::SessionCounters sum;
    for (const auto& owner : owners_) {
      const auto local = owner->host().owner().Stat().local;
      sum.lookups += local.lookups;
      sum.gets += local.gets;
      for (std::size_t i = 0; i < kMissReasons; ++i) sum.misses[i] += local.misses[i];
    }
    return sum;
  };
  const auto before = counted();
  for (const std::string& key : keys) {
    EXPECT_TRUE(Exists(*session_, key).ok());
    EXPECT_TRUE(Get(*session_, key).ok());
  }
  EXPECT_FALSE(Exists(*session_, "absent").ok());
  EXPECT_FALSE(Get(*session_, "absent").ok());
  const auto after = counted();
  EXPECT_EQ(after.lookups - before.lookups, keys.size() + 1);
  EXPECT_EQ(after.gets - before.gets, keys.size() + 1);
  const auto never = static_cast<std::size_t>(MissReason::kNeverPut);
  EXPECT_EQ(after.misses[never] - before.misses[never], 2U);
}

// An engine's sessions are at each owner; it ends with the last of them.
TEST_F(SeveralOwnersTest, AnEngineEndsWithItsLastSessionAtAnyOwner) {
  auto first = Must(pool_->OpenSession({.name = "n", .engine = "engine"}));
  ASSERT_TRUE(first->Reset({.timeout = kCallTime}));
  auto other = Must(Pool::Open("unix:" + socket_, kCallTime));
  auto second = Must(other->OpenSession({.name = "n", .engine = "engine"}));
  ASSERT_TRUE(second->Capture({.timeout = kCallTime}));
  EXPECT_EQ(Exists(*second, "k").reason, MissReason::kNeverPut);
  first.reset();
  auto third = Must(pool_->OpenSession({.name = "n", .engine = "engine"}));
  EXPECT_TRUE(third->Capture({.timeout = kCallTime})) << "the second session keeps it";
}

TEST_F(SeveralOwnersTest, ValuesOfAPoolThatHasStartedAgainAreGoneAndAllOwnersAreUsedAgain) {
  const auto keys = PutOnBoth(*session_);
  owners_.clear();
  EXPECT_EQ(Exists(*session_, keys[0]).code, Code::kMiss);
  Serve();
  EXPECT_TRUE(Becomes([&] {
    const auto stat = pool_->Stat();
    return stat && stat->payload_bytes == 2 * kOwnerMemory;
  }));
  for (const std::string& key : keys) EXPECT_FALSE(Exists(*session_, key).ok());
  (void)PutOnBoth(*session_);
}

// Another authority's values would outlive this pool's resets.
TEST_F(SeveralOwnersTest, AStrangersOwnerWithASiblingsNameIsNotUsed) {
  server::DaemonOptions options;
  options.socket_path = requester::SiblingSocket(socket_, "stranger");
  options.host.owner.memory_bytes = kOwnerMemory;
  auto stranger = Must(server::Daemon::Open(options, SystemClock::Instance()));
  auto pool = Must(Pool::Open("unix:" + socket_, kCallTime));
  EXPECT_EQ(AwaitStat(*pool).payload_bytes, 2 * kOwnerMemory) << "without the stranger's";
}

TEST_F(SeveralOwnersTest, ASecondOwnerUnderTheSameNameIsRefused) {
  server::DaemonOptions options;
  options.socket_path = socket_;
  options.host.owner.memory_bytes = kOwnerMemory;
  const auto second = server::Daemon::Open(options, SystemClock::Instance());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable);
}

}  // namespace
}  // namespace kvcove
