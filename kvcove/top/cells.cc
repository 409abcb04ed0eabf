// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/cells.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kvcove/base/size.h"

namespace kvcove::top {
namespace {

struct Range {
  std::uint32_t from;
  std::uint32_t to;
};
// Characters of East Asian scripts and pictographs that take two cells, and marks that take none.
constexpr auto kWide = std::to_array<Range>({{0x1100, 0x115F},
                                             {0x2E80, 0x303E},
                                             {0x3041, 0xA4CF},
                                             {0xAC00, 0xD7A3},
                                             {0xF900, 0xFAFF},
                                             {0xFE30, 0xFE6F},
                                             {0xFF00, 0xFF60},
                                             {0xFFE0, 0xFFE6},
                                             {0x1F300, 0x1FAFF},
                                             {0x20000, 0x3FFFD}});
constexpr auto kMarks = std::to_array<Range>(
    {{0x0300, 0x036F}, {0x1AB0, 0x1AFF}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}});

bool IsIn(std::uint32_t letter, const auto& ranges) {
  return std::ranges::any_of(
      ranges, [&](const Range& range) { return letter >= range.from && letter <= range.to; });
}

// Takes one character off the text and returns its cells; `bytes` is its length. A byte that
// begins no character counts as one of its own.
std::size_t CellsOfFirst(std::string_view text, std::size_t& bytes) {
  const auto first = static_cast<unsigned char>(text.front());
  bytes = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (bytes == 1 || bytes > text.size()) {
    bytes = 1;
    return 1;
  }
  std::uint32_t letter = first & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    letter = letter << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  }
  if (IsIn(letter, kMarks)) return 0;
  return IsIn(letter, kWide) ? 2 : 1;
}

// One decimal below 100, so that a figure has four characters at most.
std::string Short(double value) {
  return value < 99.95 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

std::size_t Cells(std::string_view text) {
  std::size_t cells = 0;
  std::size_t bytes = 0;
  for (; !text.empty(); text.remove_prefix(bytes)) cells += CellsOfFirst(text, bytes);
  return cells;
}

std::string Fit(std::string_view text, std::size_t cells, bool right) {
  const std::size_t needed = Cells(text);
  if (needed <= cells) {
    const std::string spaces(cells - needed, ' ');
    return right ? spaces + std::string(text) : std::string(text) + spaces;
  }
  if (cells == 0) return {};
  std::string fitting;
  std::size_t used = 0;
  while (!text.empty()) {
    std::size_t bytes = 0;
    const std::size_t more = CellsOfFirst(text, bytes);
    if (used + more > cells - 1) break;
    used += more;
    fitting += text.substr(0, bytes);
    text.remove_prefix(bytes);
  }
  fitting.append(cells - 1 - used, ' ');
  return fitting + '~';
}

std::string CountText(std::optional<double> count) {
  if (!count) return "-";
  if (*count < 9.95) {
    return *count == std::floor(*count) ? fmt::format("{:.0f}", *count)
                                        : fmt::format("{:.1f}", *count);
  }
  constexpr std::string_view kUnits = "kMGT";
  double value = *count;
  if (value < 999.5) return fmt::format("{:.0f}", value);
  std::size_t unit = 0;
  for (value /= 1000; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return Short(value) + kUnits[unit];
}

std::string BytesText(std::optional<double> bytes) {
  if (!bytes) return "-";
  return FormatSize(*bytes > 0 ? static_cast<std::uint64_t>(std::min(*bytes, 0x1p63)) : 0);
}

std::string TimeText(std::optional<double> seconds) {
  if (!seconds) return "-";
  constexpr double kMost = 1e12;  // which no process has lived
  const double value = *seconds > 0 ? std::min(*seconds, kMost) : 0;
  if (value < 1e-6) return fmt::format("{:.0f}ns", value * 1e9);
  if (value < 999.5e-6) return Short(value * 1e6) + "us";
  if (value < 999.5e-3) return Short(value * 1e3) + "ms";
  if (value < 59.95) return Short(value) + "s";
  const auto whole = static_cast<std::uint64_t>(value);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  if (whole < 100 * 3600) return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
  return fmt::format("{}d{:02}h", whole / 86400, whole % 86400 / 3600);
}

std::string PercentText(std::optional<double> ratio) {
  return ratio ? fmt::format("{:.1f} %", *ratio * 100) : "-";
}

}  // namespace kvcove::top
