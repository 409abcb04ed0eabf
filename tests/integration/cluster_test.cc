// SPDX-License-Identifier: Apache-2.0
// A master, owners and requesters over loopback TCP, in one process.
#include "kvcove/master/cluster.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/pool/daemon.h"
#include "kvcove/pool/pool.h"

namespace kvcove {
namespace {

using std::chrono::milliseconds;

class ClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    std::string name = "/tmp/kvcove-cluster-XXXXXX";
    directory_ = mkdtemp(name.data());
    StartMaster();
    for (int i = 0; i < 2; ++i) StartOwner();
  }
  void TearDown() override {
    owners_.clear();
    master_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartMaster(std::uint16_t port = 0) {
    auto master = master::Cluster::Open(
        {.listen = {.host = "127.0.0.1", .port = port}, .data_directory = directory_ + "/master"},
        SystemClock::Instance());
    ASSERT_TRUE(master) << master.error().ToString();
    master_ = std::move(*master);
  }
  void StartOwner(std::uint64_t memory = 64 << 20) {
    const std::size_t number = next_owner_++;
    pool::DaemonOptions options;
    options.socket_path = fmt::format("{}/owner{}/kvcove.sock", directory_, number);
    options.host.owner.memory_bytes = memory;
    options.host.cluster = {.master = master_->address(), .host = fmt::format("host{}", number)};
    auto owner = pool::Daemon::Open(options, SystemClock::Instance());
    ASSERT_TRUE(owner) << owner.error().ToString();
    owners_.push_back(std::move(*owner));
    WaitLive(owners_.size());
  }
  void WaitLive(std::size_t count) {
    for (int i = 0; i < 1000; ++i) {
      const auto stat = master_->Stat();
      if (static_cast<std::size_t>(std::ranges::count_if(stat.owners, &wire::OwnerStat::live)) ==
          count) {
        return;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    FAIL() << "the owners did not get their leases";
  }
  // A requester on a host without owner, or on that of owner `host`.
  std::unique_ptr<Pool> Open(const std::string& host = "elsewhere") {
    auto pool = Pool::Open(fmt::format("kvcove://{}?host={}", master_->address().ToString(), host),
                           milliseconds(2000));
    EXPECT_TRUE(pool) << pool.error().ToString();
    return std::move(*pool);
  }
  static std::unique_ptr<Session> OpenSession(Pool& pool, const std::string& engine = "e1",
                                              bool assume_weights = false) {
    return *pool.OpenSession(
        {.name = "acme/llama", .engine = engine, .assume_weights = assume_weights});
  }

  static std::string Value(const std::string& key, std::size_t size) {
    std::string value(size, '\0');
    Random random(std::hash<std::string>()(key));
    for (char& byte : value) byte = static_cast<char>(random.Next());
    return value;
  }
  static Code Put(Session& session, const std::string& key, std::size_t size = 5000,
                  std::optional<Token> token = std::nullopt) {
    const std::string value = Value(key, size);
    const ConstBuffer pieces[] = {{value.data(), size / 2},
                                  {value.data() + size / 2, size - size / 2}};
    const PutItem item{.key = key, .value = pieces};
    ItemResult result;
    if (!token) {
      auto captured = session.Capture();
      if (!captured) return captured.error().code;
      token = *captured;
    }
    const Status status = session.Put(*token, {&item, 1}, {&result, 1});
    if (!status) return status.error().code;
    return result.code;
  }
  static ItemResult Get(Session& session, const std::string& key, std::size_t size = 5000) {
    std::string value(size, '\0');
    const MutableBuffer pieces[] = {{value.data(), size / 3},
                                    {value.data() + size / 3, size - size / 3}};
    const GetItem item{.key = key, .into = pieces};
    ItemResult result;
    const Status status = session.Get({&item, 1}, {&result, 1});
    EXPECT_TRUE(status);
    if (result.ok()) EXPECT_EQ(value, Value(key, size)) << "wrong bytes";
    return result;
  }
  static ItemResult Exists(Session& session, const std::string& key) {
    const std::string_view keys[] = {key};
    ItemResult result;
    EXPECT_TRUE(session.Exists(keys, {&result, 1}));
    return result;
  }

  std::string directory_;
  std::unique_ptr<master::Cluster> master_;
  std::vector<std::unique_ptr<pool::Daemon>> owners_;
  std::size_t next_owner_ = 0;
};

TEST_F(ClusterTest, WhatOneHostStoresAllFind) {
  auto far = Open();
  auto here = Open("host0");
  auto far_session = OpenSession(*far);
  auto here_session = OpenSession(*here);
  for (const std::size_t size : {1UL, 5000UL, 100'000UL, 3'000'000UL}) {
    const std::string a = fmt::format("from-far-{}", size);
    const std::string b = fmt::format("from-here-{}", size);
    EXPECT_EQ(Put(*far_session, a, size), Code::kOk);
    EXPECT_EQ(Put(*here_session, b, size), Code::kOk);
    for (Session* session : {far_session.get(), here_session.get()}) {
      for (const std::string& key : {a, b}) {
        EXPECT_TRUE(Exists(*session, key).ok()) << key;
        EXPECT_EQ(Exists(*session, key).bytes, size);
        EXPECT_TRUE(Get(*session, key, size).ok()) << key;
        EXPECT_EQ(Put(*session, key, size), Code::kExists) << key;
      }
    }
  }
  // The one on a host with an owner stored there.
  EXPECT_GT(owners_[0]->host().owner().Stat().objects, 3U);
  EXPECT_EQ(Exists(*far_session, "never").reason, MissReason::kWarmingUp);
}

TEST_F(ClusterTest, ResetIsAFenceForAllHosts) {
  auto far = Open();
  auto here = Open("host1");
  auto engine = OpenSession(*far, "e1");
  auto same = OpenSession(*here, "e1");
  const Token old = *engine->Capture();
  EXPECT_EQ(Put(*engine, "a"), Code::kOk);
  EXPECT_EQ(Put(*same, "b"), Code::kOk);
  const Status reset = engine->Reset();
  ASSERT_TRUE(reset) << reset.error().ToString();
  for (const std::string key : {"a", "b"}) {
    EXPECT_FALSE(Get(*engine, key).ok());
    EXPECT_FALSE(Get(*same, key).ok());
    EXPECT_FALSE(Exists(*same, key).ok());
  }
  EXPECT_EQ(Put(*engine, "c", 5000, old), Code::kStale);
  EXPECT_EQ(Put(*same, "c", 5000, old), Code::kStale);
  EXPECT_EQ(Put(*engine, "c", 100'000, old), Code::kStale);
  EXPECT_EQ(Put(*same, "c"), Code::kOk);
  EXPECT_TRUE(Get(*engine, "c").ok());
}

TEST_F(ClusterTest, RemovalReachesAllHosts) {
  auto far = Open();
  auto here = Open("host0");
  auto a = OpenSession(*far);
  auto b = OpenSession(*here);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(Put(i % 2 == 0 ? *a : *b, fmt::format("k{}", i)), Code::kOk);
  EXPECT_EQ(Put(*a, "other"), Code::kOk);
  const std::string_view keys[] = {"k0", "k1", "never"};
  ItemResult results[3];
  ASSERT_TRUE(b->Remove(keys, results));
  EXPECT_TRUE(results[0].ok());
  EXPECT_TRUE(results[1].ok());
  EXPECT_EQ(results[2].code, Code::kMiss);
  for (Session* session : {a.get(), b.get()}) {
    EXPECT_FALSE(Exists(*session, "k0").ok());
    EXPECT_FALSE(Get(*session, "k1").ok());
    EXPECT_TRUE(Get(*session, "k2").ok());
  }
  const auto removed = a->RemoveMatching("k*");
  ASSERT_TRUE(removed) << removed.error().ToString();
  EXPECT_EQ(*removed, 18U);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Exists(*a, fmt::format("k{}", i)).ok()) << i;
    EXPECT_FALSE(Exists(*b, fmt::format("k{}", i)).ok()) << i;
  }
  EXPECT_TRUE(Exists(*b, "other").ok());
}

TEST_F(ClusterTest, DirectoryComesBackFromTheOwners) {
  auto far = Open();
  auto session = OpenSession(*far);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i)), Code::kOk);
  const std::uint16_t port = master_->address().port;
  const Id128 incarnation = master_->Stat().incarnation;
  master_.reset();
  StartMaster(port);
  EXPECT_EQ(master_->Stat().incarnation, incarnation);
  EXPECT_EQ(master_->Stat().term, 2U);
  WaitLive(2);
  int found = 0;
  for (int tries = 0; tries < 100 && found < 200; ++tries) {
    found = 0;
    for (int i = 0; i < 200; ++i) found += Get(*session, fmt::format("k{}", i)).ok() ? 1 : 0;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(found, 200) << MissReasonName(Get(*session, "k1").reason);
  // And fenced like before.
  const Token old = *session->Capture();
  ASSERT_TRUE(session->Reset());
  EXPECT_FALSE(Get(*session, "k1").ok());
  EXPECT_EQ(Put(*session, "late", 5000, old), Code::kStale);
}

TEST_F(ClusterTest, AStoppedOwnerIsNoHitAndNoHang) {
  auto far = Open();
  auto session = OpenSession(*far);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i)), Code::kOk);
  owners_.erase(owners_.begin());
  int hits = 0;
  for (int i = 0; i < 50; ++i) hits += Get(*session, fmt::format("k{}", i)).ok() ? 1 : 0;
  EXPECT_LT(hits, 50);
  EXPECT_EQ(Put(*session, "after"), Code::kOk);
  EXPECT_TRUE(Get(*session, "after").ok());
  ASSERT_TRUE(session->Reset());
  EXPECT_FALSE(Get(*session, "after").ok());
}

