// SPDX-License-Identifier: Apache-2.0
// etcd itself for tests: processes of their own at ports of loopback that stay theirs, data in
// memory
// (/dev/shm), all gone with the object. scripts/etcd.sh fetches the program.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/master/etcd/etcd_client.h"
#include "tests/lasting_address.h"

extern char** environ;

namespace kvcove {

struct EtcdProcessOptions {
  std::size_t members = 1;
  std::vector<std::string> more;  // arguments of each
  std::string scheme = "http";    // "https": `more` has the certificates
};

class EtcdProcesses {
 public:
  // False: the program is not there, and the test is skipped.
  static bool Available() { return access(KVCOVE_ETCD, X_OK) == 0; }

  explicit EtcdProcesses(EtcdProcessOptions options = {}) : options_(std::move(options)) {
    std::string name = "/dev/shm/kvcove-etcd-XXXXXX";
    directory_ = mkdtemp(name.data());
    for (std::size_t i = 0; i < options_.members; ++i) {
      clients_.push_back(LastingAddress());
      peers_.push_back(LastingAddress());
    }
    pids_.resize(options_.members);
  }
  ~EtcdProcesses() {
    for (std::size_t i = 0; i < pids_.size(); ++i) Stop(i);
    std::filesystem::remove_all(directory_);
  }
  EtcdProcesses(const EtcdProcesses&) = delete;
  EtcdProcesses& operator=(const EtcdProcesses&) = delete;

  void StartAll() {
    for (std::size_t i = 0; i < pids_.size(); ++i) Start(i);
    AwaitReady();
  }
  // A member that was stopped goes on with its data.
  void Start(std::size_t i) {
    std::string all;
    for (std::size_t k = 0; k < peers_.size(); ++k) {
      all += fmt::format("{}m{}=http://{}", k == 0 ? "" : ",", k, peers_[k].ToString());
    }
    const std::string client = fmt::format("{}://{}", options_.scheme, clients_[i].ToString());
    const std::string peer = "http://" + peers_[i].ToString();
    std::vector<std::string> words = {KVCOVE_ETCD,
                                      "--name",
                                      fmt::format("m{}", i),
                                      "--data-dir",
                                      fmt::format("{}/m{}", directory_, i),
                                      "--listen-client-urls",
                                      client,
                                      "--advertise-client-urls",
                                      client,
                                      "--listen-peer-urls",
                                      peer,
                                      "--initial-advertise-peer-urls",
                                      peer,
                                      "--initial-cluster",
                                      all,
                                      "--initial-cluster-token",
                                      directory_,
                                      "--log-level",
                                      "error"};
    words.insert(words.end(), options_.more.begin(), options_.more.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string log = fmt::format("{}/m{}.log", directory_, i);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    ASSERT_EQ(posix_spawn(&pids_[i], argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  void Stop(std::size_t i, int signal = SIGKILL) {
    if (pids_[i] == 0) return;
    kill(pids_[i], SIGCONT);
    kill(pids_[i], signal);
    waitpid(pids_[i], nullptr, 0);
    pids_[i] = 0;
  }
  void Freeze(std::size_t i) { kill(pids_[i], SIGSTOP); }
  void Thaw(std::size_t i) { kill(pids_[i], SIGCONT); }
  // Waits until each member serves. A member that loses its peers before that never serves.
  void AwaitReady() {
    if (options_.scheme == "https") return;
    const std::int64_t until = SystemClock::Instance().NowNs() + 60 * kSecond;
    for (const rpc::Address& member : clients_) {
      master::EtcdOptions etcd;
      etcd.place = {.endpoints = {member}, .prefix = "/"};
      master::EtcdClient client(etcd, SystemClock::Instance());
      while (true) {
        const std::int64_t now = SystemClock::Instance().NowNs();
        if (client.Call("/v3/kv/range", {{"key", "YQ=="}}, now + kSecond)) break;
        ASSERT_LT(now, until) << "etcd does not start";
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  }
  // What a master takes as --store.
  std::string Place(const std::string& prefix = "/kvcove/test") const {
    std::string text = "etcd://";
    for (const rpc::Address& client : clients_) {
      text += (text.ends_with('/') ? "" : ",") + client.ToString();
    }
    return text + prefix;
  }
  const std::vector<rpc::Address>& clients() const { return clients_; }
  const std::string& directory() const { return directory_; }

 private:
  const EtcdProcessOptions options_;
  std::string directory_;
  std::vector<rpc::Address> clients_;
  std::vector<rpc::Address> peers_;
  std::vector<pid_t> pids_;
};

}  // namespace kvcove
