// SPDX-License-Identifier: Apache-2.0
// What systemd hears of this process over $NOTIFY_SOCKET (sd_notify(3), Type=notify), without
// libsystemd. Without that variable nothing is said. deploy/systemd has the units,
// docs/systemd.md the prose.
//
//   READY=1       calls are served
//   WATCHDOG=1    all loops turn (base/loop_beat.h); only where $WATCHDOG_USEC asks for it
//   MAINPID=N     process N has taken over; the old process says it before it ends
//   STOPPING=1    the process ends, and has a reason to
//
// A take-over: the old process is the service's main process, so its word counts, and it says who
// the new main process is before it ends. systemd reads that before it sees the end. The new
// process must be able to say the same at the next take-over. systemd gives $NOTIFY_SOCKET to
// processes of ExecReload= only with NotifyAccess=all.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove::cli {

// Sends one message. `socket` as $NOTIFY_SOCKET has it: a path, or a name in the abstract namespace
// behind '@'. Waits for a reader with a full queue, but for half a second at most. Errors:
// kInvalid, no such name; kUnavailable, nobody reads it; kTimeout.
Status NotifyAt(const std::string& socket, const std::string& state);

// Another process of this service is its main process from now on.
void NotifySuccessor(std::int32_t pid);

// Returns the time within which the service manager wants to hear from process `self`, in
// microseconds. Nothing: it does not watch this process. `usec`, `pid`: $WATCHDOG_USEC and
// $WATCHDOG_PID, null where they are not set; a `pid` of another process means that this one only
// inherited the variables. Errors: kInvalid, `usec` or `pid` is no number.
Result<std::optional<std::uint64_t>> WatchedWithin(const char* usec, const char* pid, pid_t self);

// How the watchdog looks at the loops, so that it neither misses a hang nor sees one that is none.
struct WatchdogPace {
  std::uint64_t look_usec = 0;  // from one look to the next, a quarter of the time
  std::uint32_t patience = 0;   // of LoopWatch: half of the time, and four turns of a loop at least
};
WatchdogPace PaceOf(std::uint64_t within_usec);

// A server's side of the conversation. Belongs to one thread.
class ServiceManager {
 public:
  ServiceManager() = default;
  // Ends the watchdog. Until then it also covers the end of the server, which may take long.
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Says that calls are served, and starts the watchdog's thread (kvcove-watchdog) where it is
  // asked for. It notifies the manager while all loops turn. When one hangs it logs which, and is
  // silent, so the manager ends this process and starts another.
  void Ready();
  // Says that this process ends.
  void Stopping();

 private:
  void RunWatchdog(WatchdogPace pace);

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread watchdog_;
};

}  // namespace kvcove::cli
