// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/host_owner.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "kvcove/base/log.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::cli {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kAskNs = 100 * kMillisecond;
// The last question decides whether the owner is ended, so a busy one has time to answer it.
constexpr std::int64_t kLastAskNs = 3 * kSecond;
constexpr milliseconds kEndPatience{10'000};
constexpr std::size_t kLogEndLines = 20;

// Returns false if another process has the lock. Errors: kInvalid, this file cannot be locked.
Result<bool> Lock(int fd, const std::string& log) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return FailErrno(Code::kInvalid,
                   fmt::format("locking the owner's log '{}', which keeps two from starting an "
                               "owner at once; name a file of a local file system with --owner-log",
                               log));
}

}  // namespace

Status HostOwner::Look() {
  if (process_) {
    if (const std::optional<int> status = process_->Status()) KVCOVE_TRY(AfterEnd(*status));
  }
  if (client_ && Ask(kAskNs)) return {};
  ready_ = false;
  auto connected = rpc::Client::Connect(options_.socket, clock_.NowNs() + kAskNs);
  if (connected) {
    client_ = std::move(*connected);
    asked_ = false;
    if (!process_) {
      const UniqueFd log(open(options_.log.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      // No `kvcove run` has started an owner with a log that cannot be locked.
      others_ = !log.valid() || Lock(log.get(), options_.log).value_or(true);
    }
    (void)Ask(kAskNs);
    return {};
  }
  if (connected.error().code == Code::kTimeout) return {};
  if (connected.error().code != Code::kUnavailable) return std::unexpected(connected.error());
  if (process_ || given_up_) return {};
  return TryStart();
}

Status HostOwner::Ask(std::int64_t wait_ns) {
  Result<std::string> reply = client_->Call(wire::Method::kAttend, {}, clock_.NowNs() + wait_ns);
  Result<wire::Attendance> attendance =
      reply ? wire::DecodeAttendance(std::as_bytes(std::span(*reply)))
            : Result<wire::Attendance>(std::unexpected(reply.error()));
  if (!attendance) {
    client_.reset();
    const bool silent = attendance.error().code == Code::kTimeout;
    // An owner that is busy is attended until the next connection does: without one it would end.
    if (!silent) attending_.Reset();
    if (silent && !std::exchange(silent_, true)) {
      LogWarn("the owner at {} does not answer; it may be frozen or busy", options_.socket);
    }
    return std::unexpected(attendance.error());
  }
  seen_ = *attendance;
  if (!std::exchange(asked_, true)) {
    if (attending_.valid()) --seen_.attendants;
    attending_ = UniqueFd(fcntl(client_->fd(), F_DUPFD_CLOEXEC, 0));
  }
  if (std::exchange(silent_, false)) LogInfo("the owner at {} answers again", options_.socket);
  const bool had_lease = std::exchange(ready_, seen_.lease_left_ns > 0);
  if (was_ready_ && had_lease != ready_) {
    ready_ ? LogInfo("the owner is ready again")
           : LogWarn("the owner has no lease: its memory is not read until the master answers");
  }
  was_ready_ = was_ready_ || ready_;
  return {};
}

Status HostOwner::TryStart() {
  if (others_ && was_ready_) {
    given_up_ = true;
    LogWarn(
        "the owner at {} is gone; this command did not start it, so it does not start another: "
        "until it is back there are only misses",
        options_.socket);
    return {};
  }
  if (starts_ > options_.restarts) {
    given_up_ = true;
    LogError(
        "the owner has ended {} times: it is not started again, there are only misses; its "
        "log is {}",
        starts_, options_.log);
    return {};
  }
  KVCOVE_TRY(rpc::PrepareSocketDirectory(options_.socket, {}));
  const UniqueFd log(
      open(options_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log.valid()) {
    return FailErrno(Code::kInvalid, fmt::format("opening the owner's log '{}'", options_.log));
  }
  KVCOVE_ASSIGN(const bool locked, Lock(log.get(), options_.log));
  if (!locked) return {};  // somebody else is starting it
  if (starts_ == 0 && ftruncate(log.get(), 0) != 0) {
    return FailErrno(Code::kInternal, fmt::format("emptying the log '{}'", options_.log));
  }
  KVCOVE_ASSIGN(
      process_,
      Process::Start(
          {.words = options_.words, .environment = {}, .output = log.get(), .own_session = true}));
  others_ = false;
  ++starts_;
  LogInfo("started the owner (process {}, log {})", process_->pid(), options_.log);
  return {};
}

Status HostOwner::AfterEnd(int status) {
  process_.reset();
  client_.reset();
  attending_.Reset();
  ready_ = false;
  if (rpc::Client::Connect(options_.socket, clock_.NowNs() + kAskNs)) {
    if (!was_ready_) return {};  // another was faster to take the socket
  } else {                       // one that was killed leaves its socket
    const UniqueFd lock(open(options_.log.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (lock.valid() && Lock(lock.get(), options_.log).value_or(false)) {
      unlink(options_.socket.c_str());
    }
  }
  const std::string how = status > 128 ? fmt::format("by signal {}", status - 128)
                                       : fmt::format("with status {}", status);
  const std::string log = LogEnd();
  if (!was_ready_) {
    return Fail(Code::kUnavailable,
                fmt::format("the owner ended {} before it was ready; {}", how, log));
  }
  LogError("the owner ended {}; what it held is lost; {}", how, log);
  return {};
}

std::string HostOwner::LogEnd() const {
  if (others_) return {};  // it may log elsewhere
  std::ifstream file(options_.log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back("\n  " + line);
    if (lines.size() > kLogEndLines) lines.erase(lines.begin());
  }
  std::string text = fmt::format("the end of its log ({}):", options_.log);
  for (const std::string& line : lines) text.append(line);
  return text;
}

std::string HostOwner::Waiting() const {
  if (!client_ && silent_) return "the owner to answer";
  if (!client_) return "the owner to listen at " + options_.socket;
  return "the owner's lease: does the master answer?";
}

void HostOwner::Leave() {
  bool attended = false;
  if (process_ && !options_.shared) {
    if (!client_ && attending_.valid()) {
      auto connected = rpc::Client::Connect(options_.socket, clock_.NowNs() + kLastAskNs);
      if (connected) client_ = std::move(*connected);
      asked_ = false;
    }
    attended = client_ && Ask(kLastAskNs) && seen_.attendants > 1;
  }
  client_.reset();
  attending_.Reset();
  if (!process_ || options_.shared) return;
  if (attended) {
    LogInfo("the owner (process {}) goes on for another 'kvcove run'", process_->pid());
  } else if (const int status = process_->End(kEndPatience); status != 0) {
    LogWarn("the owner ended with status {}; its log is {}", status, options_.log);
  }
  process_.reset();
}

}  // namespace kvcove::cli
