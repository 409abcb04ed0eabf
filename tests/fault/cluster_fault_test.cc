// SPDX-License-Identifier: Apache-2.0
// A cluster of processes whose parts are killed, frozen and started again.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/pool/pool.h"
#include "kvcove/requester/peers.h"
#include "kvcove/rpc/address.h"
#include "kvcove/wire/master_stub.h"

extern char** environ;

namespace kvcove {
namespace {

using std::chrono::milliseconds;

std::int64_t NowMs() { return SystemClock::Instance().NowNs() / kMillisecond; }

class ClusterFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = "/tmp/kvcove-faults-XXXXXX";
    directory_ = mkdtemp(name.data());
    // A port that was free a moment ago: the master must come back under the same one.
    master_address_ = {.host = "127.0.0.1", .port = 0};
    ASSERT_TRUE(rpc::ListenTcp(master_address_));
    StartMaster();
    for (int i = 0; i < 2; ++i) StartOwner(i);
    pool_ = Open();
    session_ = OpenSession(*pool_);
    // The first start of a master waits for leases of a predecessor that it cannot know of.
    ASSERT_TRUE(session_->Reset());
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
    for (const pid_t pid : {master_, owners_[0], owners_[1]}) {
      if (pid == 0) continue;
      kill(pid, SIGCONT);
      End(pid, SIGKILL);
    }
    std::filesystem::remove_all(directory_);
  }

