// SPDX-License-Identifier: Apache-2.0
// Tells a take-over that may be tried again from one that failed (docs/upgrade.md).
#pragma once

#include <sys/wait.h>

#include <csignal>
#include <string_view>

namespace kvcove {

// Returns true if the operator should try again. `status` is the new process's, from waitpid;
// `said` is its log. The old process kills a new one that would not have the memory in time, and
// answers "try again" while it is busy. Any other end is a failure.
inline bool MayTakeOverLater(int status, std::string_view said) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL;
  return WIFEXITED(status) && said.find("try again") != std::string_view::npos;
}

}  // namespace kvcove
