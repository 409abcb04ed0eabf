// SPDX-License-Identifier: Apache-2.0
// `kvcove master --take-over` with real processes: what owners and sessions see of it, and what
// happens when one of the two masters ends in the middle. A process that fails at a stage is this
// binary, started again with --taker: it takes over as `kvcove master` does, and
// MasterProcessOptions::on_stage ends it.
//
// KVCOVE_UPGRADE_OBJECTS: so many objects in UpgradesInARow..., whose figures go into
// docs/upgrade.md.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <fstream>

#include "kvcove/pool/master_process.h"
#include "kvcove/rpc/credentials.h"
#include "tests/certificates.h"
#include "tests/fault/cluster_fault_fixture.h"
#include "tests/fault/lasting.h"
#include "tests/fault/misbehave.h"
#include "tests/slowness.h"
#include "tests/support/process.h"

namespace kvcove {
namespace {

using pool::UpgradeStage;

// Calls of one kind from a thread of their own, until it goes.
class Caller {
 public:
  // `call`: true when it went well.
  explicit Caller(std::function<bool()> call)
      : thread_([this, call = std::move(call)] {
          while (!stop_) {
            const std::int64_t begin = Now();
            if (!call()) ++failed_;
            ++calls_;
            longest_ns_ = std::max(longest_ns_.load(), Now() - begin);
          }
        }) {}
  ~Caller() { Stop(); }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int failed() const { return failed_; }
  int calls() const { return calls_; }
  double longest_ms() const { return static_cast<double>(longest_ns_) / kMillisecond; }

