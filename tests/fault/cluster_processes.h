// SPDX-License-Identifier: Apache-2.0
// A master and owners as processes, for tests that kill, freeze and watch them.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/pool/pool.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/wire/master_stub.h"
#include "tests/becomes.h"
#include "tests/call_time.h"
#include "tests/lasting_address.h"
#include "tests/must.h"
#include "tests/slowness.h"

extern char** environ;

namespace kvcove {

using std::chrono::milliseconds;

class ClusterProcesses {
 public:
  ClusterProcesses() {
    std::string name = "/tmp/kvcove-faults-XXXXXX";
    directory_ = mkdtemp(name.data());
    master_address_ = LastingAddress();
  }
  ~ClusterProcesses() {
    owners_.push_back(master_);
    for (const pid_t pid : owners_) {
      if (pid == 0) continue;
      kill(pid, SIGCONT);
      End(pid, SIGKILL);
    }
    std::filesystem::remove_all(directory_);
  }
  ClusterProcesses(const ClusterProcesses&) = delete;
  ClusterProcesses& operator=(const ClusterProcesses&) = delete;

  // `launcher` stands before the command, such as a shell that sets limits. Its log lines go to
  // this process's stderr, to `log_file`, or to `stderr_fd`.
  struct LaunchOptions {
    std::vector<std::string> launcher;
    std::string log_file;
    std::optional<int> stderr_fd;
    std::vector<std::string> more;  // arguments
  };
  static pid_t Spawn(const std::vector<std::string>& arguments, const std::string& host,
                     const LaunchOptions& options = {}) {
    const char* log = std::getenv("KVCOVE_TEST_LOG");
    std::vector<std::string> texts = options.launcher;
    texts.insert(texts.end(), {KVCOVE_COMMAND, "--log",
                               options.stderr_fd || !options.log_file.empty() ? "info"
                               : log == nullptr                               ? "off"
                                                                              : log});
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    texts.insert(texts.end(), options.more.begin(), options.more.end());
    std::vector<char*> argv;
    for (std::string& text : texts) argv.push_back(text.data());
    argv.push_back(nullptr);
    std::string variable = "KVCOVE_HOST_ID=" + host;
    std::vector<char*> environment = {variable.data()};
    for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (!options.log_file.empty()) {
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, options.log_file.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    }
    if (options.stderr_fd) {
      posix_spawn_file_actions_adddup2(&actions, *options.stderr_fd, STDERR_FILENO);
    }
    pid_t pid = 0;
    EXPECT_EQ(posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environment.data()), 0);
    posix_spawn_file_actions_destroy(&actions);
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

  void StartMaster(const std::string& admin = "off", const LaunchOptions& options = {}) {
    master_ = Spawn(MasterWords(admin), "master", options);
    ASSERT_TRUE(Becomes([&] {
      return rpc::ConnectTcp(master_address_, SystemClock::Instance().NowNs() + kSecond)
          .has_value();
    })) << "the master did not start";
  }
  std::vector<std::string> MasterWords(const std::string& admin) const {
    std::vector<std::string> words = {
        "master",  "--listen", master_address_.ToString(), "--data", directory_ + "/master",
        "--admin", admin};
    words.insert(words.end(), server_words_.begin(), server_words_.end());
    return words;
  }
  std::string SocketOf(std::size_t i) const {
    return fmt::format("{}/owner{}/kvcove.sock", directory_, i);
  }
  // The first that has no process; `live`: how many there are then.
  void StartOwner(std::size_t i, std::size_t live) {
    if (owners_.size() <= i) owners_.resize(i + 1);
    std::vector<std::string> words = {"owner",         "--master",    master_address_.ToString(),
                                      "--listen",      "127.0.0.1:0", "--admin",
                                      "off",           "--memory",    owner_memory_,
                                      "--no-populate", "--socket",    SocketOf(i)};
    words.insert(words.end(), server_words_.begin(), server_words_.end());
    owners_[i] = Spawn(words, fmt::format("host{}", i));
    WaitLive(live);
  }
  // One of several on a host, which share a socket directory.
  std::string SocketOn(const std::string& host, std::size_t i) const {
    return fmt::format("{}/{}/kvcove.{}.sock", directory_, host, i);
  }
  void StartOwnerOn(const std::string& host, std::size_t i, std::size_t live) {
    if (owners_.size() <= i) owners_.resize(i + 1);
    owners_[i] = Spawn({"owner", "--master", master_address_.ToString(), "--listen", "127.0.0.1:0",
                        "--admin", "off", "--memory", "16MiB", "--socket", SocketOn(host, i)},
                       host);
    WaitLive(live);
    // An owner is live at the master before its socket listens, and a dead one's socket is there.
    const std::string address = "unix:" + SocketOn(host, i);
    ASSERT_TRUE(Becomes([&] { return Pool::Open(address, milliseconds(5000)).has_value(); }))
        << address << " does not answer";
  }
  std::size_t Live() const {
    rpc::TcpChannel channel(master_address_, access_);
    const auto owners =
        wire::MasterStub(channel).Owners(SystemClock::Instance().NowNs() + 5 * kSecond);
    return owners ? static_cast<std::size_t>(
                        std::ranges::count_if(owners->owners, &wire::OwnerStat::live))
                  : 0;
  }
  void WaitLive(std::size_t count) const {
    std::size_t live = 0;
    ASSERT_TRUE(Becomes([&] { return (live = Live()) == count; }))
        << live << " owners are live, not " << count;
  }
  std::unique_ptr<Pool> Open(const std::string& host = "elsewhere") const {
    return Must(Pool::Open(
        fmt::format("kvcove://{}?host={}{}", master_address_.ToString(), host, query_), kCallTime));
  }

  const std::string& directory() const { return directory_; }
  const rpc::Address& master_address() const { return master_address_; }
  // Of processes that are killed: the caller takes the number out.
  pid_t& master() { return master_; }
  pid_t& owner(std::size_t i) { return owners_[i]; }
  const std::vector<pid_t>& owners() const { return owners_; }

 private:
  std::string directory_;
  rpc::Address master_address_;
  pid_t master_ = 0;

 protected:
  std::vector<pid_t> owners_;
  std::string owner_memory_ = "256MiB";
  // Of master and owners beside the others: credentials. The same for this process, and for pools.
  std::vector<std::string> server_words_;
  rpc::Access access_;
  std::string query_;
};

}  // namespace kvcove
