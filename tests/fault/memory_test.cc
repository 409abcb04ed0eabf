// SPDX-License-Identifier: Apache-2.0
// Memory between real processes: who pays for pages, what is mapped beforehand, and what a killed
// owner leaves behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/pool.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/must.h"

extern char** environ;

namespace kvcove {
namespace {

using std::chrono::milliseconds;

// What `field` of a process's mappings of the payload adds up to, in bytes (/proc/PID/smaps).
std::uint64_t PayloadBytes(pid_t pid, const std::string& field) {
  std::ifstream smaps("/proc/" + std::to_string(pid) + "/smaps");
  std::uint64_t bytes = 0;
  bool payload = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    words >> name;
    if (name.find('-') != std::string::npos && name.back() != ':') {
      payload = line.find("/memfd:kvcove-payload-") != std::string::npos;
    } else if (payload && name == field + ":" && words >> kib) {
      bytes += kib * kKiB;
    }
  }
  return bytes;
}

// A control group for memory of its own, of version 1 or 2, where this host lets the test make one.
class ControlGroup {
 public:
  ControlGroup() {
    for (const std::string root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      const std::string path = root + "/kvcove-test-" + std::to_string(getpid());
      if (mkdir(path.c_str(), 0700) != 0) continue;
      if (access((path + "/memory.stat").c_str(), R_OK) == 0) {
        path_ = path;
        return;
      }
      rmdir(path.c_str());
    }
  }
  ~ControlGroup() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;
  bool made() const { return !path_.empty(); }
  bool Join() const {
    std::ofstream processes(path_ + "/cgroup.procs");
    processes << getpid() << std::flush;
    return processes.good();
  }
  // Of the memory that is charged to it.
  bool Limit(std::uint64_t bytes) const {
    for (const char* name : {"/memory.limit_in_bytes", "/memory.max"}) {
      if (access((path_ + name).c_str(), W_OK) != 0) continue;
      std::ofstream file(path_ + name);
      file << bytes << std::flush;
      return file.good();
    }
    return false;
  }
  const std::string& path() const { return path_; }
  // Shared memory charged to it, in bytes.
  std::uint64_t SharedBytes() const {
    std::ifstream stat(path_ + "/memory.stat");
    std::string name;
    for (std::uint64_t bytes = 0; stat >> name >> bytes;) {
      if (name == "shmem") return bytes;
    }
    return ~std::uint64_t{0};
  }

