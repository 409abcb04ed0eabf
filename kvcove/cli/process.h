// SPDX-License-Identifier: Apache-2.0
// A process that this one starts and ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::cli {

struct ProcessOptions {
  std::vector<std::string> words = {};  // the first one is looked for in $PATH
  std::vector<std::pair<std::string, std::string>> environment = {};  // beside this process's own
  int output = -1;           // takes what it prints; -1: this process's
  int passed = -1;           // a descriptor that it gets as kPassedFd; -1: none
  bool own_session = false;  // what the terminal sends does not reach it
  int end_signal = 0;        // that it gets when this process ends before it; 0: none
};

// A descriptor that is passed on is this one there.
inline constexpr int kPassedFd = 3;

// One that still runs is left alone by the destructor. Belongs to one thread, which must outlive it
// where it has an end signal.
class Process {
 public:
  // Signals have their defaults in it, and none is blocked. Errors: kInvalid when there is no such
  // program, kDenied when it cannot be run.
  static Result<Process> Start(const ProcessOptions& options);
  Process(Process&& other) noexcept : pid_(std::exchange(other.pid_, 0)), status_(other.status_) {}
  Process& operator=(Process&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
    return *this;
  }

  pid_t pid() const { return pid_; }
  // As a shell has it: what it returned, or 128 and the signal that ended it. Nothing while it
  // runs.
  std::optional<int> Status();
  std::optional<int> WaitFor(std::chrono::milliseconds duration);
  void Signal(int number);
  // Sends `number`, and SIGKILL if it still runs then. What Status says at last.
  int End(std::chrono::milliseconds patience, int number = SIGTERM);

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_;
  std::optional<int> status_;
};

}  // namespace kvcove::cli