TEST_F(ClusterTest, ReplicasOutliveAnOwner) {
  auto far = Open();
  auto opened = far->OpenSession({.name = "acme/llama", .engine = "e1", .replicas = 2});
  ASSERT_TRUE(opened);
  Session& session = **opened;
  const std::string value = Value("r", 9000);
  const ConstBuffer piece{value.data(), value.size()};
  const PutItem item{.key = "r", .value = {&piece, 1}};
  ItemResult result;
  ASSERT_TRUE(session.Put({&item, 1}, {&result, 1}));
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.replicas, 2U);
  owners_.erase(owners_.begin());
  EXPECT_TRUE(Get(session, "r", 9000).ok());
}

TEST_F(ClusterTest, EvictedObjectsAreForgotten) {
  auto far = Open();
  auto session = OpenSession(*far);
  for (int i = 0; i < 400; ++i) {
    ASSERT_EQ(Put(*session, fmt::format("k{}", i), 512 * 1024), Code::kOk) << i;
  }
  int listed = 0;
  int got = 0;
  std::this_thread::sleep_for(milliseconds(100));
  for (int i = 0; i < 400; ++i) {
    const std::string key = fmt::format("k{}", i);
    const bool there = Exists(*session, key).ok();
    listed += there ? 1 : 0;
    got += Get(*session, key, 512 * 1024).ok() ? 1 : 0;
  }
  EXPECT_EQ(listed, got);
  EXPECT_GT(got, 150);
  EXPECT_LT(got, 257);
}

}  // namespace
}  // namespace kvcove
