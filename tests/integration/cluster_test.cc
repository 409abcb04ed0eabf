// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "kvcove/base/size.h"
#include "kvcove/requester/local/fake_daemon.h"
#include "kvcove/rpc/channel.h"
#include "tests/held_device.h"
#include "tests/integration/cluster_fixture.h"

namespace kvcove {
namespace {

class ClusterTest : public ClusterFixture {};

TEST_F(ClusterTest, WhatOneHostStoresAllFind) {
  auto far = Open();
  auto here = Open("host0");
  auto far_session = OpenSession(*far);
  auto here_session = OpenSession(*here);
  const MissReason never = Exists(*far_session, "never").reason;
  EXPECT_TRUE(never == MissReason::kWarmingUp || NowMs() >= master_starts_ms_ + 2000)
      << MissReasonName(never) << ", in the two seconds for which a master listens first";
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
}

TEST_F(ClusterTest, ResetIsAFenceForAllHosts) {
  auto far = Open();
  auto here = Open("host1");
  auto engine = OpenSession(*far, "e1");
  auto same = OpenSession(*here, "e1");
  const Token old = Must(engine->Capture({.timeout = kCallTime}));
  EXPECT_EQ(Put(*engine, "a"), Code::kOk);
  EXPECT_EQ(Put(*same, "b"), Code::kOk);
  const Status reset = engine->Reset({.timeout = kCallTime});
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

TEST_F(ClusterTest, DeadVersionsAreDeadForAllHostsAndForTheNextMaster) {
  auto far = Open();
  auto here = Open("host1");
  auto engine = OpenSession(*far, "e1");
  auto other = OpenSession(*here, "e2");
  const auto versioned = [](std::string_view version) {
    return CallOptions{.timeout = kCallTime, .version = version};
  };
  std::map<std::string, Token> tokens;
  for (const std::string version : {"v2", "v1", "v3"}) {
    tokens[version] = Must(engine->Capture(versioned(version)));
    Must(other->Capture(versioned(version)));
    for (Session* session : {engine.get(), other.get()}) {
      const auto key = fmt::format("{}-{}", version, session == engine.get() ? 0 : 1);
      ASSERT_EQ(Put(*session, key, 5000, tokens[version]), Code::kOk);
    }
  }
  const auto found = [&](Session& session, const std::string& version) {
    const std::string both[] = {version + "-0", version + "-1"};
    const std::string_view keys[] = {both[0], both[1]};
    std::array<ItemResult, 2> results;
    (void)session.Exists(keys, results, versioned(version));
    return std::ranges::count_if(results, &ItemResult::ok);
  };
  for (Session* session : {engine.get(), other.get()}) ASSERT_EQ(found(*session, "v2"), 2);
  const auto pruned = other->Prune("v1", {.timeout = kCallTime});
  ASSERT_TRUE(pruned) << pruned.error().ToString();
  EXPECT_EQ(*pruned, 1U) << "v2 was named before v1";
  const auto expect_dead = [&] {
    for (Session* session : {engine.get(), other.get()}) {
      EXPECT_EQ(found(*session, "v2"), 0);
      EXPECT_EQ(Put(*session, "late", 5000, tokens["v2"]), Code::kStale);
      EXPECT_EQ(session->Capture(versioned("v2")).error().code, Code::kDenied);
    }
  };
  expect_dead();
  for (Session* session : {engine.get(), other.get()}) {
    EXPECT_EQ(found(*session, "v1"), 2);
    EXPECT_EQ(found(*session, "v3"), 2);
  }
  EXPECT_EQ(engine->Prune("v9", {.timeout = kCallTime}).error().code, Code::kInvalid);
  const std::uint16_t port = master_->address().port;
  master_.reset();
  StartMaster(port);
  WaitLive(2);
  expect_dead();
  EXPECT_TRUE(Becomes([&] { return found(*engine, "v1") == 2 && found(*other, "v3") == 2; }));
  EXPECT_EQ(Must(engine->Prune("v3", {.timeout = kCallTime})), 1U) << "the order is stored, too";
}

TEST_F(ClusterTest, ASaveUnderWayIsSeenFromOtherHosts) {
  auto first = Open("host0");
  auto second = Open("host1");
  auto session = OpenSession(*first, "e1");
  auto other = OpenSession(*second, "e2");
  const auto ask = [&](std::string_view key) {
    ItemResult result;
    EXPECT_TRUE(other->Exists({&key, 1}, {&result, 1}, {.timeout = kCallTime, .under_way = true}));
    return result;
  };
  const std::vector<std::string_view> keys = {"a", "b", "c"};
  const Token token = *session->Capture({.timeout = kCallTime});
  EXPECT_FALSE(ask("a").under_way);
  ASSERT_TRUE(session->Announce(token, keys, SaveNotice::kBegin, {.timeout = kCallTime}));
  EXPECT_TRUE(ask("a").under_way);
  EXPECT_TRUE(ask("b").under_way);
  EXPECT_FALSE(ask("d").under_way);
  ASSERT_EQ(Put(*session, "a", 5000, token), Code::kOk);
  EXPECT_TRUE(ask("a").ok());
  ASSERT_TRUE(session->Announce(token, std::span(keys).subspan(1, 1), SaveNotice::kEnd,
                                {.timeout = kCallTime}));
  EXPECT_FALSE(ask("b").under_way) << "withdrawn";
  EXPECT_TRUE(ask("c").under_way);
  // The first engine ends, as one that is killed: its connections do.
  session.reset();
  first.reset();
  EXPECT_TRUE(Becomes([&] { return !ask("c").under_way; }, milliseconds(1500)));
}

TEST_F(ClusterTest, AResetEndsTheSavesThatAreUnderWay) {
  auto first = Open("host0");
  auto second = Open("host1");
  auto session = OpenSession(*first, "e1");
  auto other = OpenSession(*second, "e2");
  const std::string_view key = "a";
  const Token token = *session->Capture({.timeout = kCallTime});
  ASSERT_TRUE(session->Announce(token, {&key, 1}, SaveNotice::kBegin, {.timeout = kCallTime}));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  ASSERT_TRUE(other->Reset({.timeout = kCallTime}));
  ItemResult result;
  ASSERT_TRUE(other->Exists({&key, 1}, {&result, 1}, {.timeout = kCallTime, .under_way = true}));
  EXPECT_EQ(result.code, Code::kMiss);
  EXPECT_FALSE(result.under_way);
  // Nor does an announcement under the old generation count.
  EXPECT_FALSE(session->Announce(token, {&key, 1}, SaveNotice::kBegin, {.timeout = kCallTime}));
  ASSERT_TRUE(other->Exists({&key, 1}, {&result, 1}, {.timeout = kCallTime, .under_way = true}));
  EXPECT_FALSE(result.under_way);
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
  ASSERT_TRUE(b->Remove(keys, results, {.timeout = kCallTime}));
  EXPECT_TRUE(results[0].ok());
  EXPECT_TRUE(results[1].ok());
  EXPECT_EQ(results[2].code, Code::kMiss);
  for (Session* session : {a.get(), b.get()}) {
    EXPECT_FALSE(Exists(*session, "k0").ok());
    EXPECT_FALSE(Get(*session, "k1").ok());
    EXPECT_TRUE(Get(*session, "k2").ok());
  }
  const auto removed = a->RemoveMatching("k*", {.timeout = kCallTime});
  ASSERT_TRUE(removed) << removed.error().ToString();
  EXPECT_EQ(*removed, 18U);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(Exists(*a, fmt::format("k{}", i)).ok()) << i;
    EXPECT_FALSE(Exists(*b, fmt::format("k{}", i)).ok()) << i;
  }
  EXPECT_TRUE(Exists(*b, "other").ok());
}

TEST_F(ClusterTest, WhatAllHostsStoreIsListedCountedAndPlaced) {
  auto here = Open("host0");
  auto there = Open("host1");
  auto elsewhere = Open();
  auto one = OpenSession(*here);
  auto two = OpenSession(*there);
  auto far = OpenSession(*elsewhere);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(Put(i % 2 == 0 ? *one : *two, fmt::format("key-{}", i)), Code::kOk);
  }
  const auto listed = far->List("key-", {.timeout = kCallTime});
  ASSERT_TRUE(listed) << listed.error().ToString();
  EXPECT_EQ(listed->size(), 20U);
  EXPECT_EQ(listed->front().size_bytes, 5000U);
  const std::string_view keys[] = {"key-0", "key-1", "nothing"};
  const auto where = far->Where(keys, {.timeout = kCallTime});
  ASSERT_TRUE(where);
  EXPECT_EQ((*where)[0], std::vector<std::string>{owners_[0]->host().address()});
  EXPECT_EQ((*where)[1], std::vector<std::string>{owners_[1]->host().address()});
  EXPECT_TRUE((*where)[2].empty());
  ASSERT_EQ(Must(far->Count({.timeout = kCallTime})).objects, 20U);
  ASSERT_TRUE(one->Reset({.timeout = kCallTime}));
  EXPECT_EQ(Must(one->Count({.timeout = kCallTime})).voided, 20U);
  EXPECT_EQ(Must(one->Count({.timeout = kCallTime})).objects, 0U);
}

TEST_F(ClusterTest, AProcessPrefersTheOwnerThatItNames) {
  // Two owners on one host: the one that is named is used directly.
  owners_.clear();
  next_owner_ = 0;
  for (int i = 0; i < 2; ++i) {
    server::DaemonOptions options;
    options.socket_path = fmt::format("{}/same{}/kvcove.sock", directory_, i);
    options.host.owner.memory_bytes = 16 << 20;
    options.host.cluster = {.master = master_->address(), .host = "one host"};
    auto owner = server::Daemon::Open(options, SystemClock::Instance());
    ASSERT_TRUE(owner) << owner.error().ToString();
    owners_.push_back(std::move(*owner));
  }
  WaitLive(2);
  for (const auto& owner : owners_) {
    const std::string address = owner->host().address();
    auto pool = Must(Pool::Open(
        fmt::format("kvcove://{}?host=one host&owner={}", master_->address().ToString(), address),
        kCallTime));
    auto session = OpenSession(*pool);
    const std::string key = "at " + address;
    ASSERT_EQ(Put(*session, key), Code::kOk);
    const std::string_view keys[] = {key};
    EXPECT_EQ(Must(session->Where(keys, {.timeout = kCallTime})).front(),
              std::vector<std::string>{address});
  }
}

// The owner of this host is of the build before: its memory cannot be mapped, its values can be
// had.
TEST_F(ClusterTest, AnOwnerWithAnotherLayoutIsReachedThroughSocketsAfterOneWarning) {
  const std::string path = directory_ + "/owner0/kvcove.sock";
  const std::string listening = directory_ + "/old/kvcove.sock";
  requester::FakeDaemon old(listening, requester::FakeDaemon::Build::kOlder);
  old.Start();
  // In one step: an owner whose socket's name is free for a moment binds it again.
  std::filesystem::create_hard_link(listening, path + ".new");
  std::filesystem::rename(path + ".new", path);
  SetLogLevel(LogLevel::kWarn);
  testing::internal::CaptureStderr();
  {
    auto pool = Open("host0");
    auto session = OpenSession(*pool);
    const std::string key = "through a socket";
    ASSERT_EQ(Put(*session, key, 100'000), Code::kOk);
    const std::string_view keys[] = {key};
    EXPECT_EQ(Must(session->Where(keys, {.timeout = kCallTime})).front(),
              std::vector<std::string>{owners_[0]->host().address()})
        << "the owner of this host is still the nearest";
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(Get(*session, key, 100'000).ok());
    EXPECT_EQ(Get(*session, key, 100'000).tier, Tier::kRemoteMemory);
    // It asks again now and then, and says no more.
    const int before = old.hellos;
    EXPECT_TRUE(Becomes([&] { return old.hellos > before; }));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const std::size_t said = log.find("layout version 3");
  EXPECT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("layout version 3", said + 1), std::string::npos) << log;
  EXPECT_NE(log.find("travel over TCP"), std::string::npos) << log;
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
  EXPECT_TRUE(Becomes([&] {
    found = 0;
    for (int i = 0; i < 200; ++i) found += Get(*session, fmt::format("k{}", i)).ok() ? 1 : 0;
    return found == 200;
  })) << found
      << " of 200, " << MissReasonName(Get(*session, "k1").reason);
  // And fenced like before.
  const Token old = Must(session->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_FALSE(Get(*session, "k1").ok());
  EXPECT_EQ(Put(*session, "late", 5000, old), Code::kStale);
}

TEST_F(ClusterTest, AStoppedOwnerIsNoHitAndNoHang) {
  auto far = Open();
  auto session = OpenSession(*far);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i)), Code::kOk);
  owners_.erase(owners_.begin());
  const Slowness slowness;
  const std::int64_t began_ms = NowMs();
  int hits = 0;
  for (int i = 0; i < 50; ++i) hits += Get(*session, fmt::format("k{}", i)).ok() ? 1 : 0;
  EXPECT_LT(NowMs() - began_ms - slowness.ms(), 5000) << "none waits for its timeout of 15 s";
  EXPECT_LT(hits, 50);
  EXPECT_EQ(Put(*session, "after"), Code::kOk);
  EXPECT_TRUE(Get(*session, "after").ok());
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
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
  ASSERT_TRUE(session.Put({&item, 1}, {&result, 1}, {.timeout = kCallTime}));
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
  // The master hears of evictions a moment later.
  EXPECT_TRUE(Becomes([&] {
    listed = got = 0;
    for (int i = 0; i < 400; ++i) {
      const std::string key = fmt::format("k{}", i);
      listed += Exists(*session, key).ok() ? 1 : 0;
      got += Get(*session, key, 512 * 1024).ok() ? 1 : 0;
    }
    return listed == got;
  })) << listed
      << " are listed, " << got << " are there";
  EXPECT_GT(got, 150);
  EXPECT_LT(got, 257);
}

TEST_F(ClusterTest, OneMasterAtATimeOnAGenerationFile) {
  const auto second = master::MasterServer::Open(
      {.listen = rpc::LoopbackAddress(0), .data_directory = directory_ + "/master"},
      SystemClock::Instance());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kUnavailable) << second.error().ToString();
}

TEST_F(ClusterTest, AMasterThatKnowsLessThanAnOwnerVoidsEverything) {
  auto pool = Open();
  auto session = OpenSession(*pool);
  ASSERT_EQ(Put(*session, "a", 1000), Code::kOk);
  // As an owner that has followed a later master, whose facts this one's store does not have.
  const auto stat = master_->Stat();
  rpc::TcpChannel channel(master_->address(), {});
  const std::string hello = wire::Encode(
      wire::OwnerHello{.pool = stat.pool,
                       .incarnation = stat.incarnation,
                       .seen = {.term = stat.term + 1, .tag = 1, .revision = stat.revision + 1},
                       .owner = RandomId(),
                       .process = RandomId(),
                       .address = "127.0.0.1:1"});
  const auto answer = channel.Call(wire::Method::kOwnerHello, std::as_bytes(std::span(hello)),
                                   SystemClock::Instance().NowNs() + 15 * kSecond);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::kStale);
  EXPECT_THAT(answer.error().detail, testing::HasSubstr("lost facts"));
  const std::int64_t until = SystemClock::Instance().NowNs() + 60 * kSecond;
  while (master_->Stat().incarnation == stat.incarnation &&
         SystemClock::Instance().NowNs() < until) {
    std::this_thread::yield();
  }
  EXPECT_NE(master_->Stat().incarnation, stat.incarnation);
  EXPECT_EQ(master_->Stat().pool, stat.pool);
  // Everything works again, on nothing.
  Code code = Code::kStale;
  while (code != Code::kOk && SystemClock::Instance().NowNs() < until) {
    EXPECT_FALSE(Get(*session, "a", 1000).ok());
    code = Put(*session, "a", 1000);
  }
  EXPECT_EQ(code, Code::kOk);
}

TEST_F(ClusterTest, TokensOfAnotherMasterAreOfNoUse) {
  auto other = master::MasterServer::Open({.listen = {.host = "127.0.0.1", .port = 0}},
                                          SystemClock::Instance());
  ASSERT_TRUE(other);
  auto pool = Pool::Open("kvcove://" + (*other)->address().ToString(), kCallTime);
  ASSERT_TRUE(pool);
  auto lost = OpenSession(**pool);
  const auto token = lost->Capture({.timeout = kCallTime});
  ASSERT_TRUE(token);
  auto mine = Open();
  auto session = OpenSession(*mine);
  ASSERT_TRUE(session->Capture({.timeout = kCallTime}));
  EXPECT_EQ(Put(*session, "a", 1000, *token), Code::kStale);
  EXPECT_EQ(Put(*session, "a", 1000), Code::kOk);
}

TEST_F(ClusterTest, Ipv6) {
  const rpc::Address any{.host = "::1", .port = 0};
  auto master = master::MasterServer::Open({.listen = any}, SystemClock::Instance());
  if (!master) GTEST_SKIP() << master.error().ToString();
  EXPECT_TRUE((*master)->address().ToString().starts_with("[::1]:"));
  std::vector<std::unique_ptr<server::Daemon>> owners;
  for (int i = 0; i < 2; ++i) {
    server::DaemonOptions options;
    options.socket_path = fmt::format("{}/six{}/s", directory_, i);
    options.host.owner.memory_bytes = 64 << 20;
    options.host.cluster = {
        .master = (*master)->address(), .listen = any, .host = fmt::format("six{}", i)};
    auto owner = server::Daemon::Open(options, SystemClock::Instance());
    ASSERT_TRUE(owner) << owner.error().ToString();
    owners.push_back(std::move(*owner));
  }
  ASSERT_TRUE(Becomes([&] {
    const auto stat = (*master)->Stat();
    return std::ranges::count_if(stat.owners, &wire::OwnerStat::live) == 2;
  }));
  auto pool = Pool::Open("kvcove://" + (*master)->address().ToString() + "?host=x", kCallTime);
  ASSERT_TRUE(pool) << pool.error().ToString();
  const std::string preferred = owners[1]->host().address();
  EXPECT_TRUE(preferred.starts_with("[::1]:"));
  auto session =
      Must((*pool)->OpenSession({.name = "six", .engine = "e", .preferred_segment = preferred}));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Put(*session, fmt::format("k{}", i)), Code::kOk);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Get(*session, fmt::format("k{}", i)).ok());
  EXPECT_EQ(owners[1]->host().owner().Stat().objects, 20U);
}

TEST_F(ClusterTest, AnOwnerThatComesLaterIsUsedDirectly) {
  auto pool = Open("host2");
  auto session = OpenSession(*pool);
  EXPECT_EQ(Put(*session, "far"), Code::kOk);
  StartOwner();  // on host2
  // What it gets over TCP stands still: values go straight into its memory.
  const auto received = [&] {
    Metrics metrics;
    owners_[2]->host().Collect(metrics);
    const std::string text = metrics.Text();
    const std::string name = "\nkvcove_owner_received_bytes_total ";
    return std::stod(text.substr(text.find(name) + name.size()));
  };
  bool direct = false;
  for (int i = 0; i < 1000 && !direct; ++i) {
    const double before = received();
    const std::uint64_t held = owners_[2]->host().owner().Stat().objects;
    for (int k = 0; k < 20; ++k) {
      EXPECT_EQ(Put(*session, fmt::format("here{}-{}", i, k)), Code::kOk);
    }
    direct = received() == before && owners_[2]->host().owner().Stat().objects == held + 20;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(direct);
  EXPECT_TRUE(Get(*session, "far").ok());
  EXPECT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_FALSE(Get(*session, "far").ok());
}

TEST_F(ClusterTest, APutFindsOwnersThatHaveJustTakenTheOthersPlace) {
  auto pool = Open();
  auto session = OpenSession(*pool);
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_EQ(Put(*session, fmt::format("before {}", turn)), Code::kOk) << turn;
    owners_.clear();
    next_owner_ = 0;  // under the same names
    for (int i = 0; i < 2; ++i) StartOwner();
    ASSERT_EQ(Put(*session, fmt::format("behind {}", turn)), Code::kOk) << turn;
  }
}

TEST_F(ClusterTest, AnOwnerThatIsNotKnownYetIsAskedForOnceABatch) {
  auto pool = Open();
  auto session = OpenSession(*pool);
  std::vector<std::string> keys;
  for (int i = 0; i < 500; ++i) keys.push_back(fmt::format("k{}", i));
  for (const std::string& key : keys) ASSERT_EQ(Put(*session, key, 100), Code::kOk);
  // A requester that has not heard of the owners yet, as when they came a moment ago.
  const std::uint64_t before = master_->Stat().lookups;
  auto fresh = Open();
  auto reader = OpenSession(*fresh, "e1");
  std::vector<std::string> values(keys.size(), std::string(100, '\0'));
  std::vector<MutableBuffer> pieces(keys.size());
  std::vector<GetItem> items(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    pieces[i] = {values[i].data(), values[i].size()};
    items[i] = {.key = keys[i], .into = {&pieces[i], 1}};
  }
  std::vector<ItemResult> results(keys.size());
  EXPECT_TRUE(reader->Get(items, results, {.timeout = kCallTime}));
  EXPECT_TRUE(std::ranges::all_of(results, &ItemResult::ok));
  EXPECT_EQ(master_->Stat().lookups, before + keys.size());
}

// ---- an owner whose disk answers late

class HeldDiskClusterTest : public DiskClusterFixture {
 protected:
  void Configure(std::size_t number, server::DaemonOptions& options) override {
    DiskClusterFixture::Configure(number, options);
    if (number != 0) return;
    options.host.owner.tier.open =
        [this](const std::string& path) -> Result<std::unique_ptr<disklog::Device>> {
      KVCOVE_ASSIGN(auto device, disklog::OpenDevice(path));
      return std::make_unique<HeldDevice>(std::move(device), held_);
    };
  }
  void TearDown() override {
    held_ = false;
    ClusterFixture::TearDown();
  }
  // A process of owner 0's host, which asks its daemon.
  std::unique_ptr<Pool> OpenOwn() {
    return Must(Pool::Open(fmt::format("unix:{}/owner0/kvcove.sock", directory_), kCallTime));
  }

