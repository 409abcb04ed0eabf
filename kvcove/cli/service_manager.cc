// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/service_manager.h"

#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/loop_beat.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/text.h"

namespace kvcove::cli {
namespace {

// The manager reads quickly, or hangs itself: the process that says MAINPID=N must end soon.
constexpr timeval kManagerPatience{.tv_sec = 0, .tv_usec = 500'000};

Status Notify(const std::string& state) {
  const char* const socket = std::getenv("NOTIFY_SOCKET");
  if (socket == nullptr || *socket == '\0') return {};
  return NotifyAt(socket, state);
}

void NotifyOrWarn(const std::string& state) {
  if (const Status said = Notify(state); !said) {
    LogWarn("the service manager does not get '{}': {}", state, said.error().detail);
  }
}

}  // namespace

Status NotifyAt(const std::string& socket_name, const std::string& state) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const bool known = socket_name.starts_with('/') || socket_name.starts_with('@');
  if (!known || socket_name.size() < 2 || socket_name.size() >= sizeof(address.sun_path)) {
    return Fail(Code::kInvalid,
                fmt::format("$NOTIFY_SOCKET='{}' is neither an absolute path nor '@' and a name, "
                            "of {} bytes at most",
                            socket_name, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, socket_name.data(), socket_name.size());
  if (socket_name.front() == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return FailErrno(Code::kUnavailable, "creating a Unix socket");
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &kManagerPatience, sizeof(kManagerPatience));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_name.size());
  ssize_t sent = -1;
  do {
    sent = sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address), size);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  if (errno == EAGAIN) {
    return Fail(Code::kTimeout, fmt::format("the queue of '{}' is full", socket_name));
  }
  return FailErrno(Code::kUnavailable, fmt::format("sending to '{}'", socket_name));
}

void NotifySuccessor(std::int32_t pid) { NotifyOrWarn(fmt::format("MAINPID={}", pid)); }

Result<std::optional<std::uint64_t>> WatchedWithin(const char* usec, const char* pid, pid_t self) {
  if (usec == nullptr || *usec == '\0') return std::nullopt;
  const auto within = NumberOf<std::uint64_t>(usec);
  if (!within || *within == 0) {
    return Fail(Code::kInvalid,
                fmt::format("$WATCHDOG_USEC='{}' is no number of microseconds", usec));
  }
  if (pid == nullptr || *pid == '\0') return within;
  const auto watched = NumberOf<std::uint32_t>(pid);
  if (!watched) {
    return Fail(Code::kInvalid, fmt::format("$WATCHDOG_PID='{}' is no process's number", pid));
  }
  if (*watched != static_cast<std::uint32_t>(self)) return std::nullopt;
  return within;
}

WatchdogPace PaceOf(std::uint64_t within_usec) {
  constexpr std::uint64_t kLooks = 4;  // within the time
  constexpr std::uint64_t kLeastPatienceUsec =
      4 * std::chrono::microseconds(LoopBeat::kLongestTurn).count();
  const std::uint64_t look_usec = std::max<std::uint64_t>(within_usec / kLooks, 1);
  const std::uint64_t patience = (kLeastPatienceUsec + look_usec - 1) / look_usec;
  return {.look_usec = look_usec,
          .patience = static_cast<std::uint32_t>(std::max(patience, kLooks / 2))};
}

void ServiceManager::Ready() {
  NotifyOrWarn("READY=1");
  const auto within =
      WatchedWithin(std::getenv("WATCHDOG_USEC"), std::getenv("WATCHDOG_PID"), getpid());
  if (!within) LogWarn("the service manager's watchdog: {}", within.error().detail);
  if (!within || !*within) return;
  LeaveLogToItsThread();
  auto thread =
      StartThread("kvcove-watchdog", [this, pace = PaceOf(**within)] { RunWatchdog(pace); });
  if (thread) {
    watchdog_ = std::move(*thread);
  } else {
    LogError("the service manager's watchdog will end this process: {}", thread.error().detail);
  }
}

void ServiceManager::RunWatchdog(WatchdogPace pace) {
  LoopWatch watch(pace.patience);
  std::vector<std::string> before;
  LogLimit unheard;
  const auto period = std::chrono::microseconds(pace.look_usec);
  auto next = std::chrono::steady_clock::now();
  while (true) {
    const std::vector<std::string> hanging = watch.Look();
    if (!hanging.empty() && before.empty()) {
      LogError(
          "these loops do not turn any more: {}. The service manager is not notified until they "
          "do, and ends this process when its watchdog's time is over",
          fmt::join(hanging, ", "));
    } else if (hanging.empty() && !before.empty()) {
      LogWarn("all loops turn again; the service manager is notified again");
    }
    before = hanging;
    if (hanging.empty()) {
      const Status said = Notify("WATCHDOG=1");
      if (!said && unheard.Due(SystemClock::Instance().NowNs()) > 0) {
        LogWarn("the service manager does not get 'WATCHDOG=1': {}", said.error().detail);
      }
    }
    next += period;
    const MutexLock lock(mutex_);
    while (!stopping_) {
      const auto left = next - std::chrono::steady_clock::now();
      if (left <= std::chrono::nanoseconds::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
    if (stopping_) return;
    // After a pause of the machine: no looks in a row that would give no loop the time to turn.
    next = std::max(next, std::chrono::steady_clock::now() - period / 2);
  }
}

void ServiceManager::Stopping() { NotifyOrWarn("STOPPING=1"); }

ServiceManager::~ServiceManager() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  JoinIfStarted(watchdog_);
}

}  // namespace kvcove::cli
