// SPDX-License-Identifier: Apache-2.0
// How many threads this process can still start: the least that its user (ulimit -u) and each of
// its control groups (pids.max) allow.
#pragma once

#include <cstdint>
#include <string>

namespace kvcove {

struct ThreadRoom {
  std::uint64_t threads = ~0ULL;
  // What sets it, for messages: "control group '/a/b' (pids.max 64, 60 in use)" or "user 1000
  // (ulimit -u 100, 98 in use)". Empty: nothing does.
  std::string limit;
};

// `root`: as ControlGroups has it. Looks at every process of this host where the user has a limit.
ThreadRoom AvailableThreads(const std::string& root = "");

// Why the kernel has just refused a thread, as far as can be seen.
std::string WhyNoThread();

}  // namespace kvcove
