// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/thread_room.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "kvcove/base/control_group.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"

namespace kvcove {
namespace {

void Lower(ThreadRoom& room, std::uint64_t most, std::uint64_t used, std::string limit) {
  const std::uint64_t left = most > used ? most - used : 0;
  if (left < room.threads) room = {.threads = left, .limit = std::move(limit)};
}

// Threads of all processes of this user, as RLIMIT_NPROC counts them.
std::uint64_t ThreadsOfUser(uid_t user) {
  std::uint64_t threads = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    // "self" and "thread-self" name a process that has its number, too.
    if (!IsDigit(at->path().filename().native().front())) continue;
    struct stat status{};
    const std::string tasks = at->path().string() + "/task";
    if (stat(tasks.c_str(), &status) != 0 || status.st_uid != user || status.st_nlink < 2) continue;
    threads += status.st_nlink - 2;  // beside "." and ".." one directory a thread
  }
  return threads;
}

}  // namespace

ThreadRoom AvailableThreads(const std::string& root) {
  ThreadRoom room;
  for (const ControlGroup& group : ControlGroups("pids", root)) {
    const std::uint64_t most = group.Number("pids.max", ~0ULL);
    if (most == ~0ULL) continue;
    const std::uint64_t used = group.Number("pids.current", 0);
    Lower(room, most, used,
          fmt::format("control group '{}' (pids.max {}, {} in use)", group.name, most, used));
  }
  rlimit limit{};
  // The kernel holds root to no such limit.
  if (getuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::uint64_t used = ThreadsOfUser(getuid());
    Lower(room, limit.rlim_cur, used,
          fmt::format("user {} (ulimit -u {}, {} in use)", getuid(), limit.rlim_cur, used));
  }
  return room;
}

std::string WhyNoThread() {
  const ThreadRoom room = AvailableThreads();
  // Threads that end meanwhile make room again: a little is none.
  if (room.threads < 8) return room.limit + " has no room: raise that limit";
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) {
    return fmt::format(
        "its stack does not fit into the address space (ulimit -v, {}): raise that limit",
        FormatSize(space.rlim_cur));
  }
  return "the kernel has no memory for it, or no number (kernel.threads-max, kernel.pid_max)";
}

}  // namespace kvcove
