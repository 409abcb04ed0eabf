// SPDX-License-Identifier: Apache-2.0
// What the public API promises, in both forms: embedded, and through a daemon.
#include "kvcove/pool/pool.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/base/thread_sanitizer.h"
#include "kvcove/server/daemon.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/must.h"
#include "tests/random_bytes.h"

namespace kvcove {
namespace {

using std::chrono::milliseconds;

class PoolTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kError);
    Start({});
  }
  void Start(std::unordered_map<std::string, owner::Quota> quotas, std::uint64_t memory = 8 << 20) {
    pool_.reset();
    daemon_.reset();
    if (directory_.empty()) {
      std::string name = "/tmp/kvcove-pool-XXXXXX";
      directory_ = mkdtemp(name.data());
    }
    if (GetParam() == "embedded") {
      address_ = fmt::format("embedded:?memory={}", memory);
    } else {
      server::DaemonOptions options;
      options.socket_path = directory_ + "/kvcove.sock";
      options.host.owner.memory_bytes = memory;
      options.host.owner.quotas = std::move(quotas);
      daemon_ = Must(server::Daemon::Open(options, SystemClock::Instance()));
      address_ = "unix:" + options.socket_path;
    }
    pool_ = Must(Pool::Open(address_, kCallTime));
  }
  void TearDown() override {
    pool_.reset();
    daemon_.reset();
    std::filesystem::remove_all(directory_);
  }
  SessionPtr OpenSession(const std::string& name = "model", const std::string& engine = "",
                         bool follow = false) {
    return Must(pool_->OpenSession({.name = name, .engine = engine, .follow_always = follow}));
  }

  static std::string ValueOf(const std::string& key, std::size_t size) {
    return RandomBytes(Mix64(size) ^ std::hash<std::string>()(key), size);
  }
  static Code Put(Session& session, const Token& token, const std::string& key,
                  const std::string& value) {
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    (void)session.Put(token, {&item, 1}, {&result, 1}, {.timeout = kCallTime});
    return result.code;
  }
  static Code Put(Session& session, const std::string& key, const std::string& value) {
    const auto token = session.Capture({.timeout = kCallTime});
    return token ? Put(session, *token, key, value) : token.error().code;
  }
  static ItemResult Get(Session& session, const std::string& key, std::string& into,
                        const CallOptions& options = {}) {
    const MutableBuffer piece{.data = into.data(), .size = into.size()};
    const GetItem item{.key = key, .into = {&piece, 1}};
    ItemResult result;
    (void)session.Get({&item, 1}, {&result, 1}, options);
    return result;
  }
  static ItemResult Exists(Session& session, const std::string& key,
                           const CallOptions& options = {}) {
    const std::string_view view = key;
    ItemResult result;
    (void)session.Exists({&view, 1}, {&result, 1}, options);
    return result;
  }

  std::string directory_;
  std::string address_;
  std::unique_ptr<server::Daemon> daemon_;
  std::unique_ptr<Pool> pool_;
};

INSTANTIATE_TEST_SUITE_P(Forms, PoolTest, testing::Values("embedded", "process"),
                         [](const auto& info) { return info.param; });