  std::atomic<bool> held_{false};
};

// More patterns than the daemon has threads for them.
TEST_F(HeldDiskClusterTest, NoRemovalOfKeysWaitsForPatternsThroughTheSameDaemon) {
  constexpr int kPatterns = 8;
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<SessionPtr> sessions;
  for (int i = 0; i <= kPatterns; ++i) {
    pools.push_back(OpenOwn());
    sessions.push_back(OpenSession(*pools.back(), fmt::format("e{}", i), /*assume_weights=*/true));
  }
  ASSERT_TRUE(Becomes([&] { return owners_[0]->host().owner().MayPauseDisks().has_value(); }))
      << "the disk is not open";
  held_ = true;
  std::vector<std::thread> callers;
  for (int i = 0; i < kPatterns; ++i) {
    callers.emplace_back([&, i] {
      EXPECT_TRUE(
          sessions[static_cast<std::size_t>(i)]->RemoveMatching("a*", {.timeout = kCallTime}));
    });
  }
  // Some wait at the master, the others in the daemon.
  EXPECT_TRUE(Becomes([&] { return master_->Stat().control.proofs >= 4; }));
  const std::string_view key = "b";
  ItemResult removed;
  (void)sessions.back()->Remove({&key, 1}, {&removed, 1}, {.timeout = milliseconds(5000)});
  EXPECT_EQ(removed.code, Code::kMiss) << CodeName(removed.code);
  held_ = false;
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace kvcove
