// SPDX-License-Identifier: Apache-2.0
// A cluster of processes whose parts are killed, frozen and started again.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/http/server.h"
#include "kvcove/rpc/client.h"
#include "tests/fault/cluster_fault_fixture.h"
#include "tests/retry.h"
#include "tests/slowness.h"

namespace kvcove {
namespace {

TEST_F(ClusterFaultTest, AKilledOwnerIsGoneEverywhereAndHoldsNobody) {
  const auto keys = Fill(1000);
  ASSERT_EQ(CountOk(Get(*session_, keys)), keys.size());
  End(std::exchange(owner(0), 0), SIGKILL);
  const Slowness slowness;
  const std::int64_t killed = NowMs();
  const std::size_t left = CountOk(Get(*session_, keys));
  EXPECT_LE(NowMs() - killed - slowness.ms(), 500) << "a get of a dead owner waited";
  EXPECT_GT(left, 0U);
  EXPECT_LT(left, keys.size());
  std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  std::size_t listed = keys.size();
  while (listed > left && NowMs() < killed + 60'000) {
    ASSERT_TRUE(session_->Exists(views, results, {.timeout = kCallTime}));
    listed = CountOk(results);
  }
  EXPECT_LE(NowMs() - killed - slowness.ms(), 3000) << "exists still says yes";
  EXPECT_EQ(listed, left);
  EXPECT_EQ(CountOk(Put(*session_, Keys(50, "after"))), 50U);
}

TEST_F(ClusterFaultTest, KeysWhoseOnlyHolderIsKilledOrFrozenCanBeStoredAgain) {
  auto near_pool = Open("host0");
  auto near = OpenSession(*near_pool);
  for (const bool freeze : {true, false}) {
    const auto keys = Keys(50, freeze ? "frozen" : "killed");
    std::vector<ItemResult> results = PutFilled(*near, keys, 'a');
    ASSERT_EQ(CountOk(results), keys.size()) << CodeName(results[0].code);
    EXPECT_THAT(Filling(keys), testing::Each('a'));
    const pid_t holder = owner(0);
    if (freeze) {
      Freeze(holder);
    } else {
      End(std::exchange(owner(0), 0), SIGKILL);
    }
    const Slowness slowness;
    const std::int64_t began = NowMs();
    std::map<std::string, ItemResult> stored;
    EXPECT_TRUE(Becomes([&] {
      // Without the holder, a key exists only because a put whose answer came too late stored it.
      const bool holder_is_gone = Live() == 1;
      results = PutFilled(*session_, keys, 'b', milliseconds(1000));
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const bool exists = holder_is_gone && results[i].code == Code::kExists;
        if (results[i].ok() || exists) stored[keys[i]] = results[i];
      }
      return stored.size() == keys.size();
    })) << CodeName(results[0].code);
    EXPECT_LE(NowMs() - began - slowness.ms(), 3000) << "a lease, and some rounds of puts";
    (void)Filling(
        keys,
        milliseconds(1000));  // a session remembers places: a frozen owner costs it one deadline
    EXPECT_THAT(Filling(keys), testing::Each('b'));
    if (!freeze) continue;
    // The thawed owner's values gave way: nobody sees them again, also when the newer are gone.
    kill(holder, SIGCONT);
    WaitLive(2);
    EXPECT_THAT(Filling(keys), testing::Each('b'));
    End(std::exchange(owner(1), 0), SIGKILL);
    WaitLive(1);
    for (int i = 0; i < 50; ++i) {
      ASSERT_THAT(Filling(keys), testing::Each('-'));
      ASSERT_EQ(CountOk(Get(*near, keys)), 0U) << "the holder's own host reads the old value";
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_EQ(CountOk(PutFilled(*near, keys, 'c')), keys.size());
    EXPECT_THAT(Filling(keys), testing::Each('c'));
    StartOwner(1, 2);
  }
}

TEST_F(ClusterFaultTest, AFrozenOwnerCostsOneDeadlineAndComesBackWithItsObjects) {
  const auto keys = Fill(1000);
  Freeze(owner(0));
  std::int64_t started = NowMs();
  {
    const Slowness slowness;
    const std::size_t left = CountOk(Get(*session_, keys, milliseconds(300)));
    EXPECT_LT(NowMs() - started - slowness.ms(), 600) << "two deadlines";
    EXPECT_LT(left, keys.size());
    started = NowMs();
    for (int i = 0; i < 5; ++i) {
      Get(*session_, {keys[0], keys[60], keys[110], keys[160]}, milliseconds(300));
    }
    EXPECT_LE(NowMs() - started - slowness.ms(), 250) << "the next calls must end at once";
  }
  WaitLive(1);
  kill(owner(0), SIGCONT);
  const Slowness slowness;
  const std::int64_t back = MsUntilGot(keys, keys.size());
  EXPECT_GE(back, 0) << "its objects did not come back";
  EXPECT_LE(back - slowness.ms(), 3000);
}

TEST_F(ClusterFaultTest, OneImpatientCallBlindsNobody) {
  const auto keys = Fill(200);
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(CountOk(Get(*session_, keys)), keys.size());
    // The master and an owner are away for a moment, and somebody does not wait.
    const Slowness slowness;
    for (const pid_t away : {master(), owner(0)}) {
      Freeze(away);
      if (away == master()) {
        ASSERT_TRUE(session_->Exists(views, results, {.timeout = milliseconds(5)}));
      } else {
        results = Get(*session_, keys, milliseconds(5));
      }
      kill(away, SIGCONT);
      EXPECT_LT(CountOk(results), keys.size());
      EXPECT_TRUE(slowness.Holds([&] {
        if (away == master()) {
          EXPECT_TRUE(session_->Exists(views, results, {.timeout = kCallTime}));
        } else {
          results = Get(*session_, keys);
        }
        return CountOk(results) == keys.size();
      })) << "the next call, with time to spare, missed";
    }
  }
}

TEST_F(ClusterFaultTest, AFrozenMasterCostsEachLookUpLittle) {
  const auto keys = Fill(200);
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  Freeze(master());
  ASSERT_TRUE(session_->Exists(views, results, {.timeout = milliseconds(1000)}));
  std::vector<std::int64_t> took_ms;
  const Slowness slowness;
  for (int i = 0; i < 200; ++i) {
    const std::int64_t began = NowMs();
    ASSERT_TRUE(session_->Exists(views, results, {.timeout = milliseconds(1000)}));
    took_ms.push_back(NowMs() - began);
    ASSERT_EQ(CountOk(results), 0U);
    std::this_thread::sleep_for(milliseconds(1));
  }
  std::ranges::sort(took_ms);
  const std::int64_t slow_ms = slowness.ms() / 200;  // of each
  EXPECT_LE(took_ms[took_ms.size() / 2], 1 + slow_ms) << "most fail at once";
  EXPECT_LE(took_ms[took_ms.size() * 9 / 10], 20 + 10 * slow_ms) << "10 ms, and a busy machine";
  kill(master(), SIGCONT);
  EXPECT_GE(MsUntilGot(keys, keys.size()), 0);
}

TEST_F(ClusterFaultTest, AResetDoesNotWaitForAFrozenOwnerAndNothingOldThawsWithIt) {
  const auto keys = Fill(1000);
  auto neighbour_pool = Open("host0");  // reads the frozen owner's memory directly
  auto neighbour = OpenSession(*neighbour_pool);
  ASSERT_EQ(CountOk(Get(*neighbour, keys)), keys.size());
  const Token old = Must(session_->Capture({.timeout = kCallTime}));
  Freeze(owner(0));
  {
    const Slowness slowness;
    const std::int64_t started = NowMs();
    const Status reset = session_->Reset({.timeout = kCallTime});
    EXPECT_TRUE(reset) << reset.error().ToString();
    EXPECT_LE(NowMs() - started - slowness.ms(), 2000) << "lease + 0.5 s, and a busy machine";
  }
  EXPECT_EQ(CountOk(Get(*neighbour, keys, milliseconds(300))), 0U);
  EXPECT_EQ(CountOk(Get(*session_, keys, milliseconds(300))), 0U);
  kill(owner(0), SIGCONT);
  std::size_t stale = 0;
  Throughout(milliseconds(2500),
             [&] { stale += CountOk(Get(*neighbour, keys)) + CountOk(Get(*session_, keys)); });
  EXPECT_EQ(stale, 0U) << "stale hits after the thaw";
  for (const ItemResult& result : Put(*session_, Keys(20, "late"), old)) {
    EXPECT_EQ(result.code, Code::kStale);
  }
  WaitLive(2);
  EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size());
  EXPECT_EQ(CountOk(Get(*neighbour, keys)), keys.size());
}