TEST_P(PoolTest, GivesBackWhatWasPutOfEverySize) {
  auto session = OpenSession();
  for (const std::size_t size : {1, 63, 64, 65, 4096, 16384, 16385, 100'000, 3 << 20}) {
    const std::string key = fmt::format("size-{}", size);
    const std::string value = ValueOf(key, size);
    ASSERT_EQ(Put(*session, key, value), Code::kOk) << size;
    std::string read(size + 10, 'x');
    const ItemResult result = Get(*session, key, read);
    ASSERT_EQ(result.code, Code::kOk);
    EXPECT_EQ(result.bytes, size);
    EXPECT_EQ(read.substr(0, size), value);
    EXPECT_EQ(read.substr(size), std::string(10, 'x')) << "nothing beyond the value is touched";
  }
}

TEST_P(PoolTest, PiecesJoinAndSplit) {
  auto session = OpenSession();
  for (const std::size_t size : {3000UL, 300'000UL}) {
    const std::string key = fmt::format("pieces-{}", size);
    const std::string value = ValueOf(key, size);
    const ConstBuffer parts[3] = {
        {value.data(), 1000}, {value.data() + 1000, 0}, {value.data() + 1000, size - 1000}};
    const PutItem item{.key = key, .value = parts, .after = {}};
    ItemResult result;
    ASSERT_TRUE(session->Put({&item, 1}, {&result, 1}, {.timeout = kCallTime}));
    ASSERT_EQ(result.code, Code::kOk);
    std::string read(size, '\0');
    const MutableBuffer into[2] = {{read.data(), 7}, {read.data() + 7, size - 7}};
    const GetItem get{.key = key, .into = into};
    ASSERT_TRUE(session->Get({&get, 1}, {&result, 1}, {.timeout = kCallTime}));
    EXPECT_EQ(read, value);
  }
}

TEST_P(PoolTest, AValueNeverChangesUnderItsKey) {
  auto session = OpenSession();
  ASSERT_EQ(Put(*session, "k", "first"), Code::kOk);
  EXPECT_EQ(Put(*session, "k", "second"), Code::kExists);
  std::string read(5, '\0');
  Get(*session, "k", read);
  EXPECT_EQ(read, "first");
}

TEST_P(PoolTest, ABatchReportsEachItem) {
  auto session = OpenSession();
  ASSERT_EQ(Put(*session, "there", "value"), Code::kOk);
  const std::string long_key(kMaxKeyBytes + 1, 'k');
  std::string a(100, '\0'), b(100, '\0'), c(2, '\0');
  const MutableBuffer pieces[] = {{a.data(), 100}, {b.data(), 100}, {c.data(), 2}, {nullptr, 10}};
  const GetItem items[] = {{.key = "there", .into = {&pieces[0], 1}},
                           {.key = "missing", .into = {&pieces[1], 1}},
                           {.key = "there", .into = {&pieces[2], 1}},
                           {.key = long_key, .into = {&pieces[0], 1}},
                           {.key = "there", .into = {&pieces[3], 1}}};
  ItemResult results[5];
  (void)session->Get(items, results, {.timeout = kCallTime});
  EXPECT_EQ(results[0].code, Code::kOk);
  EXPECT_EQ(results[1].code, Code::kMiss);
  EXPECT_EQ(results[1].reason, MissReason::kNeverPut);
  EXPECT_EQ(results[2].code, Code::kBufferTooSmall);
  EXPECT_EQ(results[2].bytes, 5U);
  EXPECT_EQ(results[3].code, Code::kInvalid);
  EXPECT_EQ(results[4].code, Code::kInvalid);
}

TEST_P(PoolTest, BadInputIsNamed) {
  auto session = OpenSession();
  EXPECT_EQ(Put(*session, "", "v"), Code::kInvalid);
  EXPECT_EQ(Put(*session, "k", ""), Code::kInvalid);
  EXPECT_EQ(Put(*session, std::string(1025, 'k'), "v"), Code::kInvalid);
  const std::string_view keys[] = {"a", "b"};
  ItemResult one;
  const Status status = session->Exists(keys, {&one, 1}, {.timeout = kCallTime});
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().detail, testing::HasSubstr("2 items"));
  EXPECT_EQ(pool_->OpenSession({.name = std::string(600, 'n')}).error().code, Code::kInvalid);
  EXPECT_EQ(session->RemoveMatching("", {.timeout = kCallTime}).error().code, Code::kInvalid);
}

TEST_P(PoolTest, AKeyThatCannotBeStoredIsNobodysPrefix) {
  auto session = OpenSession();
  const std::string long_key(kMaxKeyBytes + 1, 'k');
  const std::string value = "v";
  const ConstBuffer piece{.data = value.data(), .size = 1};
  const PutItem items[] = {{.key = long_key, .value = {&piece, 1}},
                           {.key = "k", .value = {&piece, 1}}};
  ItemResult results[2];
  ASSERT_TRUE(session->Put(items, results));
  EXPECT_EQ(results[0].code, Code::kInvalid);
  EXPECT_EQ(results[1].code, Code::kOk);
}

// The session knows the first version still, and asks nobody when the engine goes back to it.
TEST_P(PoolTest, AResetOfAVersionThatTheEngineWentBackToVoidsIt) {
  auto session = OpenSession();
  const std::string value = "v";
  const auto put = [&](const std::string& version) {
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = "k", .value = {&piece, 1}, .after = {}};
    ItemResult result;
    const auto token = session->Capture({.timeout = kCallTime, .version = version});
    if (!token) return token.error().code;
    (void)session->Put(*token, {&item, 1}, {&result, 1}, {.version = version});
    return result.code;
  };
  const auto found = [&](const std::string& version) {
    const std::string_view key = "k";
    ItemResult result;
    (void)session->Exists({&key, 1}, {&result, 1}, {.version = version});
    return result.ok();
  };
  ASSERT_EQ(put("v1"), Code::kOk);
  ASSERT_EQ(put("v2"), Code::kOk);
  const auto back = session->Capture({.timeout = kCallTime, .version = "v1"});
  ASSERT_TRUE(back);
  ASSERT_TRUE(found("v1"));
  ASSERT_TRUE(session->Reset({.version = "v1"}));
  EXPECT_FALSE(found("v1"));
  EXPECT_NE(Must(session->Capture({.timeout = kCallTime, .version = "v1"})).generation,
            back->generation);
  EXPECT_TRUE(found("v2")) << "of another version";
  // A change to a version that this engine has not used since voids nothing.
  ASSERT_TRUE(session->Reset({.version = "v2"}));
  EXPECT_FALSE(found("v2"));
}