  pid_t Spawn(const std::vector<std::string>& arguments, const std::string& host) {
    const char* log = std::getenv("KVCOVE_TEST_LOG");
    std::vector<std::string> texts = {KVCOVE_COMMAND, "--log", log == nullptr ? "off" : log};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    std::string variable = "KVCOVE_HOST_ID=" + host;
    std::vector<char*> environment = {variable.data()};
    for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
    environment.push_back(nullptr);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, KVCOVE_COMMAND, nullptr, nullptr, argv.data(), environment.data()),
              0);
    return pid;
  }
  static int End(pid_t pid, int signal) {
    kill(pid, signal);
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }
  // Returns when it has stopped, in all its threads.
  static void Freeze(pid_t pid) {
    kill(pid, SIGSTOP);
    int status = 0;
    while (waitpid(pid, &status, WUNTRACED) == pid && !WIFSTOPPED(status)) {
    }
  }
  void StartMaster() {
    master_ = Spawn({"master", "--listen", master_address_.ToString(), "--data",
                     directory_ + "/master", "--admin", "off"},
                    "master");
    for (int i = 0; i < 500; ++i) {
      if (rpc::ConnectTcp(master_address_, SystemClock::Instance().NowNs() + kSecond)) return;
      std::this_thread::sleep_for(milliseconds(10));
    }
    FAIL() << "the master did not start";
  }
  std::string SocketOf(int i) const { return fmt::format("{}/owner{}/kvcove.sock", directory_, i); }
  void StartOwner(int i) {
    owners_[i] =
        Spawn({"owner", "--master", master_address_.ToString(), "--listen", "127.0.0.1:0",
               "--admin", "off", "--memory", "256MiB", "--no-populate", "--socket", SocketOf(i)},
              fmt::format("host{}", i));
    WaitLive(i + 1);
  }
  std::size_t Live() {
    rpc::TcpChannel channel(master_address_, {});
    const auto owners = wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + kSecond);
    return owners ? static_cast<std::size_t>(std::ranges::count_if(*owners, &wire::OwnerStat::live))
                  : 0;
  }
  void WaitLive(std::size_t count) {
    const std::int64_t until = NowMs() + 10000;
    while (NowMs() < until && Live() != count) std::this_thread::sleep_for(milliseconds(5));
    ASSERT_EQ(Live(), count);
  }
  std::unique_ptr<Pool> Open(const std::string& host = "elsewhere") {
    auto pool = Pool::Open(fmt::format("kvcove://{}?host={}", master_address_.ToString(), host),
                           milliseconds(2000));
    EXPECT_TRUE(pool) << pool.error().ToString();
    return std::move(*pool);
  }
  static std::unique_ptr<Session> OpenSession(Pool& pool) {
    return *pool.OpenSession({.name = "acme/llama", .engine = "e"});
  }

  static std::string ValueOf(const std::string& key) {
    std::string value(3000, '\0');
    Random random(std::hash<std::string>()(key));
    for (char& byte : value) byte = static_cast<char>(random.Next());
    return value;
  }
  static std::vector<std::string> Keys(int count, const std::string& prefix = "key") {
    std::vector<std::string> keys;
    for (int i = 0; i < count; ++i) keys.push_back(fmt::format("{}-{}", prefix, i));
    return keys;
  }
  static std::vector<ItemResult> Put(Session& session, const std::vector<std::string>& keys,
                                     std::optional<Token> token = std::nullopt,
                                     milliseconds timeout = milliseconds(5000)) {
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(ValueOf(key));
    std::vector<ConstBuffer> pieces;
    for (const std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<PutItem> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back({.key = keys[i], .value = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    if (!token) {
      const auto captured = session.Capture();
      if (!captured) {
        for (ItemResult& result : results) result.code = captured.error().code;
        return results;
      }
      token = *captured;
    }
    (void)session.Put(*token, items, results, {.timeout = timeout});
    return results;
  }
  static std::size_t CountOk(const std::vector<ItemResult>& results) {
    return static_cast<std::size_t>(std::ranges::count_if(results, &ItemResult::ok));
  }
  // Every byte of every hit is compared.
  static std::vector<ItemResult> Get(Session& session, const std::vector<std::string>& keys,
                                     milliseconds timeout = milliseconds(1000)) {
    std::vector<std::string> values(keys.size(), std::string(3000, '\0'));
    std::vector<MutableBuffer> pieces;
    for (std::string& value : values) pieces.push_back({value.data(), value.size()});
    std::vector<GetItem> items;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      items.push_back({.key = keys[i], .into = {&pieces[i], 1}});
    }
    std::vector<ItemResult> results(keys.size());
    (void)session.Get(items, results, {.timeout = timeout});
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (results[i].ok()) EXPECT_EQ(values[i], ValueOf(keys[i])) << "wrong bytes of " << keys[i];
    }
    return results;
  }
  // Puts `count` keys, in batches small enough to go to both owners.
  std::vector<std::string> Fill(int count) {
    std::vector<std::string> all;
    for (int from = 0; from < count; from += 50) {
      const auto keys = Keys(50, fmt::format("k{}", from));
      EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size());
      all.insert(all.end(), keys.begin(), keys.end());
    }
    return all;
  }
  // How long until `count` of `keys` are got; -1: not within 10 s.
  std::int64_t MsUntilGot(const std::vector<std::string>& keys, std::size_t count) {
    const std::int64_t started = NowMs();
    while (NowMs() < started + 10000) {
      if (CountOk(Get(*session_, keys)) >= count) return NowMs() - started;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return -1;
  }

  std::string directory_;
  rpc::Address master_address_;
  pid_t master_ = 0;
  pid_t owners_[2] = {0, 0};
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Session> session_;
};

TEST_F(ClusterFaultTest, AKilledOwnerIsGoneEverywhereAndHoldsNobody) {
  const auto keys = Fill(1000);
  ASSERT_EQ(CountOk(Get(*session_, keys)), keys.size());
  End(std::exchange(owners_[0], 0), SIGKILL);
  const std::int64_t killed = NowMs();
  const std::size_t left = CountOk(Get(*session_, keys));
  EXPECT_LE(NowMs() - killed, 500) << "a get of a dead owner waited";
  EXPECT_GT(left, 0U);
  EXPECT_LT(left, keys.size());
  std::vector<std::string_view> views(keys.begin(), keys.end());
  std::vector<ItemResult> results(keys.size());
  std::size_t listed = keys.size();
  while (listed > left && NowMs() < killed + 5000) {
    ASSERT_TRUE(session_->Exists(views, results));
    listed = CountOk(results);
  }
  EXPECT_LE(NowMs() - killed, 3000) << "exists still says yes";
  EXPECT_EQ(listed, left);
  EXPECT_EQ(CountOk(Put(*session_, Keys(50, "after"))), 50U);
}