// The owner hides all of the namespace, once it is back, until it has applied the removal.
TEST_F(ClusterFaultTest, ARemovalWithAFrozenOwnerLooksToNobodyLikeAReset) {
  const auto pool = Must(Pool::Open("unix:" + SocketOf(0), kCallTime));
  const auto near = OpenSession(*pool);
  const auto keys = Keys(100);
  ASSERT_EQ(CountOk(PutFilled(*near, keys, 'a')), keys.size());
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  for (std::size_t round = 0; round < 4; ++round) {
    Freeze(owner(0));
    if (round % 2 == 1) WaitLive(1);
    ItemResult removed;
    ASSERT_TRUE(session_->Remove({&views[round], 1}, {&removed, 1}, {.timeout = kCallTime}));
    EXPECT_EQ(removed.code, Code::kOk) << "the value was there until now, whoever could read it";
    kill(owner(0), SIGCONT);
    std::size_t resets = 0;
    EXPECT_TRUE(Becomes([&] {
      if (!near->Exists(views, results, {.timeout = kCallTime})) return false;
      resets += static_cast<std::size_t>(
          std::ranges::count(results, MissReason::kReset, &ItemResult::reason));
      return CountOk(results) == keys.size() - round - 1;
    })) << "what was not removed comes back";
    EXPECT_EQ(resets, 0U);
    WaitLive(2);
  }
}

