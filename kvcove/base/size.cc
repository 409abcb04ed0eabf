// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/size.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <optional>

#include "kvcove/base/text.h"

namespace kvcove {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr std::array kUnits = {
    Unit{"", 1},          Unit{"b", 1},           Unit{"k", 1024.0}, Unit{"kib", 1024.0},
    Unit{"m", 1048576.0}, Unit{"mib", 1048576.0}, Unit{"g", 0x1p30}, Unit{"gib", 0x1p30},
    Unit{"t", 0x1p40},    Unit{"tib", 0x1p40},    Unit{"kb", 1e3},   Unit{"mb", 1e6},
    Unit{"gb", 1e9},      Unit{"tb", 1e12},
};

}  // namespace

Result<std::uint64_t> ParseSize(std::string_view text) {
  const auto wrong = [&] {
    return Fail(Code::kInvalid,
                fmt::format("'{}' is not a size; write a number and a unit, such as 4GiB, 512MiB, "
                            "64KiB or 4096",
                            text));
  };
  std::size_t digits = 0;
  while (digits < text.size() && (IsDigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  const std::optional<double> value = NumberOf<double>(text.substr(0, digits));
  if (!value) return wrong();
  std::string unit;
  for (const char c : text.substr(digits)) {
    if (c != ' ') unit += ToLower(c);
  }
  for (const Unit& known : kUnits) {
    if (unit != known.name) continue;
    const double bytes = *value * known.factor;
    if (bytes >= 0x1p62) return wrong();
    return static_cast<std::uint64_t>(std::llround(bytes));
  }
  return wrong();
}

std::string FormatSize(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value)) return fmt::format("{:.0f}{}", value, kNames[unit]);
  return fmt::format("{:.1f}{}", value, kNames[unit]);
}

}  // namespace kvcove