TEST_F(ClusterFaultTest, AFrozenOwnerCostsOneDeadlineAndComesBackWithItsObjects) {
  const auto keys = Fill(1000);
  Freeze(owners_[0]);
  std::int64_t started = NowMs();
  const std::size_t left = CountOk(Get(*session_, keys, milliseconds(300)));
  EXPECT_LE(NowMs() - started, 400);
  EXPECT_LT(left, keys.size());
  started = NowMs();
  for (int i = 0; i < 5; ++i) {
    Get(*session_, {keys[0], keys[60], keys[110], keys[160]}, milliseconds(300));
  }
  EXPECT_LE(NowMs() - started, 250) << "the next calls must end at once";
  std::this_thread::sleep_for(milliseconds(1500));
  kill(owners_[0], SIGCONT);
  const std::int64_t back = MsUntilGot(keys, keys.size());
  EXPECT_GE(back, 0) << "its objects did not come back";
  EXPECT_LE(back, 3000);
}

TEST_F(ClusterFaultTest, AResetDoesNotWaitForAFrozenOwnerAndNothingOldThawsWithIt) {
  const auto keys = Fill(1000);
  auto neighbour_pool = Open("host0");  // reads the frozen owner's memory directly
  auto neighbour = OpenSession(*neighbour_pool);
  ASSERT_EQ(CountOk(Get(*neighbour, keys)), keys.size());
  const Token old = *session_->Capture();
  Freeze(owners_[0]);
  const std::int64_t started = NowMs();
  const Status reset = session_->Reset();
  EXPECT_TRUE(reset) << reset.error().ToString();
  EXPECT_LE(NowMs() - started, 2000) << "lease + 0.5 s, and a busy machine";
  EXPECT_EQ(CountOk(Get(*neighbour, keys, milliseconds(300))), 0U);
  EXPECT_EQ(CountOk(Get(*session_, keys, milliseconds(300))), 0U);
  kill(owners_[0], SIGCONT);
  const std::int64_t until = NowMs() + 2500;
  while (NowMs() < until) {
    ASSERT_EQ(CountOk(Get(*neighbour, keys)), 0U) << "stale hit after the thaw";
    ASSERT_EQ(CountOk(Get(*session_, keys)), 0U) << "stale hit after the thaw";
  }
  for (const ItemResult& result : Put(*session_, Keys(20, "late"), old)) {
    EXPECT_EQ(result.code, Code::kStale);
  }
  WaitLive(2);
  EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size());
  EXPECT_EQ(CountOk(Get(*neighbour, keys)), keys.size());
}

TEST_F(ClusterFaultTest, AResetWithAKilledOwnerIsTrueInTime) {
  const auto keys = Fill(200);
  End(std::exchange(owners_[1], 0), SIGKILL);
  const std::int64_t started = NowMs();
  ASSERT_TRUE(session_->Reset());
  EXPECT_LE(NowMs() - started, 2000);
  EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
}

TEST_F(ClusterFaultTest, ARestartedMasterKnowsAllAgain) {
  const auto keys = Fill(10000);
  for (const bool stop_cleanly : {false, true}) {
    End(master_, stop_cleanly ? SIGTERM : SIGKILL);
    StartMaster();
    const std::int64_t back = MsUntilGot(keys, keys.size() * 99 / 100);
    EXPECT_GE(back, 0) << "the objects did not come back";
    EXPECT_LE(back, 3000);
    // It fences what it did not raise itself.
    const Token old = *session_->Capture();
    if (stop_cleanly) {
      ASSERT_TRUE(session_->Reset());
      EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
      EXPECT_EQ(Put(*session_, {"late"}, old)[0].code, Code::kStale);
    }
  }
}

