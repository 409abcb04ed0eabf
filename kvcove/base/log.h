// SPDX-License-Identifier: Apache-2.0
// Log lines to stderr. error: the operator acts; warn: healed; info: life cycle; debug: per object.
// Thread-safe. Never called under a lock.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "kvcove/base/result.h"

namespace kvcove {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

void SetLogLevel(LogLevel level);
Result<LogLevel> ParseLogLevel(std::string_view name);
void LogLine(LogLevel level, const std::string& line);

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

}  // namespace kvcove