TEST_F(ClusterFaultTest, AResetWithAKilledOwnerIsTrueInTime) {
  const auto keys = Fill(200);
  End(std::exchange(owner(1), 0), SIGKILL);
  const Slowness slowness;
  const std::int64_t started = NowMs();
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  EXPECT_LE(NowMs() - started - slowness.ms(), 2000);
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
}

TEST_F(ClusterFaultTest, APutToAnotherHostDoesNotWaitForAMasterThatIsAway) {
  ASSERT_EQ(CountOk(Put(*session_, Keys(10))), 10U);
  const Token token = Must(session_->Capture({.timeout = kCallTime}));
  Freeze(master());
  std::this_thread::sleep_for(milliseconds(1500));  // its owners know it
  for (int i = 0; i < 3; ++i) {
    const Slowness slowness;
    const std::int64_t began = NowMs();
    const auto results = Put(*session_, Keys(10, fmt::format("away{}", i)), token);
    EXPECT_LE(NowMs() - began - slowness.ms(), 1000) << "of " << kCallTime << " that it may take";
    for (const ItemResult& result : results) {
      EXPECT_TRUE(result.ok() && !result.listed) << CodeName(result.code);
    }
  }
  kill(master(), SIGCONT);
  EXPECT_NE(MsUntilGot(Keys(10, "away2"), 10), -1);
}

TEST_F(ClusterFaultTest, ARestartedMasterKnowsAllAgain) {
  const auto keys = Fill(10000);
  for (const bool stop_cleanly : {false, true}) {
    End(master(), stop_cleanly ? SIGTERM : SIGKILL);
    StartMaster();
    const Slowness slowness;
    const std::int64_t back = MsUntilGot(keys, keys.size() * 99 / 100);
    EXPECT_GE(back, 0) << "the objects did not come back";
    EXPECT_LE(back - slowness.ms(), 3000);
    // It fences what it did not raise itself.
    const Token old = Await([&] { return session_->Capture({.timeout = kCallTime}); });
    if (stop_cleanly) {
      ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
      EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
      EXPECT_EQ(Put(*session_, {"late"}, old)[0].code, Code::kStale);
    }
  }
}