TEST_F(ClusterFaultTest, WithoutItsGenerationFileAMasterVoidsAll) {
  const auto keys = Fill(200);
  const Token old = *session_->Capture();
  End(master_, SIGKILL);
  std::filesystem::remove_all(directory_ + "/master");
  StartMaster();
  WaitLive(2);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(CountOk(Get(*session_, keys)), 0U);
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(Put(*session_, {"late"}, old)[0].code, Code::kStale);
  // Nothing says any more which weights the engines have.
  EXPECT_EQ(Put(*session_, {"new"})[0].code, Code::kClosed);
  ASSERT_TRUE(session_->Reset());
  EXPECT_EQ(CountOk(Put(*session_, keys)), keys.size());
  EXPECT_EQ(CountOk(Get(*session_, keys)), keys.size());
}

TEST_F(ClusterFaultTest, WithoutMasterAllIsAMissAndLocalPutsGoOn) {
  auto here_pool = Open("host0");
  auto here = OpenSession(*here_pool);
  const auto keys = Keys(20);
  ASSERT_EQ(CountOk(Put(*here, keys)), keys.size());
  const Token token = *here->Capture();
  ASSERT_EQ(CountOk(Get(*session_, keys)), keys.size());
  End(master_, SIGKILL);
  std::this_thread::sleep_for(milliseconds(1300));  // longer than a lease
  EXPECT_EQ(CountOk(Get(*here, keys, milliseconds(200))), 0U);
  EXPECT_EQ(CountOk(Get(*session_, keys, milliseconds(200))), 0U);
  const std::int64_t started = NowMs();
  const auto stored = Put(*here, Keys(20, "meanwhile"), token);
  EXPECT_LE(NowMs() - started, 500);
  for (const ItemResult& result : stored) {
    EXPECT_TRUE(result.ok()) << CodeName(result.code);
    EXPECT_FALSE(result.listed);
  }
  StartMaster();
  EXPECT_GE(MsUntilGot(Keys(20, "meanwhile"), 20), 0);
  EXPECT_GE(MsUntilGot(keys, keys.size()), 0) << MissReasonName(Get(*session_, keys)[0].reason);
}

TEST_F(ClusterFaultTest, AWriterThatDiesInMidPutFreesItsKey) {
  const Token token = *session_->Capture();
  rpc::TcpChannel channel(master_address_, {});
  const auto owners = *wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + kSecond);
  rpc::DataPeer peer(*rpc::ParseAddress(owners[0].address, 0), {}, SystemClock::Instance());
  UniqueFd fd = *peer.Take(SystemClock::Instance().NowNs() + kSecond);
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
  const std::int64_t died = NowMs();
  while (NowMs() < died + 5000 && CountOk(Put(*session_, {"torn"})) == 0) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LE(NowMs() - died, 2000);
  EXPECT_EQ(CountOk(Get(*session_, {"torn"})), 1U);
}

TEST_F(ClusterFaultTest, StrangersAndGarbageDisturbNobody) {
  const auto keys = Fill(100);
  rpc::TcpChannel channel(master_address_, {});
  const auto owners = *wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + kSecond);
  std::vector<UniqueFd> silent;
  Random random(RandomU64());
  for (const rpc::Address& address : {master_address_, *rpc::ParseAddress(owners[0].address, 0)}) {
    for (int i = 0; i < 200; ++i) {
      auto fd = rpc::ConnectTcp(address, SystemClock::Instance().NowNs() + kSecond);
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
  EXPECT_EQ(CountOk(Get(*session_, keys)), keys.size());
  const std::int64_t opened = NowMs();
  std::size_t closed = 0;
  while (closed < silent.size() && NowMs() < opened + 10000) {
    closed = 0;
    for (const UniqueFd& fd : silent) {
      char bytes[256];
      ssize_t got = 1;
      while (got > 0) got = recv(fd.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      closed += got == 0 || (got < 0 && errno != EAGAIN) ? 1 : 0;
    }
    EXPECT_EQ(CountOk(Get(*session_, keys)), keys.size());
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_EQ(closed, silent.size()) << "silent connections stay";
  EXPECT_EQ(Live(), 2U);
}

}  // namespace
}  // namespace kvcove