 private:
  std::string path_;
};

// Puts values that travel with the request and values that the requester writes itself, and reads
// them: as an engine does, in 24 MiB of an owner's memory.
bool PutsAndGets(Pool& pool) {
  const auto session = pool.OpenSession({.name = "m", .follow_always = true});
  if (!session) return false;
  const auto token = (*session)->Capture({.timeout = kCallTime});
  if (!token) return false;
  bool good = true;
  for (const auto& [size, count] : {std::pair{64 * kKiB, 320}, std::pair{4 * kKiB, 1024}}) {
    std::vector<std::byte> value(size, std::byte{5});
    const ConstBuffer from{.data = value.data(), .size = value.size()};
    const MutableBuffer to{.data = value.data(), .size = value.size()};
    for (int i = 0; i < count && good; ++i) {
      const std::string key = std::to_string(size) + "/" + std::to_string(i);
      ItemResult result;
      const PutItem put{.key = key, .value = {&from, 1}, .after = {}};
      good =
          (*session)->Put(*token, {&put, 1}, {&result, 1}, {.timeout = kCallTime}) && result.ok();
      const GetItem get{.key = key, .into = {&to, 1}};
      good =
          good && (*session)->Get({&get, 1}, {&result, 1}, {.timeout = kCallTime}) && result.ok();
    }
  }
  return good;
}

class MemoryFaultTest : public testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    std::string name = "/tmp/kvcove-memory-XXXXXX";
    directory_ = mkdtemp(name.data());
    log_ = directory_ + "/log";
  }
  void TearDown() override {
    End(engine_);
    End(owner_);
    std::filesystem::remove_all(directory_);
  }
  static void End(pid_t& pid) {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    pid = 0;
  }
  std::string Address() const { return "unix:" + directory_ + "/kvcove.sock"; }
  std::string Log() const {
    std::ostringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }
  void StartOwner(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {KVCOVE_COMMAND, "serve",    "--huge-pages",
                                      "off",          "--socket", directory_ + "/kvcove.sock",
                                      "--memory",     memory_};
    words.insert(words.end(), more.begin(), more.end());
    if (owner_group_ != nullptr) {
      const std::string join = "echo $$ > " + owner_group_->path() + "/cgroup.procs && exec \"$@\"";
      const std::vector<std::string> shell = {"/bin/sh", "-c", join, "sh"};
      words.insert(words.begin(), shell.begin(), shell.end());
    }
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ASSERT_EQ(posix_spawn(&owner_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    bool ended = false;
    ASSERT_TRUE(Becomes([&] {
      ended = ended || waitpid(owner_, nullptr, WNOHANG) == owner_;
      return ended || Log().find("serving") != std::string::npos;
    }));
    if (ended) owner_ = 0;
    ASSERT_FALSE(ended) << Log();
  }
  // A process that has the pool open, and waits.
  void StartEngine() {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    engine_ = fork();
    if (engine_ == 0) {
      auto pool = Pool::Open(Address(), kCallTime);
      const char answer = pool ? 'y' : 'n';
      (void)!write(ready[1], &answer, 1);
      while (true) pause();
    }
    char answer = 0;
    ASSERT_EQ(read(ready[0], &answer, 1), 1);
    close(ready[0]);
    close(ready[1]);
    ASSERT_EQ(answer, 'y');
  }

  // So that all of the owner's memory is there. Nothing of it stays mapped here.
  bool Fills(std::uint64_t bytes) const {
    const auto pool = Pool::Open(Address() + "?warm=off", kCallTime);
    if (!pool) return false;
    const auto session = Must((*pool)->OpenSession({.name = "m", .follow_always = true}));
    const Token token = Must(session->Capture({.timeout = kCallTime}));
    const std::vector<std::byte> value(8 * kMiB, std::byte{5});
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    for (std::uint64_t filled = 0; filled < bytes; filled += value.size()) {
      const std::string key = std::to_string(filled);
      const PutItem item{.key = key, .value = {&piece, 1}, .after = {}};
      const bool put = Becomes([&] {
        ItemResult result;
        (void)session->Put(token, {&item, 1}, {&result, 1}, {.timeout = kCallTime});
        return result.ok() || result.code == Code::kExists;
      });
      if (!put) return false;
    }
    return true;
  }

  std::string directory_;
  std::string log_;
  std::string memory_ = "32MiB";
  pid_t owner_ = 0;
  pid_t engine_ = 0;
  std::optional<ControlGroup> group_;  // it can be removed once the engine has ended
  const ControlGroup* owner_group_ = nullptr;
};

TEST_F(MemoryFaultTest, AStoppedEngineThatKeepsAKilledOwnersMemoryIsNamed) {
  StartOwner();
  StartEngine();
  kill(engine_, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(engine_, &status, WUNTRACED), engine_);
  End(owner_);
  StartOwner();
  const std::string named = "pid " + std::to_string(engine_) + " (";
  EXPECT_TRUE(Becomes([&] { return Log().find(named) != std::string::npos; })) << Log();
  EXPECT_NE(Log().find("leftover: up to 32MiB"), std::string::npos) << Log();
  kill(engine_, SIGCONT);
  EXPECT_TRUE(Becomes([&] { return PayloadBytes(engine_, "Size") == 32 * kMiB; }))
      << "it lets the old memory go and maps the new one";
}

TEST_F(MemoryFaultTest, AnEngineThatRunsLetsGoAndIsNotNamed) {
  StartOwner();
  StartEngine();
  End(owner_);
  ASSERT_TRUE(Becomes([&] { return PayloadBytes(engine_, "Size") == 0; }));
  StartOwner();
  EXPECT_TRUE(Becomes([&] { return PayloadBytes(engine_, "Size") == 32 * kMiB; }));
  EXPECT_EQ(Log().find("leftover"), std::string::npos) << Log();
}

TEST_F(MemoryFaultTest, ARequesterMapsAllThatTheOwnerHasPopulated) {
  StartOwner();
  const auto pool = Pool::Open(Address() + "?warm=all", kCallTime);
  ASSERT_TRUE(pool) << pool.error().ToString();
  // The threads that populate and map have what others leave of the cores.
  EXPECT_TRUE(
      Becomes([&] { return PayloadBytes(getpid(), "Rss") == 32 * kMiB; }, milliseconds(200'000)))
      << PayloadBytes(getpid(), "Rss");
  const auto off = Pool::Open(Address() + "?warm=off", kCallTime);
  ASSERT_TRUE(off);
  EXPECT_EQ(PayloadBytes(getpid(), "Size"), 64 * kMiB);
  EXPECT_EQ(PayloadBytes(getpid(), "Rss"), 32 * kMiB);
  EXPECT_EQ(Pool::Open(Address() + "?warm=yes").error().code, Code::kInvalid);
  EXPECT_EQ(Pool::Open(Address() + "?warmth=all").error().code, Code::kInvalid);
}

// The owner has memory for what it granted before the requester can touch it.
TEST_F(MemoryFaultTest, TheOwnerPopulatesWhatAPutWillWrite) {
  ItemResult result;
  std::uint64_t before = 0;
  // What a put has reserved is its own for a second: the machine may stand still for longer.
  for (int tries = 0; tries < 5 && !result.ok(); ++tries) {
    End(owner_);
    StartOwner({"--no-populate"});
    const auto pool = Pool::Open(Address() + "?warm=off", kCallTime);
    ASSERT_TRUE(pool);
    const auto session = Must((*pool)->OpenSession({.name = "m", .follow_always = true}));
    before = PayloadBytes(owner_, "Rss");
    const std::vector<std::byte> value(8 * kMiB, std::byte{5});
    const ConstBuffer piece{.data = value.data(), .size = value.size()};
    const PutItem item{.key = "k", .value = {&piece, 1}, .after = {}};
    ASSERT_TRUE(session->Put(Must(session->Capture({.timeout = kCallTime})), {&item, 1},
                             {&result, 1}, {.timeout = kCallTime}));
  }
  ASSERT_TRUE(result.ok()) << CodeName(result.code);
  // The owner copies nothing itself: without populating it would have mapped nothing.
  EXPECT_GE(PayloadBytes(owner_, "Rss"), before + 8 * kMiB);
  EXPECT_LE(PayloadBytes(owner_, "Rss"), before + 10 * kMiB) << "and no more than that";
}

// The owner's memory counts against the owner's limit alone: an engine in a small group would be
// killed for what it only reads and writes.
TEST_F(MemoryFaultTest, AnEnginesGroupIsNotChargedForTheOwnersPages) {
  const ControlGroup& group = group_.emplace();
  if (!group.made()) GTEST_SKIP() << "this host lets nobody here make a control group";
  StartOwner({"--no-populate"});
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  engine_ = fork();
  if (engine_ == 0) {
    auto pool = group.Join() ? Pool::Open(Address() + "?warm=all", kCallTime)
                             : Fail(Code::kUnavailable, "joining the group");
    const char answer = pool && PutsAndGets(**pool) ? 'y' : 'n';
    (void)!write(ends[1], &answer, 1);
    while (true) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ends[0], &answer, 1), 1);
  close(ends[0]);
  close(ends[1]);
  ASSERT_EQ(answer, 'y');
  EXPECT_GE(PayloadBytes(engine_, "Rss"), 24 * kMiB) << "it has mapped them";
  const std::uint64_t charged = group.SharedBytes();
  EXPECT_GT(charged, 0U) << "its staging";
  EXPECT_LE(charged, 2 * kMiB) << "and its page of counters";
  End(engine_);
}

// H5: the limit has room for one owner. An engine that runs lets go of the killed one's memory, and
// the kernel is still freeing that, with nobody who maps it, while the next one starts.
TEST_F(MemoryFaultTest, AKilledOwnerStartsAgainInItsControlGroup) {
  const ControlGroup& group = group_.emplace();
  if (!group.made()) GTEST_SKIP() << "this host lets nobody here make a control group";
  constexpr std::uint64_t kMemory = 384 * kMiB;
  ASSERT_TRUE(group.Limit(kMemory / 10 * 17));
  owner_group_ = &group;
  memory_ = FormatSize(kMemory);
  for (int round = 0; round < 4; ++round) {
    StartOwner({"--no-populate"});
    if (HasFatalFailure()) break;
    ASSERT_TRUE(Fills(kMemory));
    if (engine_ == 0) StartEngine();
    ASSERT_TRUE(Becomes([&] { return PayloadBytes(engine_, "Size") == kMemory; }));
    EXPECT_GE(group.SharedBytes(), kMemory / 10 * 9) << "so two do not fit";
    End(owner_);
  }
  EXPECT_TRUE(Becomes([&] { return group.SharedBytes() < kMiB; }));
}

// Pages are being mapped while their owner dies: the engine goes on, and so does one that ends.
TEST_F(MemoryFaultTest, AnOwnersEndAndAnEnginesEndWhilePagesAreMappedHarmNobody) {
  for (int round = 0; round < 5; ++round) {
    StartOwner();
    StartEngine();
    if (round % 2 == 0) {
      const auto pool = Pool::Open(Address() + "?warm=all", kCallTime);
      ASSERT_TRUE(pool);
      End(owner_);
    }
    EXPECT_EQ(waitpid(engine_, nullptr, WNOHANG), 0) << "it runs";
    End(owner_);
    EXPECT_TRUE(Becomes([&] { return PayloadBytes(engine_, "Size") == 0; }));
    End(engine_);
  }
}

TEST_F(MemoryFaultTest, TheLogSaysWhichPagesThereAreAndWhatTheyCost) {
  StartOwner();
  EXPECT_TRUE(Becomes([&] { return Log().find("page tables of") != std::string::npos; })) << Log();
  EXPECT_NE(Log().find("(huge pages are off)"), std::string::npos) << Log();
}

}  // namespace
}  // namespace kvcove
