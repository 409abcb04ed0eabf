// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/mutex.h"

#include <execinfo.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace kvcove {

void AbortUnderLock(const char* act) {
  // stdio, not LogLine: a log line is one of the acts that end here.
  (void)std::fprintf(stderr, "kvcove: %s under a lock (docs/threads.md):\n", act);
  std::array<void*, 32> frames{};
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  backtrace_symbols_fd(frames.data(), depth, STDERR_FILENO);
  std::abort();
}

}  // namespace kvcove