 private:
  std::atomic<bool> stop_ = false;
  std::atomic<int> failed_ = 0;
  std::atomic<int> calls_ = 0;
  std::atomic<std::int64_t> longest_ns_ = 0;
  std::thread thread_;
};

class MasterUpgradeTest : public ClusterFaultTest {
 protected:
  std::string Log() const { return directory() + "/upgrade.log"; }
  std::string Said() const {
    std::ifstream file(Log());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // After a taker that failed: the running one answers "try again" until it is done with that one.
  void UpgradeWhenFree() {
    const std::int64_t until = NowMs() + 60'000;
    while (NowMs() < until) {
      const pid_t next = Spawn(MasterWords("off"), "master",
                               {.launcher = {}, .log_file = Log(), .more = {"--take-over"}});
      while (waitpid(next, nullptr, WNOHANG) != next) {
        if (waitpid(master(), nullptr, WNOHANG) == master()) {
          master() = next;
          return;
        }
        std::this_thread::sleep_for(milliseconds(2));
      }
    }
    FAIL() << Said();
  }
  // A process that does not take over; what it said.
  std::string Refused(const std::vector<std::string>& words) {
    const pid_t taker = Spawn(words, "master", {.launcher = {}, .log_file = Log(), .more = {}});
    const std::int64_t until = NowMs() + 60'000;
    int status = 0;
    while (waitpid(taker, &status, WNOHANG) == 0) {
      if (NowMs() > until) kill(taker, SIGKILL);
      std::this_thread::sleep_for(milliseconds(2));
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << status;
    return Said();
  }
  pid_t StartTaker(UpgradeStage stage, const char* what) {
    return SpawnTaker({"--take-over-master", directory() + "/master", master_address().ToString(),
                       std::to_string(static_cast<int>(stage)), what, std::to_string(master())});
  }
  static int Wait(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }
  pid_t SpawnTaker(std::vector<std::string> words) {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    const int log = open(Log().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    dup2(log, STDERR_FILENO);
    std::vector<char*> argv = {const_cast<char*>("master_upgrade")};
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  // Every kind of call of a session.
  void ExpectAllWorks(const std::string& mark) {
    const auto keys = Keys(20, "all-" + mark);
    EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size()) << mark;
    EXPECT_EQ(CountOk(Get(*session_, keys)), keys.size()) << mark;
    const std::vector<std::string_view> one = {keys[0]};
    ItemResult result;
    EXPECT_TRUE(session_->Remove(one, {&result, 1}, {.timeout = kCallTime})) << mark;
    EXPECT_EQ(CountOk(Get(*session_, {keys[0]})), 0U) << mark;
    const Status reset = session_->Reset({.timeout = kCallTime});
    EXPECT_TRUE(reset) << mark << reset.error().ToString();
    EXPECT_EQ(CountOk(Get(*session_, keys)), 0U) << mark;
  }
  std::vector<std::pair<wire::OwnerNumber, std::uint32_t>> Epochs() const {
    rpc::TcpChannel channel(master_address(), access_);
    const auto reply = Await([&] { return wire::MasterStub(channel).Owners(Now() + 5 * kSecond); });
    std::vector<std::pair<wire::OwnerNumber, std::uint32_t>> epochs;
    for (const wire::OwnerStat& owner : reply.owners)
      epochs.emplace_back(owner.number, owner.epoch);
    return epochs;
  }
  // One of two processes that start with the same --data without --take-over is refused.
  void ExpectLocked() {
    auto words = MasterWords("off");
    words[2] = "127.0.0.1:0";
    EXPECT_THAT(Refused(words), testing::HasSubstr("is in use by another kvcove"));
  }
};

// A session on a host with an owner stores on that one; what it reads of it is local.
class UpgradesInARowTest : public MasterUpgradeTest {
 protected:
  UpgradesInARowTest() {
    if (const char* count = std::getenv("KVCOVE_UPGRADE_OBJECTS")) objects_ = std::atoi(count);
    if (objects_ > 100'000) owner_memory_ = "2GiB";
  }
  struct Host {
    std::unique_ptr<Pool> pool;
    SessionPtr session;
    std::string prefix;
  };
  Host OpenHost(int number, const std::string& name = "acme/llama") {
    Host host{.pool = Open(fmt::format("host{}", number)),
              .session = {},
              .prefix = fmt::format("h{}-", number)};
    host.session = Must(host.pool->OpenSession({.name = name, .engine = "e"}));
    return host;
  }
  void FillHost(Host& host) {
    constexpr int kBatch = 500;
    for (int i = 0; i < objects_ / 2; i += kBatch) {
      std::vector<std::string> keys;
      for (int k = i; k < std::min(i + kBatch, objects_ / 2); ++k) {
        keys.push_back(host.prefix + std::to_string(k));
      }
      ASSERT_EQ(PutSmall(*host.session, keys), keys.size());
    }
  }
  static std::string SmallValueOf(const std::string& key) { return "value of " + key; }
  static std::size_t PutSmall(Session& session, const std::vector<std::string>& keys) {
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(SmallValueOf(key));
    std::vector<ConstBuffer> pieces;
    for (const std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<PutItem> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back({.key = keys[i], .value = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    (void)session.Put(items, results, {.timeout = kCallTime});
    return CountOk(results);
  }
  static bool GetSmall(Session& session, const std::string& key) {
    std::string value(64, '\0');
    const MutableBuffer piece{value.data(), value.size()};
    const GetItem item{.key = key, .into = {&piece, 1}};
    ItemResult result;
    (void)session.Get({&item, 1}, {&result, 1}, {.timeout = kCallTime});
    if (result.ok() && value.substr(0, result.bytes) == SmallValueOf(key)) return true;
    fmt::print(stderr, "get {}: code {}, reason {}\n", key, static_cast<int>(result.code),
               static_cast<int>(result.reason));
    return false;
  }
  std::string Any(const std::string& prefix, Random& random) const {
    return prefix + std::to_string(random.Below(static_cast<std::uint64_t>(objects_ / 2)));
  }
  // As the new master has logged it.
  int WaitedMs() const {
    constexpr std::string_view kBefore = "calls have waited for ";
    std::size_t at = std::string::npos;
    std::string said;
    if (!Becomes([&] { return (at = (said = Said()).find(kBefore)) != std::string::npos; })) {
      ADD_FAILURE() << said;
      return 0;
    }
    return std::atoi(said.c_str() + at + kBefore.size());
  }
  int objects_ = 2000;
};

TEST_F(UpgradesInARowTest, NoReadFailsNothingIsLostAndResetsAreFences) {
  std::array<Host, 2> hosts = {OpenHost(0), OpenHost(1)};
  for (Host& host : hosts) FillHost(host);
  Host fenced = OpenHost(0, "acme/fenced");
  UpgradeWhenFree();
  const auto epochs = Epochs();
  ASSERT_EQ(epochs.size(), 2U);
  std::size_t owner_fds = 0;
  std::size_t master_fds = 0;
  double longest_upgrade_ms = 0;
  int longest_wait_ms = 0;
  const Slowness slowness;
  // A lease of a machine that stood still has run out.
  const auto well = [&](int failed) { return failed == 0 || slowness.longest_ms() > 250; };
  {
    Random randoms[] = {Random(1), Random(2), Random(3)};
    Caller near0([&] { return GetSmall(*hosts[0].session, Any("h0-", randoms[0])); });
    Caller near1([&] { return GetSmall(*hosts[1].session, Any("h1-", randoms[1])); });
    const Host other = OpenHost(7);
    Caller far([&] {
      return GetSmall(*other.session, Any(randoms[2].OneIn(2) ? "h0-" : "h1-", randoms[2]));
    });
    std::atomic<int> written = 0;
    const Host writing = OpenHost(1);
    Caller writer([&] {
      const std::string key = fmt::format("w{}", written++);
      return PutSmall(*writing.session, {key}) == 1 && GetSmall(*writing.session, key);
    });
    Caller resetter([&] {
      std::this_thread::sleep_for(milliseconds(20));
      if (PutSmall(*fenced.session, {"old"}) != 1) return false;
      const Status reset = fenced.session->Reset({.timeout = kCallTime});
      if (!reset) fmt::print(stderr, "reset: {}\n", reset.error().ToString());
      std::vector<std::string> key = {"old"};
      return reset && CountOk(Get(*fenced.session, key)) == 0;
    });
    for (int round = 0; round < 5; ++round) {
      const std::int64_t begin = Now();
      UpgradeWhenFree();
      longest_upgrade_ms =
          std::max(longest_upgrade_ms, static_cast<double>(Now() - begin) / kMillisecond);
      EXPECT_TRUE(GetSmall(*session_, "h0-1")) << "look-ups answer at once";
      longest_wait_ms = std::max(longest_wait_ms, WaitedMs());
      std::this_thread::sleep_for(milliseconds(300));
      const std::size_t owner_now = Lasting(Descriptors, owner(0));
      const std::size_t master_now = Lasting(Descriptors, master());
      if (round == 1) owner_fds = owner_now;
      if (round == 1) master_fds = master_now;
      if (round < 4) continue;
      EXPECT_TRUE(Becomes([&] { return Lasting(Descriptors, owner(0)) <= owner_fds; }))
          << owner_now << " of " << owner_fds;
      EXPECT_TRUE(Becomes([&] { return Lasting(Descriptors, master()) <= master_fds; }))
          << master_now << " of " << master_fds;
    }
    for (Caller* caller : {&near0, &near1, &far, &writer, &resetter}) caller->Stop();
    EXPECT_TRUE(well(near0.failed() + near1.failed())) << "local reads: no lease ran out";
    EXPECT_TRUE(well(far.failed())) << "reads from elsewhere";
    EXPECT_TRUE(well(writer.failed()));
    EXPECT_TRUE(well(resetter.failed())) << "of " << resetter.calls();
    fmt::print(
        "{{\"objects\": {}, \"upgrades\": 5, \"upgrade_ms\": {:.0f}, \"longest_wait_ms\": {}, "
        "\"local_gets\": {}, "
        "\"longest_local_get_ms\": {:.1f}, \"remote_gets\": {}, \"longest_remote_get_ms\": {:.1f}, "
        "\"puts\": {}, \"longest_put_and_get_ms\": {:.1f}, \"resets\": {}, "
        "\"longest_reset_ms\": {:.1f}}}\n",
        objects_, longest_upgrade_ms, longest_wait_ms, near0.calls() + near1.calls(),
        std::max(near0.longest_ms(), near1.longest_ms()), far.calls(), far.longest_ms(),
        writer.calls(), writer.longest_ms(), resetter.calls(), resetter.longest_ms() - 20);
  }
  EXPECT_TRUE(well(Epochs() == epochs ? 0 : 1)) << "no owner had to say hello again";
  for (int i = 0; i < objects_ / 2; i += std::max(1, objects_ / 4000)) {
    ASSERT_TRUE(GetSmall(*session_, fmt::format("h0-{}", i)));
    ASSERT_TRUE(GetSmall(*session_, fmt::format("h1-{}", i)));
  }
  ExpectLocked();
}

TEST_F(MasterUpgradeTest, WhatTheOldOneHasAnsweredTheNewOneKnows) {
  const auto keys = Keys(50);
  ASSERT_EQ(CountOk(Put(*session_, keys)), keys.size());
  const Token old = Must(session_->Capture({.timeout = kCallTime}));
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  UpgradeWhenFree();
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
  for (const ItemResult& result : Put(*session_, keys, old)) EXPECT_EQ(result.code, Code::kStale);
  ExpectAllWorks("after");
  // And its store: a start after it.
  End(std::exchange(master(), 0), SIGKILL);
  StartMaster();
  WaitLive(2);
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
  WaitServed(*session_);
  for (const ItemResult& result : Put(*session_, keys, old)) EXPECT_EQ(result.code, Code::kStale);
}

TEST_F(MasterUpgradeTest, ATakerThatDiesAtAnyStageLeavesAllAsItWas) {
  const Slowness slowness;
  const auto epochs = Epochs();
  for (const UpgradeStage stage :
       {UpgradeStage::kHello, UpgradeStage::kFiles, UpgradeStage::kMapped, UpgradeStage::kState,
        UpgradeStage::kLoaded, UpgradeStage::kGo}) {
    const int number = static_cast<int>(stage);
    int status = Wait(StartTaker(stage, "die"));
    // The old one may still be busy with the one before.
    while (WIFEXITED(status) && Said().contains("try again")) {
      status = Wait(StartTaker(stage, "die"));
    }
    EXPECT_TRUE(WIFSIGNALED(status)) << number << Said();
    ExpectAllWorks(std::to_string(number));
    EXPECT_EQ(kill(master(), 0), 0);
  }
  EXPECT_TRUE(Epochs() == epochs || slowness.longest_ms() > 250) << "no owner noticed";
  ExpectLocked();
  UpgradeWhenFree();
  ExpectAllWorks("upgraded");
}

TEST_F(MasterUpgradeTest, ATakerThatHangsIsEndedBeforeALeaseEnds) {
  const auto pool = Open("host0");
  const SessionPtr local = OpenSession(*pool);
  ASSERT_EQ(CountOk(Put(*local, {"k"})), 1U);
  for (const UpgradeStage stage : {UpgradeStage::kState, UpgradeStage::kGo}) {
    const Slowness slowness;
    const pid_t taker = StartTaker(stage, "hang");
    int status = 0;
    while (waitpid(taker, &status, WNOHANG) == 0) {
      const ItemResult got = Get(*local, {"k"})[0];
      ASSERT_TRUE(got.ok() || slowness.longest_ms() > 250)
          << "the lease goes on: " << MissReasonName(got.reason);
    }
    EXPECT_TRUE(WIFSIGNALED(status)) << Said();
    EXPECT_EQ(CountOk(Put(*session_, {fmt::format("k{}", static_cast<int>(stage))})), 1U);
  }
  UpgradeWhenFree();
  EXPECT_EQ(CountOk(Get(*session_, {"k"})), 1U);
}

TEST_F(MasterUpgradeTest, ATakerThatIsKilledAtAnyMomentLeavesOneMaster) {
  Random random(RandomU64());
  const auto keys = Fill(100);
  for (int round = 0; round < 15; ++round) {
    const pid_t next = Spawn(MasterWords("off"), "master",
                             {.launcher = {}, .log_file = {}, .more = {"--take-over"}});
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(60'000)));
    kill(next, SIGKILL);
    Wait(next);
    int status = 0;
    const std::int64_t until = NowMs() + 1000;
    // Where the new one had it already, the old one has ended, and there is none now.
    while (NowMs() < until && waitpid(master(), &status, WNOHANG) == 0) {
      if (CountOk(Get(*session_, {keys[0]})) == 1) break;
    }
    const auto start_if_ended = [&] {
      if (waitpid(master(), &status, WNOHANG) == 0) return false;
      StartMaster();
      WaitLive(2);
      WaitServed(*session_);
      return true;
    };
    start_if_ended();
    EXPECT_GE(MsUntilGot(keys, keys.size()), 0) << round;
    // An owner may be saying hello to a master that has just been started: a put that meets that
    // may take all of its own time, 2 s. And the old one may end only now: reads go on without it.
    int tries = 0;
    std::int64_t by = NowMs() + 60'000;
    const auto stored = [&] {
      return CountOk(Put(*session_, {fmt::format("r{}-{}", round, tries++)}, std::nullopt,
                         milliseconds(5000))) == 1;
    };
    while (!stored()) {
      if (start_if_ended()) by = NowMs() + 60'000;
      ASSERT_LT(NowMs(), by) << round;
    }
  }
  ASSERT_TRUE(session_->Reset({.timeout = kCallTime}));
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
}

TEST_F(MasterUpgradeTest, WhenTheOldOneDiesAfterItHasSaidAllTheNewOneGoesOn) {
  const auto keys = Fill(100);
  const pid_t taker = StartTaker(UpgradeStage::kLoaded, "kill");
  Wait(master());
  master() = taker;
  EXPECT_GE(MsUntilGot(keys, keys.size()), 0);
  ExpectAllWorks("x");
  ExpectLocked();
  UpgradeWhenFree();
  ExpectAllWorks("y");
}

TEST_F(MasterUpgradeTest, WhenTheOldOneDiesBeforeThatTheNewOneSaysSo) {
  const pid_t taker = StartTaker(UpgradeStage::kFiles, "kill");
  Wait(std::exchange(master(), 0));
  const int status = Wait(taker);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << Said();
  EXPECT_THAT(Said(), testing::HasSubstr("the other process has ended"));
  StartMaster();
  WaitLive(2);
  WaitServed(*session_);
  ExpectAllWorks("restarted");
}

TEST_F(MasterUpgradeTest, AResetThatWaitsForAnOwnerIsAnsweredByTheMasterThatHasIt) {
  // In strict mode the reset waits until that owner answers, however slow this test is.
  End(std::exchange(master(), 0), SIGTERM);
  StartMaster("off", {.launcher = {}, .log_file = {}, .more = {"--strict"}});
  WaitLive(2);
  ASSERT_TRUE(Becomes([&] { return CountOk(Put(*session_, {"k"})) == 1; }))
      << "so that there is something to raise";
  Freeze(owner(1));
  std::atomic<bool> done = false;
  Status reset = Fail(Code::kInternal, "not yet");
  std::thread resetter([&] {
    reset = session_->Reset({.timeout = milliseconds(60'000)});
    done = true;
  });
  std::this_thread::sleep_for(milliseconds(500));
  auto words = MasterWords("off");
  words.insert(words.end(), {"--strict", "--take-over"});
  const std::string said = Refused(words);
  const bool was_done = done;
  kill(owner(1), SIGCONT);
  resetter.join();
  EXPECT_TRUE(reset) << reset.error().ToString();
  EXPECT_FALSE(was_done);
  EXPECT_THAT(said, testing::HasSubstr("waits for an owner"));
  UpgradeWhenFree();
  WaitLive(2);
  ExpectAllWorks("thawed");
}

TEST_F(MasterUpgradeTest, WhatDoesNotFitIsRefusedWithTheReasonAndTheOldOneGoesOn) {
  auto words = MasterWords("off");
  words.emplace_back("--take-over");
  auto elsewhere = words;
  elsewhere[2] = "127.0.0.1:1";
  EXPECT_THAT(Refused(elsewhere), testing::HasSubstr("it listens on"));
  elsewhere = words;
  elsewhere[4] = directory() + "/other";
  EXPECT_THAT(Refused(elsewhere), testing::HasSubstr("nobody serves"));
  EXPECT_THAT(Refused({"serve", "--socket", directory() + "/master/upgrade/kvcove.sock",
                       "--take-over", "--memory", "8MiB"}),
              testing::HasSubstr("it is 'kvcove master', not 'kvcove serve'"));
  ExpectAllWorks("refused");
}

// Master, owners and sessions with credentials, in the clear or through TLS.
class SecureUpgradeTest : public MasterUpgradeTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    const std::string tokens[] = {rpc::NewToken(), rpc::NewToken()};
    WritePrivate("servers.toml",
                 fmt::format("[tenants.cluster]\ntokens = [\"{}\"]\n"
                             "scopes = [\"owner\", \"admin\", \"read\"]\n[tenants.acme]\n"
                             "tokens = [\"{}\"]\nscopes = [\"read\", \"write\", \"reset\"]\n",
                             tokens[0], tokens[1]));
    WritePrivate("acme.toml", fmt::format("tenant = \"acme\"\ntoken = \"{}\"\n", tokens[1]));
    server_words_ = {"--credentials", directory() + "/servers.toml"};
    query_ = fmt::format("&token={}/acme.toml", directory());
    access_ = rpc::AccessWith({.tenant = "cluster", .token = tokens[0]});
    if (GetParam()) UseTls();
    MasterUpgradeTest::SetUp();
  }
  void UseTls() {
    ASSERT_TRUE(MakeCertificates(directory()));
    const rpc::TlsFiles files{.authority = directory() + "/good-ca.pem",
                              .certificate = directory() + "/good.pem",
                              .key = directory() + "/good.key"};
    for (const auto& [flag, path] :
         {std::pair("--tls-authority", files.authority),
          std::pair("--tls-certificate", files.certificate), std::pair("--tls-key", files.key)}) {
      server_words_.emplace_back(flag);
      server_words_.push_back(path);
    }
    query_ += fmt::format("&tls_authority={}&tls_certificate={}&tls_key={}", files.authority,
                          files.certificate, files.key);
    access_.tls = Must(rpc::Tls::Open(files));
  }
  void WritePrivate(const std::string& name, const std::string& text) const {
    const std::string path = directory() + "/" + name;
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms(0600));
  }
};

TEST_P(SecureUpgradeTest, OwnersKeepTheirLeasesAndSessionsGoOn) {
  const Slowness slowness;
  const auto keys = Fill(100);
  const auto epochs = Epochs();
  ASSERT_EQ(epochs.size(), 2U);
  for (int round = 0; round < 3; ++round) {
    UpgradeWhenFree();
    // Behind TLS every connection is made again.
    EXPECT_GE(MsUntilGot(keys, keys.size()), 0) << round;
    WaitServed(*session_);
    EXPECT_EQ(CountOk(Put(*session_, Keys(10, fmt::format("r{}", round)))), 10U) << round;
    std::this_thread::sleep_for(milliseconds(1200));  // longer than a lease
    EXPECT_TRUE(Becomes([&] { return Live() == 2; }));
    EXPECT_TRUE(Epochs() == epochs || slowness.longest_ms() > 250);
  }
  ExpectAllWorks("secure");
}

INSTANTIATE_TEST_SUITE_P(Transports, SecureUpgradeTest, testing::Bool(),
                         [](const auto& with) { return with.param ? "Tls" : "InTheClear"; });

// ---- the other process

[[noreturn]] void TakeOverMaster(const std::vector<std::string>& words) {
  const auto at = static_cast<UpgradeStage>(std::stoi(words[2]));
  const std::string what = words[3];
  const pid_t running = std::stoi(words[4]);
  pool::MasterProcessOptions options;
  options.server.data_directory = words[0];
  options.server.listen = Must(rpc::ParseAddress(words[1], 0));
  options.take_over = true;
  options.on_taken_over = [](std::int32_t /*pid*/) { _exit(0); };
  options.on_stage = Misbehave(at, what, running);
  const auto master = pool::MasterProcess::Open(options, SystemClock::Instance());
  if (!master) {
    fmt::print(stderr, "{}\n", master.error().ToString());
    _exit(3);
  }
  while (true) pause();
}

const ProcessRole kMasterTaker("--take-over-master", TakeOverMaster);

}  // namespace
}  // namespace kvcove
