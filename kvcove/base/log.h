// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr. error: the operator acts; warn: healed; info: life cycle; debug: per object.
// Thread-safe. Never called under a lock (mutex.h): what is decided under one is said by
// LinesAfterLock.
#pragma once

#include <fmt/core.h>

#include <atomic>
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
void LogLine(LogLevel level, const std::string& line);

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
