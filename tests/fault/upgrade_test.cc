// SPDX-License-Identifier: Apache-2.0
// `kvcove serve --take-over` with real processes: what is kept, and what happens when one of the
// two ends in the middle. The processes that fail at a stage are this binary, started again with
// --taker: it takes over as `kvcove serve` does, and its DaemonOptions::on_stage ends it.
#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/server.h"
#include "kvcove/server/daemons.h"
#include "kvcove/wire/host_wire.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/fault/lasting.h"
#include "tests/fault/misbehave.h"
#include "tests/fault/take_over.h"
#include "tests/must.h"
#include "tests/retry.h"
#include "tests/slowness.h"
#include "tests/support/process.h"

extern char** environ;

namespace kvcove {
namespace {

using server::UpgradeStage;
using std::chrono::milliseconds;

constexpr std::uint64_t kMemory = 8 * kMiB;

pid_t Spawn(const std::string& program, const std::vector<std::string>& words,
            const std::string& output) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int Wait(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return status;
}

class UpgradeTest : public testing::Test {
 protected:
  UpgradeTest() {
    SetLogLevel(LogLevel::kOff);
    std::string name = "/tmp/kvcove-upgrade-XXXXXX";
    directory_ = mkdtemp(name.data());
    socket_ = directory_ + "/kvcove.sock";
  }
  void SetUp() override {
    daemon_ = Spawn(KVCOVE_COMMAND, Words({}), Log());
    ASSERT_TRUE(Becomes([&] { return Pool::Open(Address()).has_value(); }));
  }
  void TearDown() override {
    if (daemon_ != 0) {
      kill(daemon_, SIGKILL);
      Wait(daemon_);
    }
    std::filesystem::remove_all(directory_);
  }
  std::vector<std::string> Words(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"--log", "info", "serve", "--socket", socket_};
    words.insert(words.end(), options_.begin(), options_.end());
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::string Log() const { return directory_ + "/log"; }
  std::string Said() const {
    std::ifstream file(Log());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string Address() const { return "unix:" + socket_; }

  // The old process ends by itself, and with 0. The first attempt succeeds, unless the old one is
  // still busy with an earlier act of the test, or the machine stood still: then the old one may
  // refuse the new one, or end it in time.
  void Upgrade(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = more;
    words.emplace_back("--take-over");
    int old = 0;
    int refused = 0;
    bool taken = false;
    const auto attempt = [&] {
      const pid_t next = Spawn(KVCOVE_COMMAND, Words(words), Log());
      while (waitpid(daemon_, &old, WNOHANG) != daemon_) {
        if (waitpid(next, &refused, WNOHANG) == next) return;
        std::this_thread::sleep_for(milliseconds(2));
      }
      daemon_ = next;
      taken = true;
    };
    (void)slowness_.Holds([&] {
      (void)Becomes([&] {
        attempt();
        const bool again = !taken && IsBusyWithTheTest();
        taker_failed_ = !taken;
        return !again;
      });
      return taken || !MayTakeOverLater(refused, Said());
    });
    ASSERT_TRUE(taken) << refused << Said();
    ASSERT_TRUE(WIFEXITED(old) && WEXITSTATUS(old) == 0) << Said();
  }
  // The process that refuses has started just now, or is not done with a taker that failed.
  bool IsBusyWithTheTest() const {
    const std::string said = Said();
    if (said.contains("another process is taking it over now")) return taker_failed_;
    return said.contains("it is still starting") ||
           said.contains("its disk is still being opened") ||
           said.contains("the note of its disks is being written");
  }
  // A process that does not take over; what it said.
  std::string Refused(const std::vector<std::string>& more) {
    std::vector<std::string> words = more;
    words.emplace_back("--take-over");
    const int status = Wait(Spawn(KVCOVE_COMMAND, Words(words), Log()));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    return Said();
  }
  pid_t StartTaker(UpgradeStage stage, const char* what) {
    taker_failed_ = true;
    return Spawn("/proc/self/exe",
                 {"--take-over-owner", socket_, std::to_string(static_cast<int>(stage)), what,
                  std::to_string(daemon_)},
                 Log());
  }

  static Code Put(Session& session, const std::string& key, const std::string& value,
                  milliseconds timeout = kCallTime) {
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
    ItemResult result;
    (void)session.Put({&item, 1}, {&result, 1}, {.timeout = timeout});
    return result.code;
  }
  std::string Get(Session& session, const std::string& key) {
    std::string value(8192, '\0');
    const MutableBuffer piece{.data = value.data(), .size = value.size()};
    const GetItem item{.key = key, .into = {&piece, 1}};
    ItemResult result;
    (void)slowness_.Holds([&] {
      (void)session.Get({&item, 1}, {&result, 1}, {.timeout = kCallTime});
      return result.reason != MissReason::kLease;
    });
    if (!result.ok()) return fmt::format("miss {}", MissReasonName(result.reason));
    value.resize(result.bytes);
    return value;
  }
  static MissReason Look(Session& session, const std::string& key) {
    const std::string_view one = key;
    ItemResult result;
    (void)session.Exists({&one, 1}, {&result, 1}, {.timeout = kCallTime});
    return result.ok() ? MissReason::kNone : result.reason;
  }
  // Every kind of call of a session.
  void ExpectAllWorks(Session& session, const std::string& mark) {
    const std::string key = "all-" + mark;
    EXPECT_EQ(Put(session, key, mark), Code::kOk);
    EXPECT_EQ(Put(session, key, mark), Code::kExists);
    EXPECT_EQ(Get(session, key), mark);
    const std::string large(300'000, 'l');
    EXPECT_EQ(Put(session, key + "-large", large), Code::kOk) << "with a reservation";
    const std::string_view view = key;
    ItemResult result;
    ASSERT_TRUE(session.Pin({&view, 1}, PinKind::kHard, {}, {&result, 1}, {.timeout = kCallTime}));
    EXPECT_EQ(result.code, Code::kOk);
    const auto stat = session.Stat({&view, 1}, {.timeout = kCallTime});
    ASSERT_TRUE(stat && (*stat)[0]);
    EXPECT_TRUE((*stat)[0]->hard_pinned);
    ASSERT_TRUE(session.Hold({&view, 1}, milliseconds(100), {&result, 1}));
    ASSERT_TRUE(session.Unpin({&view, 1}, {&result, 1}, {.timeout = kCallTime}));
    ASSERT_TRUE(session.Remove({&view, 1}, {&result, 1}, {.timeout = kCallTime}));
    EXPECT_EQ(result.code, Code::kOk);
    EXPECT_THAT(Get(session, key), testing::StartsWith("miss"));
    EXPECT_EQ(session.RemoveMatching(key + "*", {.timeout = kCallTime}).value_or(0), 1U);
  }

  std::string directory_;
  std::string socket_;
  std::vector<std::string> options_ = {"--memory", "8MiB"};
  pid_t daemon_ = 0;
  bool taker_failed_ = false;  // since the last upgrade
  const Slowness slowness_;
};

// With a disk. What is put goes there soon: memory holds a third of it.
class DiskUpgradeTest : public UpgradeTest {
 protected:
  static constexpr int kKeys = 240;

  DiskUpgradeTest() {
    std::filesystem::create_directory(directory_ + "/disk");
    options_ = {"--memory", "8MiB", "--disk", directory_ + "/disk:64MiB", "--disk-admit", "all"};
  }
  void SetUp() override {
    daemon_ = Spawn(KVCOVE_COMMAND, Words({}), Log());
    const bool up = Becomes([&] { return Pool::Open(Address()).has_value(); });
    if (!up && Said().contains("O_DIRECT")) GTEST_SKIP() << Said();
    ASSERT_TRUE(up) << Said();
    pool_ = Must(Pool::Open(Address(), kCallTime));
    session_ = Must(pool_->OpenSession({.name = "m", .engine = "e"}));
  }
  void TearDown() override {
    session_.reset();
    pool_.reset();
    UpgradeTest::TearDown();
  }
  static std::string Value(int i) {
    return std::string(100'000, static_cast<char>('a' + (i % 26)));
  }
  static std::string Key(int i) { return fmt::format("key{}", i); }
  ItemResult Look(const std::string& key) {
    const std::string_view one = key;
    ItemResult result;
    (void)session_->Exists({&one, 1}, {&result, 1}, {.timeout = kCallTime});
    return result;
  }
  std::string Read(const std::string& key) {
    std::string value(100'000, '\0');
    const MutableBuffer piece{.data = value.data(), .size = value.size()};
    const GetItem item{.key = key, .into = {&piece, 1}};
    ItemResult result;
    (void)session_->Get({&item, 1}, {&result, 1}, {.timeout = milliseconds(20'000)});
    return result.ok() ? value.substr(0, result.bytes) : "";
  }
  Code Remove(const std::string& key) {
    const std::string_view one = key;
    ItemResult result;
    (void)session_->Remove({&one, 1}, {&result, 1}, {.timeout = milliseconds(20'000)});
    return result.code;
  }
  // On a busy machine it may take some attempts. A key of an earlier round may be there.
  bool Stored(const std::string& key, const std::string& value) {
    Code code = Code::kOk;
    return PutWithRetries({key},
                          [&](const auto& /*left*/) {
                            code = Put(*session_, key, value);
                            return std::vector{ItemResult{.code = code}};
                          }) ||
           code == Code::kExists;
  }
  // The numbers of those that are on the disk alone.
  std::vector<int> Fill() {
    for (int i = 0; i < kKeys; ++i) {
      EXPECT_TRUE(Stored(Key(i), Value(i)));
      EXPECT_TRUE(Becomes([&] { return AwaitStat(*pool_).disk_queued_bytes < (1 << 20); }));
    }
    EXPECT_TRUE(Becomes([&] { return AwaitStat(*pool_).disk_queued_bytes == 0; }));
    std::vector<int> on_disk;
    for (int i = 0; i < kKeys; ++i) {
      if (Look(Key(i)).tier == Tier::kDisk) on_disk.push_back(i);
    }
    EXPECT_GT(on_disk.size(), 100U);
    return on_disk;
  }
  // It may take a moment until the disk is open again.
  void ExpectFound(const std::vector<int>& keys) {
    for (const int i : keys) {
      ASSERT_TRUE(Becomes([&] { return Look(Key(i)).ok(); })) << Key(i) << Said();
      EXPECT_EQ(Read(Key(i)), Value(i)) << Key(i);
    }
  }

  std::unique_ptr<Pool> pool_;
  SessionPtr session_;
};

// A process with an owner on each of two NUMA nodes.
class SeveralOwnersUpgradeTest : public UpgradeTest {
 protected:
  SeveralOwnersUpgradeTest() {
    const std::filesystem::path nodes = directory_ + "/sys/devices/system/node";
    for (const int node : {0, 1}) {
      const std::filesystem::path at = nodes / fmt::format("node{}", node);
      std::filesystem::create_directories(at);
      std::ofstream(at / "cpulist") << "0-63\n";
      std::ofstream(at / "meminfo")
          << fmt::format("Node {0} MemTotal: 1048576 kB\nNode {0} MemFree: 1048576 kB\n", node);
    }
    std::ofstream(nodes / "online") << "0-1\n";
    options_ = {"--memory", "16MiB", "--numa", "all", "--sysfs", directory_ + "/sys"};
  }
};

TEST_F(UpgradeTest, EverythingIsThereAndWorks) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  const Token token = Must(session->Capture({.timeout = kCallTime}));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(Put(*session, fmt::format("k{}", i), fmt::format("v{}", i)), Code::kOk);
  }
  const std::string_view pinned = "k7";
  ItemResult result;
  ASSERT_TRUE(session->Pin({&pinned, 1}, PinKind::kHard, {}, {&result, 1}, {.timeout = kCallTime}));
  const auto before = AwaitStat(*pool);
  EXPECT_TRUE(Becomes([&] { return Said().contains("memory: "); })) << "which pages it has";
  for (int round = 0; round < 3; ++round) {
    Upgrade();
    EXPECT_TRUE(Becomes([&] { return Said().contains("took over"); }));
    EXPECT_FALSE(Said().contains("learns anew"));
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(Get(*session, fmt::format("k{}", i)), fmt::format("v{}", i)) << round;
    }
    EXPECT_EQ(Must(session->Capture({.timeout = kCallTime})).generation, token.generation);
    EXPECT_EQ(Must(session->Stat({&pinned, 1}, {.timeout = kCallTime}))[0]->hard_pinned, true);
    const auto after = AwaitStat(*pool);
    EXPECT_EQ(after.objects, before.objects);
    EXPECT_EQ(after.object_bytes, before.object_bytes);
    EXPECT_GE(after.puts, before.puts) << "counters do not go back";
    ExpectAllWorks(*session, std::to_string(round));
    auto other =
        Must(Must(Pool::Open(Address(), kCallTime))->OpenSession({.name = "m", .engine = "e"}));
    EXPECT_EQ(Get(*other, "k1"), "v1") << "new sessions, too";
  }
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_THAT(Get(*session, "k1"), testing::StartsWith("miss"));
  EXPECT_EQ(Put(*session, "k1", "new"), Code::kOk);
  kill(daemon_, SIGTERM);
  const int status = Wait(daemon_);
  daemon_ = 0;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(std::filesystem::exists(socket_)) << "the last one removes the socket";
  const std::string said = Said();
  EXPECT_THAT(said, testing::Not(testing::HasSubstr("memory:"))) << "the pages are the first one's";
  EXPECT_THAT(said,
              testing::ContainsRegex("reset of 'm': 10[0-9]+ values \\([^)]*\\) of this host"));
}

// A trainer that pins for its rollout, and is killed.
TEST_F(UpgradeTest, HardPinsOfAKilledProcessOutliveAnUpgradeAndEndInTheirTime) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t trainer = fork();
  if (trainer == 0) {
    [&]() noexcept {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto own = Must(Pool::Open(Address(), kCallTime));
      const auto mine = Must(own->OpenSession({.name = "m", .engine = "t", .follow_always = true}));
      bool pinned = true;
      using Pinned = std::pair<std::string_view, milliseconds>;
      for (const auto& [key, duration] : {Pinned("long", 3'600'000), Pinned("short", 1'500)}) {
        ItemResult result;
        pinned &= Put(*mine, std::string(key), "v") == Code::kOk;
        (void)mine->Pin({&key, 1}, PinKind::kHard, duration, {&result, 1}, {.timeout = kCallTime});
        pinned &= result.ok();
      }
      (void)!write(ready[1], pinned ? "y" : "n", 1);
      while (true) pause();
    }();
  }
  close(ready[1]);
  char said = 0;
  ASSERT_EQ(read(ready[0], &said, 1), 1);
  close(ready[0]);
  EXPECT_EQ(said, 'y');
  kill(trainer, SIGKILL);
  Wait(trainer);
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e", .follow_always = true}));
  const auto pinned = [&](std::string_view key) {
    const auto stat = Must(session->Stat({&key, 1}, {.timeout = kCallTime}))[0];
    return stat && stat->hard_pinned;
  };
  EXPECT_TRUE(pinned("long"));
  const std::uint64_t bytes = AwaitStat(*pool).pinned_bytes;
  Upgrade();
  EXPECT_TRUE(pinned("long"));
  EXPECT_TRUE(Becomes([&] { return AwaitStat(*pool).ended_pins == 1; }));
  EXPECT_FALSE(pinned("short"));
  EXPECT_TRUE(pinned("long"));
  const PoolStat stat = AwaitStat(*pool);
  EXPECT_EQ(stat.pinned_bytes, stat.timed_pin_bytes);
  EXPECT_GT(stat.pinned_bytes, 0U);
  EXPECT_LE(stat.pinned_bytes, bytes);
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_THAT(Get(*session, "long"), testing::StartsWith("miss"));
  EXPECT_EQ(Put(*session, "long", "new"), Code::kOk);
  EXPECT_FALSE(pinned("long"));
  EXPECT_TRUE(Becomes([&] { return AwaitStat(*pool).pinned_bytes == 0; }));
}

TEST_F(UpgradeTest, ATakerThatDiesAtAnyStageLeavesAllAsItWas) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
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
    EXPECT_EQ(Get(*session, "k"), "v") << number;
    EXPECT_EQ(Put(*session, fmt::format("after{}", number), "v"), Code::kOk) << number;
    ExpectAllWorks(*session, std::to_string(number));
    ASSERT_TRUE(session->Reset({.timeout = kCallTime})) << "the generations are open again";
    ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
    EXPECT_EQ(kill(daemon_, 0), 0);
  }
  Upgrade();
  EXPECT_EQ(Get(*session, "k"), "v");
}

TEST_F(UpgradeTest, ATakerThatHangsIsEndedAndReadsGoOn) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
  for (const UpgradeStage stage : {UpgradeStage::kState, UpgradeStage::kGo}) {
    const pid_t taker = StartTaker(stage, "hang");
    int status = 0;
    while (waitpid(taker, &status, WNOHANG) == 0) {
      MissReason missed = MissReason::kNone;
      ASSERT_TRUE(slowness_.Holds([&] {
        missed = Look(*session, "k");
        return missed != MissReason::kLease;
      })) << "the lease goes on";
      ASSERT_EQ(missed, MissReason::kNone) << MissReasonName(missed);
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(Put(*session, fmt::format("k{}", static_cast<int>(stage)), "v"), Code::kOk);
  }
  Upgrade();
  EXPECT_EQ(Get(*session, "k"), "v");
}

// The old process stands before it reads "mine", and may end the new one when it goes on: nothing
// that the new one had answered by then would be true any more.
TEST_F(UpgradeTest, NobodyIsAnsweredBeforeTheOldOneHasReadThatTheNewOneOwnsAll) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
  const pid_t taker = StartTaker(UpgradeStage::kGo, "stop");
  int status = 0;
  ASSERT_EQ(waitpid(daemon_, &status, WUNTRACED), daemon_);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_NE(Put(*session, "late", "v", milliseconds(1000)), Code::kOk)
      << "it waits for its whole time";
  kill(daemon_, SIGCONT);
  pid_t ended = 0;
  ASSERT_TRUE(Becomes([&] {
    for (const pid_t one : {daemon_, taker}) {
      if (waitpid(one, nullptr, WNOHANG) == one) ended = one;
    }
    return ended != 0;
  })) << Said();
  if (ended == daemon_) daemon_ = taker;
  // The lease may have run out while the old one stood.
  EXPECT_TRUE(Becomes([&] { return Get(*session, "k") == "v"; }));
  Code late = Code::kOk;
  ASSERT_TRUE(Becomes([&] { return !MayBeRepeated(late = Put(*session, "late", "v")); }));
  ASSERT_TRUE(late == Code::kOk || late == Code::kExists) << CodeName(late);
  ExpectAllWorks(*session, "late");
}

TEST_F(UpgradeTest, WhenTheOldOneDiesAfterItHasSaidAllTheNewOneGoesOn) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
  const pid_t taker = StartTaker(UpgradeStage::kLoaded, "kill");
  Wait(daemon_);
  daemon_ = taker;
  EXPECT_EQ(Get(*session, "k"), "v");
  ExpectAllWorks(*session, "x");
  Upgrade();
  EXPECT_EQ(Get(*session, "k"), "v");
}

TEST_F(UpgradeTest, WhenTheOldOneDiesBeforeThatTheNewOneSaysSo) {
  const pid_t taker = StartTaker(UpgradeStage::kFiles, "kill");
  Wait(daemon_);
  daemon_ = 0;
  const int status = Wait(taker);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << "OpenDaemons failed";
  EXPECT_THAT(Said(), testing::HasSubstr("the other process has ended"));
}

TEST_F(UpgradeTest, WhatDoesNotFitIsRefusedWithTheReasonAndTheOldOneGoesOn) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  ASSERT_EQ(Put(*session, "k", "v"), Code::kOk);
  EXPECT_THAT(Refused({"--max-objects", "4096"}), testing::HasSubstr("--max-objects"));
  EXPECT_THAT(Refused({"--policy", "nonsense"}), testing::HasSubstr("nonsense"));
  EXPECT_THAT(Refused({"--data", directory_ + "/elsewhere"}), testing::HasSubstr("generations"));
  EXPECT_EQ(Get(*session, "k"), "v");
  Upgrade({"--policy", "lru"});
  EXPECT_TRUE(Becomes([&] { return Said().contains("learns anew"); }));
  EXPECT_EQ(Get(*session, "k"), "v");
  ExpectAllWorks(*session, "lru");
}

// $NOTIFY_SOCKET, as the service manager reads it.
class Manager {
 public:
  explicit Manager(const std::string& path) : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Manager() { unsetenv("NOTIFY_SOCKET"); }
  std::string Next() const {
    std::string text(256, '\0');
    const ssize_t size = recv(fd_.get(), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    return text;
  }

 private:
  UniqueFd fd_;
};

TEST_F(UpgradeTest, TheServiceManagerHearsWhoIsReadyAndWhoIsTheMainProcess) {
  kill(daemon_, SIGTERM);
  Wait(daemon_);
  const Manager manager(directory_ + "/notify");
  SetUp();
  EXPECT_EQ(manager.Next(), "READY=1");
  for (int round = 0; round < 2; ++round) {
    Upgrade();
    const std::set<std::string> said = {manager.Next(), manager.Next()};
    EXPECT_EQ(said, (std::set<std::string>{fmt::format("MAINPID={}", daemon_), "READY=1"}));
  }
  EXPECT_THAT(Refused({"--max-objects", "4096"}), testing::HasSubstr("--max-objects"));
  kill(daemon_, SIGTERM);
  Wait(std::exchange(daemon_, 0));
}

TEST_F(UpgradeTest, WithoutARunningOneItSaysSo) {
  kill(daemon_, SIGTERM);
  Wait(daemon_);
  daemon_ = 0;
  EXPECT_THAT(Refused({}), testing::HasSubstr("nobody serves"));
}

// As an owner of before: it knows no such method.
class OldServer final : public rpc::Handler {
 public:
  void OnOpen(rpc::ConnectionId /*id*/, const rpc::Peer& /*peer*/) override {}
  void OnRequest(rpc::ConnectionId /*id*/, wire::Method /*method*/,
                 std::span<const std::byte> /*body*/, std::int64_t /*deadline_ns*/,
                 rpc::Responder respond) override {
    respond(rpc::ErrorReply({Code::kDenied, "say hello first"}, /*close=*/true));
  }
  void OnClose(rpc::ConnectionId /*id*/) override {}
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId /*id*/) const override { return false; }
};

TEST_F(UpgradeTest, AnOlderVersionIsNamed) {
  kill(daemon_, SIGTERM);
  Wait(daemon_);
  daemon_ = 0;
  OldServer handler;
  rpc::ServerOptions options;
  options.socket_path = socket_;
  auto server = Must(rpc::Server::Open(options, handler));
  EXPECT_TRUE(server->Start());
  EXPECT_THAT(Refused({}), testing::HasSubstr("cannot hand over; restart it instead"));
}

TEST_F(UpgradeTest, NobodyElseMayTakeOver) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  std::filesystem::permissions(socket_, std::filesystem::perms::all);
  const pid_t taker = StartTaker(UpgradeStage::kHello, "stranger");
  const int status = Wait(taker);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3);
  EXPECT_EQ(kill(daemon_, 0), 0);
}

TEST_F(UpgradeTest, TwentyUpgradesLeaveNothingBehind) {
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(Put(*session, fmt::format("k{}", i), fmt::format("v{}", i)), Code::kOk);
  }
  Upgrade();
  // Its admin interface opens last, and has descriptors, too.
  const auto settled = [&] {
    return AwaitStat(*pool).objects == 1000 && Said().contains("serving ");
  };
  ASSERT_TRUE(Becomes(settled));
  const std::size_t owner_fds = Lasting(Descriptors, daemon_);
  const std::size_t owner_maps = Lasting(Mappings, daemon_);
  const std::size_t own_fds = Lasting(Descriptors, getpid());
  const std::size_t own_maps = Lasting(Mappings, getpid());
  for (int round = 0; round < 20; ++round) {
    Upgrade();
    ASSERT_EQ(Get(*session, "k999"), "v999");
    ASSERT_TRUE(Becomes(settled));
  }
  EXPECT_LE(Lasting(Descriptors, daemon_), owner_fds);
  EXPECT_LE(Lasting(Mappings, daemon_), owner_maps);
  EXPECT_EQ(Lasting(Descriptors, getpid()), own_fds) << "of the requester";
  EXPECT_EQ(Lasting(Mappings, getpid()), own_maps) << "of the requester";
}

// Three upgrades in a row, then a restart: whatever was removed or stored around an upgrade stays
// so.
TEST_F(DiskUpgradeTest, WhatIsOnTheDiskIsThereAfterAndWhatWasRemovedIsNot) {
  std::vector<int> keys = Fill();
  std::vector<int> removed;
  std::vector<int> stored;
  const auto take = [&](std::vector<int>& into) {
    into.push_back(keys.back());
    keys.pop_back();
    return into.back();
  };
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(Remove(Key(take(removed))), Code::kOk) << "just before";
    ASSERT_NO_FATAL_FAILURE(Upgrade());
    // The disk may not be open yet. The key may be found, or its newer value is the one that
    // counts.
    const Code removal = Remove(Key(take(removed)));
    EXPECT_TRUE(removal == Code::kOk || removal == Code::kMiss) << CodeName(removal) << Said();
    const int again = take(stored);
    const Code put = Put(*session_, Key(again), std::string(100'000, '0' + round));
    const std::string value =
        put == Code::kExists ? Value(again) : std::string(100'000, '0' + round);
    ASSERT_NO_FATAL_FAILURE(ExpectFound(keys));
    if (put == Code::kExists || put == Code::kOk) {
      EXPECT_EQ(Read(Key(again)), value) << "what was stored";
    }
    ASSERT_EQ(Remove(Key(again)), Code::kOk);
    removed.push_back(again);
    for (const int i : removed) EXPECT_FALSE(Look(Key(i)).ok()) << Key(i);
  }
  session_.reset();
  pool_.reset();
  kill(daemon_, SIGTERM);
  Wait(daemon_);
  ASSERT_NO_FATAL_FAILURE(SetUp());
  for (const int i : removed) EXPECT_FALSE(Look(Key(i)).ok()) << Key(i);
  std::size_t found = 0;
  for (const int i : keys) found += Look(Key(i)).ok() ? 1 : 0;
  EXPECT_GT(found, keys.size() / 2) << "but for what was in memory alone";
}

// Killed as soon as it serves, when its disk may or may not be open.
TEST_F(DiskUpgradeTest, AKillBehindAnUpgradeBringsNothingOlderBack) {
  const std::string newer(100'000, '0');
  for (int round = 0; round < 5; ++round) {
    const std::vector<int> keys = Fill();
    ASSERT_NO_FATAL_FAILURE(Upgrade());
    std::vector<int> replaced;
    for (std::size_t i = 0; i < 20; ++i) {
      if (Put(*session_, Key(keys[i]), newer) == Code::kOk) replaced.push_back(keys[i]);
    }
    session_.reset();
    pool_.reset();
    kill(daemon_, SIGKILL);
    Wait(daemon_);
    ASSERT_NO_FATAL_FAILURE(SetUp());
    for (const int i : replaced) EXPECT_NE(Read(Key(i)), Value(i)) << Key(i) << ", " << round;
  }
}

TEST_F(DiskUpgradeTest, ATakerThatDiesLeavesTheDiskToTheOldOne) {
  const std::vector<int> keys = Fill();
  int rounds = 0;
  for (const UpgradeStage stage :
       {UpgradeStage::kFiles, UpgradeStage::kState, UpgradeStage::kLoaded, UpgradeStage::kGo}) {
    int status = Wait(StartTaker(stage, "die"));
    while (WIFEXITED(status) && Said().contains("try again")) {
      status = Wait(StartTaker(stage, "die"));
    }
    ASSERT_TRUE(WIFSIGNALED(status)) << Said();
    // The disk may not be open yet.
    const Code removal = Remove(Key(keys[rounds]));
    EXPECT_TRUE(removal == Code::kOk || removal == Code::kMiss) << CodeName(removal);
    ++rounds;
    ASSERT_NO_FATAL_FAILURE(ExpectFound({keys.begin() + rounds, keys.end()}));
    EXPECT_GT(AwaitStat(*pool_).disk_hits, 0U);
    for (int i = 0; i < rounds; ++i) EXPECT_FALSE(Look(Key(keys[i])).ok());
  }
  Upgrade();
  ASSERT_NO_FATAL_FAILURE(ExpectFound({keys.begin() + rounds, keys.end()}));
}

TEST_F(DiskUpgradeTest, AnotherSetOfDisksIsRefused) {
  std::filesystem::create_directory(directory_ + "/second");
  EXPECT_THAT(Refused({"--disk", directory_ + "/second:64MiB"}), testing::HasSubstr("--disk"));
  EXPECT_EQ(Put(*session_, "k", "v"), Code::kOk);
}

TEST_F(SeveralOwnersUpgradeTest, AreTakenOverTogether) {
  const std::string second = directory_ + "/kvcove.node1.sock";
  ASSERT_TRUE(Becomes([&] { return std::filesystem::exists(second); }));
  auto pool = Must(Pool::Open(Address(), kCallTime));
  auto session = Must(pool->OpenSession({.name = "m", .engine = "e"}));
  // More than one owner has room for.
  const std::string value(64 * 1024, 'v');
  const auto there = [&] {
    const std::vector<std::string> keys = [] {
      std::vector<std::string> all;
      for (int i = 0; i < 200; ++i) all.push_back(fmt::format("k{}", i));
      return all;
    }();
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    std::vector<ItemResult> results(views.size());
    (void)slowness_.Holds([&] {
      EXPECT_TRUE(session->Exists(views, results, {.timeout = kCallTime}));
      return std::ranges::none_of(
          results, [](const ItemResult& one) { return one.reason == MissReason::kLease; });
    });
    return std::ranges::count_if(results, [](const ItemResult& one) { return one.ok(); });
  };
  // The second owner is used once it is attached.
  ASSERT_TRUE(Becomes([&] {
    for (int i = 0; i < 200; ++i) (void)Put(*session, fmt::format("k{}", i), value);
    return there() > 128;
  }));
  const auto stored = there();
  for (int round = 0; round < 3; ++round) {
    Upgrade();
    EXPECT_EQ(there(), stored) << round;
    ExpectAllWorks(*session, std::to_string(round));
    ASSERT_TRUE(Becomes([&] { return Said().contains("serving"); }));
  }
  options_ = {"--memory", "16MiB"};
  EXPECT_THAT(Refused({}), testing::HasSubstr("it runs 2 owners, not 1"));
  ASSERT_TRUE(session->Reset({.timeout = kCallTime}));
  EXPECT_EQ(there(), 0) << "one authority decides for both";
  EXPECT_EQ(Put(*session, "k1", "new"), Code::kOk);
  kill(daemon_, SIGTERM);
  const int status = Wait(daemon_);
  daemon_ = 0;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(std::filesystem::exists(second));
}

TEST_F(SeveralOwnersUpgradeTest, OneOfThemAloneIsRefusedByName) {
  const std::string second = directory_ + "/kvcove.node1.sock";
  ASSERT_TRUE(Becomes([&] { return std::filesystem::exists(second); }));
  // Until all of them serve, each says that it is starting.
  EXPECT_TRUE(Becomes([&] {
    const pid_t taker = Spawn(
        KVCOVE_COMMAND,
        {"serve", "--socket", second, "--memory", "8MiB", "--take-over", "--data", "/tmp"}, Log());
    const int status = Wait(taker);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 0);
    return Said().contains("one of the 2 owners of a process");
  })) << Said();
  EXPECT_FALSE(Said().contains("it keeps its generations in")) << "judged as if it were alone";
}

// ---- the other process

[[noreturn]] void TakeOverOwner(const std::vector<std::string>& words) {
  const auto at = static_cast<UpgradeStage>(std::stoi(words[1]));
  const std::string what = words[2];
  const pid_t running = std::stoi(words[3]);
  if (what == "stranger" && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(4);
  server::DaemonOptions options;
  options.socket_path = words[0];
  options.host.owner.memory_bytes = kMemory;
  options.host.data_directory = words[0].substr(0, words[0].rfind('/')) + "/data";
  const std::string disk = words[0].substr(0, words[0].rfind('/')) + "/disk";
  if (std::filesystem::exists(disk)) {
    options.host.owner.disks = {{.path = disk, .size_bytes = 64 * kMiB}};
  }
  options.take_over = true;
  options.on_taken_over = [](std::int32_t /*pid*/) { _exit(0); };
  options.on_stage = Misbehave(at, what, running);
  const auto daemon = server::OpenDaemons({options}, SystemClock::Instance());
  if (!daemon) {
    fmt::print(stderr, "{}\n", daemon.error().ToString());
    _exit(3);
  }
  while (true) pause();
}

const ProcessRole kOwnerTaker("--take-over-owner", TakeOverOwner);

}  // namespace
}  // namespace kvcove
