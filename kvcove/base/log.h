// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr. error: the operator acts; warn: healed; info: life cycle; debug: per object.
// A line is text, or a JSON object for those who collect logs. LogToFile lets stderr end in a file.
// Thread-safe. Never called under a lock (mutex.h): what is decided under one is said by
// LinesAfterLock.
//
// No caller waits for the reader of stderr: the reader may stand still (a pager, a container's log
// driver, a terminal after Ctrl-S), and the caller may be the thread that renews a lease.
// - A pipe, a terminal or a socket that has room takes the line in the caller's thread, so the line
//   is out before the process can crash. A file takes it in the caller's thread, too, unless
//   LeaveLogToItsThread was called.
// - A line that finds no room is queued. The first one starts the thread kvcove-log, which waits
//   for room. Later lines follow it through the queue until the queue is empty, in order.
// - A full queue (1 MiB) drops further lines. A line with their number follows once there is room.
// - At its normal end the process waits 100 ms at most for the queue.
// A forked child starts with an empty queue: its parent writes what was queued.
//
// stderr keeps its flags: other processes share them. A pipe or terminal is opened a second time
// instead (/proc/self/fd/2), for a write that does not wait. Where that is refused (another user's
// terminal, no /proc), every line takes the queue.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void SetLogLevel(LogLevel level);
Result<LogLevel> ParseLogLevel(std::string_view name);

enum class LogFormat {
  kText,  // 2026-11-30T16:27:05.123+01:00 info kvcove[4711] the line
  kJson,  // {"time":..., "level":..., "program":"kvcove", "pid":4711, "message":"the line"}
};
void SetLogFormat(LogFormat format);
Result<LogFormat> ParseLogFormat(std::string_view name);

// Appends stderr, and with it the log, to a file from now on; the file is made with mode 0640.
// Errors: those of open(2); kInvalid for what is no regular file, whose reader might stand still.
Status LogToFile(const std::string& path);
// Opens the file of LogToFile again: something has moved it away. Does nothing before LogToFile.
// Errors: as LogToFile; the log then continues in the file of before.
Status ReopenLogFile();
// From now on the thread kvcove-log alone writes to a file: its file system may hang, and a
// watchdog ends a process in which a loop waits for it. A process that is killed loses lines of the
// queue.
void LeaveLogToItsThread();
void LogLine(LogLevel level, const std::string& line);
// A line as it is, whatever the level: for a program's last words. In JSON they are an error.
void WriteStderr(const std::string& line);

// Waits until every line is written. False: lines are still queued after `patience`.
bool FlushLog(std::chrono::milliseconds patience);
// Lines of this process that nobody will read: the queue was full, or stderr could not be written.
std::uint64_t LogLinesDropped();

// Which of many lines alike are written: the first, then one a period. Thread-safe.
class LogLimit {
 public:
  explicit LogLimit(std::int64_t period_ns = 10'000'000'000) : period_ns_(period_ns) {}
  // How many lines the caller's line stands for, itself included; 0: it is left out.
  std::uint64_t Due(std::int64_t now_ns) {
    held_.fetch_add(1, std::memory_order_relaxed);
    std::int64_t next = next_ns_.load(std::memory_order_relaxed);
    if (now_ns < next || !next_ns_.compare_exchange_strong(next, now_ns + period_ns_)) return 0;
    return held_.exchange(0, std::memory_order_relaxed);
  }

 private:
  const std::int64_t period_ns_;
  std::atomic<std::int64_t> next_ns_{0};
  std::atomic<std::uint64_t> held_{0};
};

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarn(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  LogLine(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

// Lines that code under a lock decides on. Declare it before the lock: it is then destroyed, and
// writes, after the lock is released. Belongs to one thread.
class LinesAfterLock {
 public:
  LinesAfterLock() = default;
  ~LinesAfterLock() {
    for (const auto& [level, line] : lines_) LogLine(level, line);
  }
  LinesAfterLock(const LinesAfterLock&) = delete;
  LinesAfterLock& operator=(const LinesAfterLock&) = delete;

  template <typename... Args>
  void Info(fmt::format_string<Args...> format, Args&&... args) {
    lines_.emplace_back(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Warn(fmt::format_string<Args...> format, Args&&... args) {
    lines_.emplace_back(LogLevel::kWarn, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void Error(fmt::format_string<Args...> format, Args&&... args) {
    lines_.emplace_back(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::vector<std::pair<LogLevel, std::string>> lines_;
};

}  // namespace kvcove