TEST_F(ClusterFaultTest, WithoutItsGenerationFileAMasterVoidsAll) {
  const auto keys = Fill(200);
  const Token old = Must(session_->Capture({.timeout = kCallTime}));
  End(master(), SIGKILL);
  std::filesystem::remove_all(directory() + "/master");
  StartMaster();
  WaitLive(2);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(Put(*session_, {"late"}, old)[0].code, Code::kStale);
  // Nothing says any more which weights the engines have. A requester asks a master that did not
  // answer again within 250 ms.
  Code unnamed = Code::kOk;
  EXPECT_TRUE(
      Becomes([&] { return (unnamed = Put(*session_, {"new"})[0].code) != Code::kUnavailable; }));
  EXPECT_EQ(unnamed, Code::kClosed);
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size());
  EXPECT_EQ(CountOk(Get(*session_, keys)), keys.size());
}

TEST_F(ClusterFaultTest, WithoutMasterAllIsAMissAndLocalPutsGoOn) {
  auto here_pool = Open("host0");
  auto here = OpenSession(*here_pool);
  const auto keys = Keys(20);
  ASSERT_EQ(CountOk(Put(*here, keys)), keys.size());
  const Token token = Must(here->Capture({.timeout = kCallTime}));
  ASSERT_EQ(CountOk(Get(*session_, keys)), keys.size());
  End(master(), SIGKILL);
  std::this_thread::sleep_for(milliseconds(1300));  // longer than a lease
  EXPECT_EQ(CountOk(Get(*here, keys, milliseconds(200))), 0U);
  EXPECT_EQ(CountOk(Get(*session_, keys, milliseconds(200))), 0U);
  const Slowness slowness;
  const std::int64_t started = NowMs();
  const auto stored = Put(*here, Keys(20, "meanwhile"), token);
  EXPECT_LE(NowMs() - started - slowness.ms(), 500);
  for (const ItemResult& result : stored) {
    EXPECT_TRUE(result.ok()) << CodeName(result.code);
    EXPECT_FALSE(result.listed);
  }
  StartMaster();
  EXPECT_GE(MsUntilGot(Keys(20, "meanwhile"), 20), 0);
  EXPECT_GE(MsUntilGot(keys, keys.size()), 0) << MissReasonName(Get(*session_, keys)[0].reason);
}

TEST_F(ClusterFaultTest, AWriterThatDiesInMidPutFreesItsKey) {
  const Token token = Must(session_->Capture({.timeout = kCallTime}));
  rpc::TcpChannel channel(master_address(), {});
  const auto owners =
      Must(wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 15 * kSecond)).owners;
  UniqueFd fd = Must(rpc::Client::Connect(Must(rpc::ParseAddress(owners[0].address, 0)), {},
                                          SystemClock::Instance().NowNs() + 15 * kSecond))
                    .TakeFd();
  const std::string body =
      wire::Encode(wire::DataPut{.token = token,
                                 .items = {{.key = "torn", .after = "", .size_bytes = 3000}},
                                 .no_checksum = true,
                                 .budget_ms = 1000});
  const auto head =
      wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(wire::Method::kDataPut),
                               .body_bytes = static_cast<std::uint32_t>(body.size()),
                               .call = 1});
  std::string bytes(reinterpret_cast<const char*>(head.data()), head.size());
  bytes += body + std::string(1000, 'x');  // and 2,000 bytes never come
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  std::this_thread::sleep_for(milliseconds(50));
  fd.Reset();
  const Slowness slowness;
  const std::int64_t died = NowMs();
  EXPECT_TRUE(PutWithRetries({"torn"}, [&](const std::vector<std::string>& left) {
    return Put(*session_, left, std::nullopt, milliseconds(1000));
  }));
  EXPECT_LE(NowMs() - died - slowness.ms(), 2000);
  EXPECT_EQ(CountOk(Get(*session_, {"torn"})), 1U);
}