TEST_P(PoolTest, WhatIsStoredIsListedCountedAndPlaced) {
  auto session = OpenSession();
  auto other = OpenSession("another model");
  ASSERT_EQ(Put(*other, "a/9", "v"), Code::kOk);
  for (const std::string key : {"a/1", "a/2", "b/1"}) ASSERT_EQ(Put(*session, key, "v"), Code::kOk);
  const auto all = session->List("", {.timeout = kCallTime});
  ASSERT_TRUE(all) << all.error().ToString();
  EXPECT_EQ(all->size(), 3U);
  const auto some = session->List("a/", {.timeout = kCallTime});
  ASSERT_TRUE(some);
  ASSERT_EQ(some->size(), 2U);
  EXPECT_EQ(some->front().key, "a/1");
  EXPECT_EQ(some->front().size_bytes, 1U);
  EXPECT_FALSE(some->front().held);
  const std::string_view keys[] = {"a/1", "nothing"};
  const auto where = session->Where(keys, {.timeout = kCallTime});
  ASSERT_TRUE(where);
  EXPECT_EQ((*where)[0], std::vector<std::string>{"local"});
  EXPECT_TRUE((*where)[1].empty());
  const auto places = session->Places(keys, {.timeout = kCallTime});
  ASSERT_TRUE(places);
  EXPECT_EQ((*places)[0].front().tier, Tier::kMemory);
  EXPECT_EQ((*places)[0].front().bytes, 1U);

  const auto before = session->Count({.timeout = kCallTime});
  ASSERT_TRUE(before);
  EXPECT_EQ(before->objects, 3U);
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  const auto after = session->Count({.timeout = kCallTime});
  ASSERT_TRUE(after);
  EXPECT_NE(after->generation, before->generation);
  EXPECT_EQ(after->objects, 0U);
  EXPECT_EQ(after->voided, 3U);
  EXPECT_TRUE(Must(session->List("", {.timeout = kCallTime})).empty());
}

TEST_P(PoolTest, LookUpsAndGetsHoldWhatTheyFind) {
  auto session = OpenSession();
  ASSERT_EQ(Put(*session, "looked up", "v"), Code::kOk);
  ASSERT_EQ(Put(*session, "got", "v"), Code::kOk);
  ASSERT_EQ(Put(*session, "neither", "v"), Code::kOk);
  const CallOptions holding{.hold = std::chrono::seconds(30)};
  EXPECT_TRUE(Exists(*session, "looked up", holding).ok());
  std::string into(1, '\0');
  EXPECT_TRUE(Get(*session, "got", into, holding).ok());
  EXPECT_TRUE(Get(*session, "neither", into).ok());
  // What a session has told counts at once for who asks.
  const std::string_view keys[] = {"looked up", "got", "neither"};
  const auto stats = session->Stat(keys, {.timeout = kCallTime});
  ASSERT_TRUE(stats);
  EXPECT_TRUE((*stats)[0]->held);
  EXPECT_TRUE((*stats)[1]->held);
  EXPECT_FALSE((*stats)[2]->held);
}

TEST_P(PoolTest, ASaveThatIsAnnouncedIsUnderWayForOthers) {
  auto session = OpenSession();
  auto other = OpenSession();
  const auto under_way = [&](const std::string& key) {
    const ItemResult result = Exists(*other, key, {.timeout = kCallTime, .under_way = true});
    return result.code == Code::kMiss && result.under_way;
  };
  const std::vector<std::string_view> keys = {"a", "b", "c"};
  EXPECT_FALSE(under_way("a"));
  const Token token = *session->Capture({.timeout = kCallTime});
  ASSERT_TRUE(session->Announce(token, keys, SaveNotice::kBegin, {.timeout = kCallTime}));
  EXPECT_TRUE(under_way("a"));
  EXPECT_FALSE(under_way("d"));
  EXPECT_FALSE(Exists(*other, "a").under_way) << "only where it was asked for";
  ASSERT_EQ(Put(*session, token, "a", ValueOf("a", 1000)), Code::kOk);
  EXPECT_TRUE(Exists(*other, "a", {.timeout = kCallTime, .under_way = true}).ok());
  ASSERT_TRUE(session->Announce(token, std::span(keys).subspan(1, 1), SaveNotice::kEnd,
                                {.timeout = kCallTime}));
  EXPECT_FALSE(under_way("b")) << "withdrawn";
  EXPECT_TRUE(under_way("c"));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  ASSERT_TRUE(other->Reset({.timeout = kCallTime}));
  EXPECT_FALSE(under_way("c")) << "a reset ends what is under way";
}

TEST_P(PoolTest, ASaveIsNotUnderWayOnceItsProcessHasEnded) {
  if (GetParam() == "embedded") return;  // its pool ends with it
  auto other = OpenSession();
  auto pool = Must(Pool::Open(address_, kCallTime));
  auto session = Must(pool->OpenSession({.name = "model"}));
  const std::string_view key = "k";
  const Token token = *session->Capture({.timeout = kCallTime});
  ASSERT_TRUE(session->Announce(token, {&key, 1}, SaveNotice::kBegin, {.timeout = kCallTime}));
  const CallOptions asks{.timeout = kCallTime, .under_way = true};
  ASSERT_TRUE(Exists(*other, "k", asks).under_way);
  session.reset();
  pool.reset();
  // Well before the announcement expires.
  EXPECT_TRUE(Becomes([&] { return !Exists(*other, "k", asks).under_way; }, milliseconds(1500)));
}

