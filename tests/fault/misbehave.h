// SPDX-License-Identifier: Apache-2.0
// A successor's process that ends or hangs in the middle of a take-over, for tests of faults.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "kvcove/base/posix.h"
#include "kvcove/server/upgrade.h"

namespace kvcove {

inline bool Stands(pid_t pid) {
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    // The state follows the name, which may hold anything.
    if (const auto name = stat.rfind(')'); name != std::string::npos && stat[name + 2] != 'T') {
      return false;
    }
  }
  return true;
}

// A thread that wakes up just now may go on until the signal reaches it.
inline void Stop(pid_t pid) {
  kill(pid, SIGSTOP);
  while (!Stands(pid)) std::this_thread::yield();
}

// Returns when the process has ended. On a busy machine its threads need time of a processor for
// that, during which its sockets are open, and a deadline of the successor may pass first.
inline void Kill(pid_t pid) {
  kill(pid, SIGKILL);
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended{.fd = process.get(), .events = POLLIN, .revents = 0};
  while (process.valid() && poll(&ended, 1, -1) < 0) {
  }
}

// At the stage `at` the successor does `what`: "die", "kill" (the process `running`, which it takes
// over), "stop" (that process; it goes on when all its threads stand), "hang", or nothing for any
// other word.
inline server::UpgradeTaker::OnStage Misbehave(server::UpgradeStage at, std::string what,
                                               pid_t running) {
  return [at, what = std::move(what), running](server::UpgradeStage stage) {
    if (stage != at) return;
    if (what == "die") raise(SIGKILL);
    if (what == "kill") Kill(running);
    if (what == "stop") Stop(running);
    while (what == "hang") pause();
  };
}

}  // namespace kvcove