// The value of a metric without labels; -1: not there.
double MetricOf(const std::string& text, const std::string& name) {
  const std::size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

TEST(DescriptorLimitTest, AMasterThatIsFullSaysSoAndStillAnswersItsOperator) {
  ClusterProcesses cluster;
  const rpc::Address admin = LastingAddress();
  const std::string log_file = cluster.directory() + "/log";
  cluster.StartMaster(
      admin.ToString(),
      {.launcher = {"sh", "-c", R"(ulimit -n 320; exec "$0" "$@")"}, .log_file = log_file});
  // The master listens for owners first.
  const auto scrape = [&] {
    return Await([&] { return http::Call({.port = admin.port, .target = "/metrics"}); }).body;
  };
  EXPECT_EQ(MetricOf(scrape(), "process_max_fds"), 320);
  const double most = MetricOf(scrape(), "kvcove_master_connections_max");
  EXPECT_EQ(most, 160);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 400; ++i) {
    auto fd =
        rpc::ConnectTcp(cluster.master_address(), SystemClock::Instance().NowNs() + 15 * kSecond);
    ASSERT_TRUE(fd) << fd.error().ToString();
    const auto hello = wire::EncodeFrameHeader(
        {.method = static_cast<std::uint16_t>(wire::Method::kHello), .body_bytes = 0, .call = 1});
    (void)!send(fd->get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    clients.push_back(std::move(*fd));
  }
  EXPECT_TRUE(Becomes(
      [&] { return MetricOf(scrape(), "kvcove_master_connections_refused_total") >= 240; }));
  const std::string full = scrape();
  EXPECT_EQ(MetricOf(full, "kvcove_master_connections"), most);
  EXPECT_EQ(MetricOf(full, "kvcove_master_connections_refused_total"), 240);
  EXPECT_LE(MetricOf(full, "process_open_fds"), 300);
  std::ifstream file(log_file);
  const std::string log{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(log, testing::HasSubstr("129 of 160 connections are in use"));
  EXPECT_THAT(log, testing::HasSubstr("all 160 connections are in use"));
  clients.clear();
  rpc::TcpChannel channel(cluster.master_address(), {});
  EXPECT_TRUE(Becomes([&] {
    return wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + kSecond).has_value();
  }));
}

// An engine as a process: it uses a weight version of its own until it is killed. Run by the test
// below, in a process of its own.
TEST(EngineProcess, UsesAVersion) {
  const char* address = std::getenv("KVCOVE_TEST_ENGINE_POOL");
  if (address == nullptr) GTEST_SKIP() << "only as another test's process";
  SetLogLevel(LogLevel::kOff);
  const std::string number = std::getenv("KVCOVE_TEST_ENGINE");
  auto pool = Pool::Open(address, kCallTime);
  ASSERT_TRUE(pool) << pool.error().ToString();
  auto session = Must((*pool)->OpenSession(
      {.name = "acme/llama", .engine = "engine" + number, .assume_weights = true}));
  (void)Await(
      [&] { return session->Capture({.timeout = kCallTime, .version = "version" + number}); });
  while (true) pause();
}

class EngineEndTest : public testing::Test, protected ClusterProcesses {
 protected:
  static constexpr int kEngines = 30;

  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    admin_ = LastingAddress();
    StartMaster(admin_.ToString());
    StartOwner(0, 1);
  }
  void TearDown() override { KillEngines(); }

  pid_t StartEngine(int number) const {
    const std::string pool =
        fmt::format("KVCOVE_TEST_ENGINE_POOL=kvcove://{}?host=host0", master_address().ToString());
    // The shell takes the words of `kvcove` that follow: a test program refuses what it does not
    // know.
    return Spawn(
        {}, "host0",
        {.launcher = {"env", pool, fmt::format("KVCOVE_TEST_ENGINE={}", number), "sh", "-c",
                      fmt::format("exec {} '--gtest_filter=EngineProcess.*' --gtest_brief=1",
                                  std::filesystem::read_symlink("/proc/self/exe").string())}});
  }
  void KillEngines() {
    for (const pid_t engine : engines_) kill(engine, SIGKILL);
    for (const pid_t engine : engines_) waitpid(engine, nullptr, 0);
    engines_.clear();
  }
  // How many weight versions the master takes for used.
  std::size_t Named() const {
    const auto answer = http::Call({.port = admin_.port, .target = "/v1/namespaces"});
    if (!answer) return 0;
    const auto body = nlohmann::json::parse(answer->body);
    std::size_t named = 0;
    for (const auto& slot : body["namespaces"]) {
      if (slot["version"] != "" && slot["named"].get<bool>()) ++named;
    }
    return named;
  }
  // For half a second: on its way the number passes through others.
  bool NamedWithin(std::size_t count, std::int64_t ms) const {
    const std::int64_t until = NowMs() + ms;
    int looks = 0;
    while (looks < 25 && NowMs() < until) {
      looks = Named() == count ? looks + 1 : 0;
      std::this_thread::sleep_for(milliseconds(20));
    }
    return looks == 25;
  }
  // How long the slowest took of puts for `ms`, one a millisecond: what the master has not listed
  // counts as reserved, and a session may reserve only a share of the segment.
  static std::int64_t SlowestPutMs(Session& session, const Token& token, std::int64_t ms) {
    const std::string value(1000, 'v');
    const ConstBuffer piece{value.data(), value.size()};
    std::int64_t slowest = 0;
    const std::int64_t until = NowMs() + ms;
    for (int i = 0; NowMs() < until; ++i) {
      const std::string key = fmt::format("key{}", i);
      const PutItem item{.key = key, .value = {&piece, 1}};
      ItemResult result;
      const std::int64_t began = NowMs();
      EXPECT_TRUE(session.Put(token, {&item, 1}, {&result, 1}, {.timeout = kCallTime}));
      EXPECT_TRUE(result.ok()) << CodeName(result.code);
      slowest = std::max(slowest, NowMs() - began);
    }
    return slowest;
  }

  rpc::Address admin_;
  std::vector<pid_t> engines_;
};