TEST_P(PoolTest, APrefixIsLocatedUpToItsFirstMiss) {
  auto session = OpenSession();
  std::vector<std::string> names;
  for (int i = 0; i < 300; ++i) names.push_back(fmt::format("chunk{}", i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  for (int i = 0; i < 200; ++i) ASSERT_EQ(Put(*session, names[i], "v"), Code::kOk);
  ASSERT_EQ(Put(*session, names[250], "v"), Code::kOk);
  const LocatedPrefix located = Must(session->Locate(keys, {.timeout = kCallTime}));
  EXPECT_EQ(located.keys, 200U);
  EXPECT_EQ(located.reason, MissReason::kNeverPut);
  ASSERT_EQ(located.owners.size(), 1U);
  EXPECT_EQ(located.owners[0].owner, "local");
  EXPECT_EQ(located.owners[0].prefix, 200U);
  EXPECT_EQ(located.owners[0].memory_prefix, 200U);
  EXPECT_EQ(located.owners[0].memory, 200U);
  EXPECT_EQ(located.owners[0].disk, 0U);
  const auto found = std::span(keys).first(200);
  EXPECT_EQ(Must(session->Locate(found, {.timeout = kCallTime})).reason, MissReason::kNone);
  EXPECT_TRUE(Must(session->Locate({}, {.timeout = kCallTime})).owners.empty());
  const std::string_view invalid[] = {"chunk0", ""};
  EXPECT_EQ(session->Locate(invalid, {.timeout = kCallTime}).error().code, Code::kInvalid);
}

TEST_P(PoolTest, LongestPrefixStopsAtTheFirstMiss) {
  auto session = OpenSession();
  std::vector<std::string> keys;
  for (int i = 0; i < 300; ++i) keys.push_back(fmt::format("chunk-{}", i));
  for (int i = 0; i < 300; ++i) {
    if (i == 200) continue;
    ASSERT_EQ(Put(*session, keys[i], "v"), Code::kOk);
  }
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  EXPECT_EQ(Must(session->LongestPrefix(views, {.timeout = kCallTime})), 200U);
  EXPECT_EQ(Must(session->LongestPrefix(std::span(views).first(3), {.timeout = kCallTime})), 3U);
  EXPECT_EQ(Must(session->LongestPrefix(std::span(views).subspan(200), {.timeout = kCallTime})),
            0U);
  EXPECT_EQ(Must(session->LongestPrefix({}, {.timeout = kCallTime})), 0U);
}

TEST_P(PoolTest, NothingFromBeforeAResetIsFoundAfterIt) {
  auto session = OpenSession();
  ASSERT_EQ(Put(*session, "k", "old"), Code::kOk);
  const Token before = Must(session->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  const ItemResult result = Exists(*session, "k");
  EXPECT_EQ(result.code, Code::kMiss);
  EXPECT_EQ(result.reason, MissReason::kReset);
  EXPECT_EQ(Put(*session, before, "late", "old"), Code::kStale);
  EXPECT_EQ(Put(*session, before, "late-and-large", std::string(100'000, 'o')), Code::kStale);
  EXPECT_EQ(Exists(*session, "late").code, Code::kMiss);
  ASSERT_EQ(Put(*session, "k", "new"), Code::kOk);
  std::string read(3, '\0');
  EXPECT_EQ(Get(*session, "k", read).code, Code::kOk);
  EXPECT_EQ(read, "new");
}

TEST_P(PoolTest, AResetReachesOtherSessionsAndNamespacesStayApart) {
  auto a = OpenSession("model", "a");
  auto b = OpenSession("model", "b");
  auto other = OpenSession("other");
  ASSERT_EQ(Put(*a, "k", "v"), Code::kOk);
  ASSERT_EQ(Put(*other, "k", "other's"), Code::kOk);
  ASSERT_EQ(Exists(*b, "k").code, Code::kOk);
  ASSERT_TRUE(a->Reset({.timeout = kCallTime}));
  EXPECT_EQ(Exists(*b, "k").reason, MissReason::kClosed) << "b may still have the old weights";
  EXPECT_EQ(b->Capture({.timeout = kCallTime}).error().code, Code::kClosed);
  EXPECT_EQ(Exists(*other, "k").code, Code::kOk);
  ASSERT_TRUE(b->Reset({.timeout = kCallTime}));
  ASSERT_EQ(Put(*a, "k2", "v"), Code::kOk);
  EXPECT_EQ(Exists(*b, "k2").code, Code::kOk) << "both share the new generation";
}

TEST_P(PoolTest, AnotherProcessOfTheEngineOpensAClosedSession) {
  auto scheduler = OpenSession("model", "engine");
  auto worker = OpenSession("model", "engine");
  auto other = OpenSession("model", "other");
  ASSERT_TRUE(scheduler->Capture({.timeout = kCallTime}) &&
              worker->Capture({.timeout = kCallTime}) && other->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(other->Reset({.timeout = kCallTime}));
  EXPECT_EQ(worker->Capture({.timeout = kCallTime}).error().code, Code::kClosed);
  ASSERT_TRUE(scheduler->Reset({.timeout = kCallTime}));
  EXPECT_TRUE(Becomes([&] { return worker->Capture({.timeout = kCallTime}).has_value(); }));
}

TEST_P(PoolTest, AnEngineEndsWithItsLastSession) {
  auto scheduler = OpenSession("model", "engine");
  auto worker = OpenSession("model", "engine");
  ASSERT_EQ(Put(*scheduler, "k", "v"), Code::kOk);
  ASSERT_TRUE(worker->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(scheduler->Reset({.timeout = kCallTime}));
  scheduler.reset();
  EXPECT_TRUE(worker->Capture({.timeout = kCallTime})) << "the engine goes on";
  worker.reset();
  EXPECT_EQ(OpenSession("model", "engine")->Capture({.timeout = kCallTime}).error().code,
            Code::kClosed)
      << "a new engine on a namespace that engines reset";
}

TEST_P(PoolTest, HardPinsOfUnnamedVersionsStay) {
  auto session = OpenSession();
  const std::string value(1 << 20, 'v');
  ASSERT_EQ(Put(*session, Must(session->Capture({.timeout = kCallTime, .version = "v1"})), "pinned",
                value),
            Code::kOk);
  const std::string_view key = "pinned";
  ItemResult result;
  ASSERT_TRUE(session->Pin({&key, 1}, PinKind::kHard, {}, {&result, 1}, {.version = "v1"}));
  const Token now = Must(session->Capture({.timeout = kCallTime, .version = "v2"}));
  const std::vector<std::string> named = {"v2"};
  ASSERT_TRUE(session->NameVersions(named, {.timeout = kCallTime}));
  for (int i = 0; i < 30; ++i)
    ASSERT_EQ(Put(*session, now, fmt::format("k{}", i), value), Code::kOk);
  EXPECT_TRUE(Exists(*session, "pinned", {.version = "v1"}).ok());
}

TEST_P(PoolTest, AnOperatorsResetIsFollowedAtOnce) {
  auto a = OpenSession("model", "a");
  auto b = OpenSession("model", "b");
  ASSERT_EQ(Put(*a, "k", "v"), Code::kOk);
  ASSERT_TRUE(b->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(b->Reset({.timeout = kCallTime, .all_void = true}));
  EXPECT_EQ(Exists(*a, "k").code, Code::kMiss);
  EXPECT_EQ(Put(*a, "k", "v"), Code::kOk);
  EXPECT_EQ(Exists(*b, "k").code, Code::kOk);
}

TEST_P(PoolTest, WeightVersionsDoNotMix) {
  auto session = OpenSession();
  const Token v1 = Must(session->Capture({.timeout = kCallTime, .version = "run7/step1"}));
  ASSERT_EQ(Put(*session, v1, "k", "one"), Code::kOk);
  const Token v2 = Must(session->Capture({.timeout = kCallTime, .version = "run7/step2"}));
  EXPECT_EQ(Exists(*session, "k", {.version = "run7/step2"}).code, Code::kMiss);
  ASSERT_EQ(Put(*session, v2, "k", "two"), Code::kOk);
  std::string read(3, '\0');
  EXPECT_EQ(Get(*session, "k", read, {.version = "run7/step1"}).code, Code::kOk);
  EXPECT_EQ(read, "one") << "a change of version erases nothing";
  ASSERT_TRUE(session->Reset({.version = "run7/step3"}));
  EXPECT_EQ(Exists(*session, "k", {.version = "run7/step2"}).code, Code::kOk);
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_EQ(Exists(*session, "k", {.version = "run7/step1"}).code, Code::kMiss);
  EXPECT_EQ(Exists(*session, "k", {.version = "run7/step2"}).code, Code::kMiss);
}

TEST_P(PoolTest, VersionsBeforeAPruneAreDead) {
  auto session = OpenSession();
  ASSERT_EQ(Put(*session, "k", "none"), Code::kOk);
  std::map<std::string, Token> tokens;
  const auto versioned = [](std::string_view version) {
    return CallOptions{.timeout = kCallTime, .version = version};
  };
  // The order of the first captures counts, whatever the versions are called.
  for (const std::string version : {"step-9", "step-10", "a"}) {
    tokens[version] = Must(session->Capture(versioned(version)));
    ASSERT_EQ(Put(*session, tokens[version], "k", version), Code::kOk);
  }
  EXPECT_EQ(session->Prune("step-11", {.timeout = kCallTime}).error().code, Code::kInvalid);
  EXPECT_EQ(session->Prune("", {.timeout = kCallTime}).error().code, Code::kInvalid);
  EXPECT_TRUE(Exists(*session, "k", versioned("step-9")).ok());
  EXPECT_EQ(Must(session->Prune("a", {.timeout = kCallTime})), 2U);
  EXPECT_FALSE(session->closed());
  auto late = OpenSession("model", "late");
  for (const std::string version : {"step-9", "step-10"}) {
    EXPECT_EQ(Exists(*session, "k", versioned(version)).code, Code::kMiss) << version;
    EXPECT_EQ(Put(*session, tokens[version], "late", "put"), Code::kStale) << version;
    EXPECT_EQ(session->Capture(versioned(version)).error().code, Code::kDenied) << version;
    EXPECT_EQ(late->Capture(versioned(version)).error().code, Code::kDenied) << version;
  }
  EXPECT_TRUE(Exists(*session, "k", versioned("a")).ok());
  EXPECT_EQ(Put(*session, tokens["a"], "more", "put"), Code::kOk) << "its generation stays";
  EXPECT_TRUE(Exists(*session, "k").ok()) << "what has no version";
  EXPECT_EQ(Must(session->Prune("a", {.timeout = kCallTime})), 0U);
  EXPECT_EQ(Must(session->Prune("step-10", {.timeout = kCallTime})), 0U)
      << "all before it are dead";
  CompletionQueue queue;
  Must(session->Capture(versioned("b")));
  ASSERT_TRUE(session->PruneAsync(queue, 7, "b", {.timeout = kCallTime}));
  const auto done = queue.Next(kCallTime);
  ASSERT_TRUE(done && done->status) << done->status.error().ToString();
  EXPECT_EQ(done->count, 1U);
  EXPECT_FALSE(Exists(*session, "k", versioned("a")).ok());
}

TEST_P(PoolTest, VersionsThatNobodyNamesAreReclaimedFirst) {
  auto session = OpenSession();
  const std::string value(64 << 10, 'v');
  const Token old = Must(session->Capture({.timeout = kCallTime, .version = "v1"}));
  const Token now = Must(session->Capture({.timeout = kCallTime, .version = "v2"}));
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(Put(*session, now, fmt::format("new-{}", i), value), Code::kOk);
    ASSERT_EQ(Put(*session, old, fmt::format("old-{}", i), value), Code::kOk);
  }
  const std::vector<std::string> named = {"v2"};
  ASSERT_TRUE(session->NameVersions(named, {.timeout = kCallTime}));
  for (int i = 60; i < 120; ++i)
    ASSERT_EQ(Put(*session, now, fmt::format("new-{}", i), value), Code::kOk);
  for (int i = 0; i < 120; ++i) {
    EXPECT_EQ(Exists(*session, fmt::format("new-{}", i), {.version = "v2"}).code, Code::kOk) << i;
  }
}

TEST_P(PoolTest, EvictionMakesRoomAndSaysSo) {
  auto session = OpenSession();
  const std::string value(1 << 20, 'v');
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
  int there = 0;
  int evicted = 0;
  for (int i = 0; i < 20; ++i) {
    const ItemResult result = Exists(*session, fmt::format("k{}", i));
    there += result.ok() ? 1 : 0;
    evicted += result.reason == MissReason::kEvicted ? 1 : 0;
  }
  EXPECT_EQ(there, 8);
  // Reasons are kept by hash: now and then two keys share a place, and the later one has it.
  EXPECT_GE(evicted, 11);
}

TEST_P(PoolTest, HardPinsStayAndAreBounded) {
  auto session = OpenSession();
  const std::string value(1 << 20, 'v');
  for (int i = 0; i < 6; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
  std::vector<std::string> keys;
  for (int i = 0; i < 6; ++i) keys.push_back(fmt::format("k{}", i));
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(6);
  ASSERT_TRUE(session->Pin(views, PinKind::kHard, {}, results, {.timeout = kCallTime}));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(results[i].code, i < 4 ? Code::kOk : Code::kLimit) << i;
  for (int i = 10; i < 40; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Exists(*session, keys[i]).ok()) << i;
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_FALSE(Exists(*session, keys[0]).ok()) << "a reset voids hard pins, too";
  for (int i = 10; i < 30; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
}

TEST_P(PoolTest, AHardPinWithATimeToLiveEndsByItself) {
  auto session = OpenSession();
  const std::string value(1 << 20, 'v');
  ASSERT_EQ(Put(*session, "k", value), Code::kOk);
  const std::string_view key = "k";
  ItemResult result;
  const auto pin = [&](std::chrono::milliseconds duration) {
    const Status pinned =
        session->Pin({&key, 1}, PinKind::kHard, duration, {&result, 1}, {.timeout = kCallTime});
    return pinned ? result.code : pinned.error().code;
  };
  const auto pinned = [&] {
    return Must(session->Stat({&key, 1}, {.timeout = kCallTime}))[0]->hard_pinned;
  };
  for (const milliseconds wrong : {milliseconds(-1), milliseconds(24 * 3'600'000 + 1)}) {
    EXPECT_EQ(pin(wrong), Code::kInvalid);
    EXPECT_EQ(result.code, Code::kInvalid);
    EXPECT_FALSE(pinned());
  }
  ASSERT_EQ(pin(milliseconds(600'000)), Code::kOk);
  for (int i = 10; i < 40; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
  EXPECT_TRUE(pinned());
  ASSERT_TRUE(session->Unpin({&key, 1}, {&result, 1}, {.timeout = kCallTime}));
  EXPECT_FALSE(pinned());
  ASSERT_EQ(pin(milliseconds(1)), Code::kOk);
  EXPECT_TRUE(Becomes([&] { return !pinned(); }));
  // Others may be pinned in its place, up to half of the memory.
  for (const std::string other : {"k40", "k41", "k42", "k43"}) {
    ASSERT_EQ(Put(*session, other, value), Code::kOk);
    const std::string_view one = other;
    ASSERT_TRUE(session->Pin({&one, 1}, PinKind::kHard, {}, {&result, 1}, {.timeout = kCallTime}));
    EXPECT_EQ(result.code, Code::kOk) << other;
  }
}

TEST_P(PoolTest, HoldsAndSoftPinsOutliveOthers) {
  auto session = OpenSession();
  const std::string value(64 << 10, 'v');
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
  const std::string_view held = "k5";
  const std::string_view pinned = "k6";
  ItemResult result;
  ASSERT_TRUE(session->Hold({&held, 1}, milliseconds(30000), {&result, 1}));
  EXPECT_TRUE(result.ok());
  ASSERT_TRUE(session->Pin({&pinned, 1}, PinKind::kSoft, milliseconds(30000), {&result, 1},
                           {.timeout = kCallTime}));
  for (int i = 200; i < 500; ++i) ASSERT_EQ(Put(*session, fmt::format("k{}", i), value), Code::kOk);
  EXPECT_TRUE(Exists(*session, "k5").ok());
  EXPECT_TRUE(Exists(*session, "k6").ok());
  const std::string_view views[] = {"k5", "k6", "gone"};
  const auto stats = session->Stat(views, {.timeout = kCallTime});
  ASSERT_TRUE(stats);
  EXPECT_TRUE((*stats)[0]->held);
  EXPECT_TRUE((*stats)[1]->soft_pinned);
  EXPECT_FALSE((*stats)[2]);
  EXPECT_EQ((*stats)[0]->size_bytes, value.size());
}

TEST_P(PoolTest, AFullOfPinsPoolSaysOutOfSpace) {
  auto session = OpenSession();
  const std::string large(5 << 20, 'v');
  ASSERT_EQ(Put(*session, "a", std::string(4 << 20, 'v')), Code::kOk);
  const std::string_view key = "a";
  ItemResult result;
  ASSERT_TRUE(session->Pin({&key, 1}, PinKind::kHard, {}, {&result, 1}, {.timeout = kCallTime}));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(Put(*session, "b", large), Code::kNoSpace);
  EXPECT_EQ(Put(*session, "c", std::string(9 << 20, 'v')), Code::kNoSpace)
      << "larger than the pool";
  EXPECT_TRUE(Exists(*session, "a").ok());
}

TEST_P(PoolTest, RemoveAndRemoveMatching) {
  auto session = OpenSession();
  for (const char* key : {"m/a/1", "m/a/2", "m/b/1", "n/a/1"})
    ASSERT_EQ(Put(*session, key, "v"), Code::kOk);
  const std::string_view keys[] = {"m/a/1", "nothing"};
  ItemResult results[2];
  ASSERT_TRUE(session->Remove(keys, results, {.timeout = kCallTime}));
  EXPECT_EQ(results[0].code, Code::kOk);
  EXPECT_EQ(results[1].code, Code::kMiss);
  EXPECT_EQ(Exists(*session, "m/a/1").reason, MissReason::kRemoved);
  EXPECT_EQ(Must(session->RemoveMatching("m/?/*", {.timeout = kCallTime})), 2U);
  EXPECT_TRUE(Exists(*session, "n/a/1").ok());
  EXPECT_EQ(Must(session->RemoveMatching("n/*", {.timeout = kCallTime})), 1U);
  EXPECT_EQ(Put(*session, "m/a/1", "again"), Code::kOk);
}

TEST_P(PoolTest, AsynchronousCallsEndInTheQueue) {
  auto session = OpenSession();
  CompletionQueue queue(2);
  const std::string value = ValueOf("k", 200'000);
  const ConstBuffer piece{.data = value.data(), .size = value.size()};
  const PutItem put{.key = "k", .value = {&piece, 1}, .after = {}};
  ItemResult put_result;
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(session->PutAsync(queue, 1, token, {&put, 1}, {&put_result, 1}));
  pollfd waits{.fd = queue.event_fd(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&waits, 1, 60'000), 1) << "the eventfd tells";
  auto done = queue.Next();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->tag, 1U);
  EXPECT_TRUE(done->status);
  EXPECT_EQ(put_result.code, Code::kOk);
  EXPECT_EQ(poll(&waits, 1, 0), 0);

  const std::string_view keys[] = {"k", "x"};
  ItemResult exists[2];
  ASSERT_TRUE(session->LongestPrefixAsync(queue, 2, keys));
  ASSERT_TRUE(session->ExistsAsync(queue, 3, keys, exists));
  EXPECT_EQ(session->ExistsAsync(queue, 4, keys, exists).error().code, Code::kLimit)
      << "bounded: two are unfinished or not taken";
  for (int i = 0; i < 2; ++i) {
    done = queue.Next(milliseconds(60'000));
    ASSERT_TRUE(done);
    if (done->tag == 2) {
      EXPECT_EQ(done->count, 1U);
    }
  }
  EXPECT_EQ(exists[0].code, Code::kOk);
  ASSERT_TRUE(session->ResetAsync(queue, 5));
  ASSERT_TRUE(queue.Next(milliseconds(60'000))->status);
  ASSERT_TRUE(session->GetAsync(queue, 6, {}, {}, {.timeout = milliseconds(0)}));
  done = queue.Next(milliseconds(60'000));
  ASSERT_TRUE(done && !done->status);
  EXPECT_EQ(done->status.error().code, Code::kTimeout);
}

TEST_P(PoolTest, AForkedChildIsRefusedAndOpensItsOwn) {
  auto session = OpenSession();
  ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused =
        session->Capture({.timeout = kCallTime}).error().code == Code::kUnavailable &&
        pool_->Stat().error().code == Code::kUnavailable;
    session.reset();
    pool_.reset();
    auto own = Pool::Open(address_, kCallTime);
    bool found = false;
    if (own) {
      const auto mine = (*own)->OpenSession({.name = "model"});
      found = mine && Exists(**mine, "k").ok();
    }
    // An embedded pool is another one; a daemon's is the same.
    _exit(refused && own && found == (GetParam() == "process") ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Exists(*session, "k").ok());
}

TEST_P(PoolTest, ManyThreadsReadWhatManyThreadsWrite) {
  // Here the daemon is in this process and maps the same memory at other addresses: what orders the
  // accesses goes through its mapping, where the sanitizer does not see that it is the same memory.
  if (KVCOVE_THREAD_SANITIZER && GetParam() == "process") {
    GTEST_SKIP() << "one memory at two addresses";
  }
  std::atomic<int> wrong{0};
  std::atomic<int> hits{0};
  std::vector<std::thread> threads;
  auto session = OpenSession("model", "", true);
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      std::string read(300'000, '\0');
      for (int i = 0; i < 400; ++i) {
        const std::string key = fmt::format("k{}", random.Below(60));
        const std::size_t size = 1 + std::hash<std::string>()(key) % 200'000;
        if (random.OneIn(2)) {
          Put(*session, key, ValueOf(key, size));
        } else if (const ItemResult result = Get(*session, key, read); result.ok()) {
          ++hits;
          if (result.bytes != size || read.substr(0, size) != ValueOf(key, size)) ++wrong;
        }
        if (random.OneIn(100)) (void)session->Reset({.timeout = kCallTime});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
}

TEST_P(PoolTest, QuotasBoundAndProtectNamespaces) {
  if (GetParam() == "embedded") GTEST_SKIP() << "quotas are the daemon's";
  Start({{"small", {.maximum_bytes = 2 << 20, .guaranteed_bytes = 1 << 20}}});
  auto small = OpenSession("small");
  auto big = OpenSession("big");
  const std::string value(256 << 10, 'v');
  for (int i = 0; i < 20; ++i) ASSERT_EQ(Put(*small, fmt::format("s{}", i), value), Code::kOk);
  const auto bytes_of = [&](const std::string& name) {
    const PoolStat stat = AwaitStat(*pool_);
    for (const auto& space : stat.namespaces) {
      if (space.name == name) return space.bytes;
    }
    return std::uint64_t{0};
  };
  EXPECT_EQ(bytes_of("small"), 2U << 20) << "its maximum";
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Put(*big, fmt::format("b{}", i), value), Code::kOk);
  EXPECT_GE(bytes_of("small"), 1U << 20) << "what it is guaranteed stays";
  EXPECT_EQ(Put(*small, "huge", std::string(3 << 20, 'v')), Code::kNoSpace);
}

TEST(PoolAddressTest, WrongAddressesAreExplained) {
  const auto detail = [](std::string_view address) { return Pool::Open(address).error().detail; };
  EXPECT_THAT(detail("embedded:?memroy=1GiB"), testing::HasSubstr("did you mean 'memory'"));
  EXPECT_THAT(detail("embedded:?memory=lots"), testing::HasSubstr("4GiB"));
  EXPECT_THAT(detail("embedded:?memory=100TiB"), testing::HasSubstr("1MiB"));
  EXPECT_THAT(detail("embedded:?memory=190GiB"), testing::HasSubstr("this host (MemAvailable"));
  EXPECT_THAT(detail("embedded:?memory=1MiB&policy=best"), testing::HasSubstr("default or lru"));
  EXPECT_THAT(detail("tcp://x"), testing::HasSubstr("unix:"));
  EXPECT_EQ(Pool::Open("unix:/nowhere/kvcove.sock").error().code, Code::kUnavailable);
  EXPECT_EQ(Pool::Open("unix:" + std::string(200, 'x')).error().code, Code::kInvalid);
}

TEST(PoolAddressTest, AutoFallsBackToEmbedded) {
  setenv("KVCOVE_SOCKET", "/tmp/kvcove-no-such-directory/kvcove.sock", 1);
  auto pool = Pool::Open("auto?memory=4MiB", kCallTime);
  ASSERT_TRUE(pool);
  EXPECT_EQ((*pool)->form(), "embedded");
}

TEST_P(PoolTest, AutoIsWhatTheEnvironmentNames) {
  setenv("KVCOVE_POOL", address_.c_str(), 1);
  const auto named = Pool::Open("auto?memory=1MiB", kCallTime);
  setenv("KVCOVE_POOL", "unix:/nowhere/at/all", 1);
  const auto wrong = Pool::Open("auto", kCallTime);
  setenv("KVCOVE_POOL", "", 1);
  const auto none = Pool::Open("auto?memory=1MiB", kCallTime);
  unsetenv("KVCOVE_POOL");
  ASSERT_TRUE(named) << named.error().ToString();
  EXPECT_EQ((*named)->form(), GetParam());
  ASSERT_FALSE(wrong) << "what is named is used or refused";
  EXPECT_NE(wrong.error().detail.find("$KVCOVE_POOL"), std::string::npos);
  EXPECT_TRUE(none) << none.error().ToString();
}

}  // namespace
}  // namespace kvcove