TEST_F(EngineEndTest, EnginesThatEndWhileTheMasterIsFrozenHoldNobodyAndAreNotForgotten) {
  auto pool = Open("host0");
  auto session = Must(pool->OpenSession({.name = "acme/llama", .engine = "e"}));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  for (int i = 0; i < kEngines; ++i) engines_.push_back(StartEngine(i));
  ASSERT_TRUE(NamedWithin(kEngines, 120'000)) << Named();
  Freeze(master());
  std::this_thread::sleep_for(milliseconds(1500));  // the owner knows that its master is away
  KillEngines();
  const Slowness slowness;
  const std::int64_t slowest = SlowestPutMs(*session, token, 3500);
  RecordProperty("slowest_put_ms", static_cast<int>(slowest));
  EXPECT_LE(slowest - slowness.ms(), 1000) << "100 ms, and a busy machine";
  // An engine that is back before its end was told registers after it, and stays.
  engines_.push_back(StartEngine(7));
  std::this_thread::sleep_for(milliseconds(300));
  kill(master(), SIGCONT);
  EXPECT_TRUE(NamedWithin(1, 60'000)) << Named();
}

TEST_F(EngineEndTest, RegistrationsThatWaitForAFrozenMasterHoldNoPut) {
  auto pool = Open("host0");
  auto session = Must(pool->OpenSession({.name = "acme/llama", .engine = "e"}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  Freeze(master());
  std::this_thread::sleep_for(milliseconds(1500));
  std::vector<std::thread> engines;
  for (int i = 0; i < kEngines; ++i) {
    engines.emplace_back([&pool, i] {
      const auto starting =
          pool->OpenSession({.name = "acme/llama", .engine = fmt::format("e{}", i)});
      ASSERT_TRUE(starting) << starting.error().ToString();
      (void)(*starting)->Capture({.timeout = milliseconds(2000)});
    });
  }
  const Slowness slowness;
  const std::int64_t slowest = SlowestPutMs(*session, token, 1500);
  EXPECT_LE(slowest - slowness.ms(), 1000) << "100 ms, and a busy machine";
  kill(master(), SIGCONT);
  for (std::thread& engine : engines) engine.join();
}

// Memory that a process shares with nobody.
double PrivateMiB(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssAnon:")) return std::stod(line.substr(8)) / 1024;
  }
  return 0;
}

// Connects to `address` as often as it is told to, and says nothing.
class Strangers {
 public:
  Strangers(const rpc::Address& address, std::size_t count) : address_(address), fds_(count) {
    for (UniqueFd& fd : fds_) Connect(fd);
  }
  // Comes back with the next `count` of those that were sent away.
  void Return(std::size_t count) {
    for (; count > 0; --count) {
      UniqueFd& fd = fds_[next_++ % fds_.size()];
      char byte = 0;
      if (!fd.valid() || recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0) Connect(fd);
    }
  }

 private:
  void Connect(UniqueFd& fd) const {
    auto connected = rpc::ConnectTcp(address_, SystemClock::Instance().NowNs() + kSecond);
    if (connected) fd = std::move(*connected);
  }
  const rpc::Address address_;
  std::vector<UniqueFd> fds_;
  std::size_t next_ = 0;
};

class StrangersTest : public ClusterFaultTest {
 protected:
  struct Round {
    double lookup_p99_us = 0;
    double get_p99_us = 0;
    std::size_t let_in = 0;  // of kNewcomers
  };
  static constexpr std::size_t kNewcomers = 20;

  template <typename Call>
  static double P99Us(const std::function<void()>& between, const Call& call) {
    std::vector<std::int64_t> took;
    for (int i = 0; i < 1000; ++i) {
      if (between) between();
      const std::int64_t began = SystemClock::Instance().NowNs();
      call(i);
      took.push_back(SystemClock::Instance().NowNs() - began);
    }
    std::ranges::sort(took);
    return static_cast<double>(took[took.size() * 99 / 100]) * 1e-3;
  }
  // A busy machine has longer, and is asked again.
  Result<std::unique_ptr<Pool>> OpenWithinASecond() const {
    const Slowness slowness;
    const std::int64_t began = NowMs();
    while (true) {
      auto pool = Pool::Open(fmt::format("kvcove://{}?host=new", master_address().ToString()),
                             milliseconds(1000));
      if (pool || NowMs() - began - slowness.ms() >= 1000) return pool;
    }
  }
  // What a tenant sees. `between` runs before each call.
  Round Measure(const std::vector<std::string>& keys, const std::function<void()>& between = {}) {
    Round round;
    for (std::size_t i = 0; i < kNewcomers; ++i) {
      if (between) between();
      auto pool = OpenWithinASecond();
      if (!pool) continue;
      auto session =
          (*pool)->OpenSession({.name = "acme/llama", .engine = "new", .assume_weights = true});
      if (session && CountOk(Get(**session, {keys[0]}))) ++round.let_in;
    }
    const Slowness slowness;
    round.lookup_p99_us = P99Us(between, [&](int i) {
      const std::string_view key = keys[static_cast<std::size_t>(i) % keys.size()];
      EXPECT_TRUE(slowness.Holds([&] {
        ItemResult result;
        EXPECT_TRUE(session_->Exists({&key, 1}, {&result, 1}, {.timeout = kCallTime}));
        return result.ok();
      }));
    });
    round.get_p99_us = P99Us(between, [&](int i) {
      const std::string& key = keys[static_cast<std::size_t>(i) % keys.size()];
      EXPECT_TRUE(slowness.Holds([&] { return CountOk(Get(*session_, {key})) == 1; }));
    });
    return round;
  }
  static void Print(const char* when, const Round& round) {
    fmt::print("{}: {} of {} let in, p99 of a look-up {:.0f} us, of a get {:.0f} us\n", when,
               round.let_in, kNewcomers, round.lookup_p99_us, round.get_p99_us);
  }
};

TEST_F(StrangersTest, SilentConnectionsKeepNobodyOutAndTakeNoMemory) {
  RaiseDescriptorLimit();
  const std::size_t count = std::min<std::size_t>(5000, (DescriptorLimit() - 500) / 2);
  const auto keys = Fill(100);
  const Round quiet = Measure(keys);
  const double master_mib = PrivateMiB(master());
  const double owner_mib = PrivateMiB(owner(0));
  rpc::TcpChannel channel(master_address(), {});
  const auto owners =
      Must(wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 15 * kSecond));
  const auto asked = std::ranges::find(owners.owners, "host0", &wire::OwnerStat::host);
  Strangers at_master(master_address(), count);
  Strangers at_owner(Must(rpc::ParseAddress(asked->address, 0)), count);
  const Round silent = Measure(keys);
  const double master_more = PrivateMiB(master()) - master_mib;
  const double owner_more = PrivateMiB(owner(0)) - owner_mib;
  const Round storm = Measure(keys, [&] {
    at_master.Return(10);
    at_owner.Return(10);
  });
  Print("quiet", quiet);
  Print("silent strangers", silent);
  Print("strangers that come back", storm);
  fmt::print("{} strangers at each: the master takes {:.1f} MiB more, the owner {:.1f}\n", count,
             master_more, owner_more);
  EXPECT_EQ(silent.let_in, kNewcomers);
  EXPECT_EQ(storm.let_in, kNewcomers);
  EXPECT_LE(master_more, 32);
  EXPECT_LE(owner_more, 32);
  // On a busy machine a call takes as long without strangers.
  EXPECT_LE(silent.lookup_p99_us, std::max(20'000.0, 4 * quiet.lookup_p99_us));
  EXPECT_LE(silent.get_p99_us, std::max(20'000.0, 4 * quiet.get_p99_us));
}

TEST_F(ClusterFaultTest, StrangersAndGarbageDisturbNobody) {
  const auto keys = Fill(100);
  rpc::TcpChannel channel(master_address(), {});
  const auto owners =
      Must(wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 15 * kSecond)).owners;
  std::vector<UniqueFd> silent;
  Random random(RandomU64());
  for (const rpc::Address& address :
       {master_address(), Must(rpc::ParseAddress(owners[0].address, 0))}) {
    for (int i = 0; i < 200; ++i) {
      auto fd = rpc::ConnectTcp(address, SystemClock::Instance().NowNs() + 15 * kSecond);
      ASSERT_TRUE(fd) << fd.error().ToString();
      if (i % 2 == 0) {
        std::string garbage(random.Below(200) + 1, '\0');
        for (char& byte : garbage) byte = static_cast<char>(random.Next());
        if (i % 4 == 0) garbage.replace(0, std::min<std::size_t>(4, garbage.size()), "kvcf");
        (void)!send(fd->get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
      }
      silent.push_back(std::move(*fd));
    }
  }
  const Slowness slowness;
  const auto all_found = [&] { return CountOk(Get(*session_, keys)) == keys.size(); };
  EXPECT_TRUE(slowness.Holds(all_found));
  const std::int64_t opened = NowMs();
  std::size_t closed = 0;
  while (closed < silent.size() && NowMs() < opened + 60'000) {
    closed = 0;
    for (const UniqueFd& fd : silent) {
      char bytes[256];
      ssize_t got = 1;
      while (got > 0) got = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      closed += got == 0 || (got < 0 && errno != EAGAIN) ? 1 : 0;
    }
    EXPECT_TRUE(slowness.Holds(all_found));
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(closed, silent.size()) << "silent connections stay";
  EXPECT_TRUE(slowness.Holds([&] { return Live() == 2; }));
}

}  // namespace
}  // namespace kvcove
