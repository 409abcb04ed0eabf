// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace kvcove {

bool IsUtf8(std::string_view text) {
  // By the length of a sequence: the smallest code point that needs it.
  constexpr std::array<std::uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t length = first < 0x80              ? 1
                               : (first & 0xe0U) == 0xc0 ? 2
                               : (first & 0xf0U) == 0xe0 ? 3
                               : (first & 0xf8U) == 0xf0 ? 4
                                                         : 0;
    if (length == 0 || length > text.size() - i) return false;
    std::uint32_t point = length == 1 ? first : first & (0x7fU >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0U) != 0x80) return false;
      point = point << 6U | (next & 0x3fU);
    }
    if (point < kLeast[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
      return false;
    }
    i += length;
  }
  return true;
}

std::string Printable(std::string_view text) {
  std::string quoted = fmt::format("{:?}", text);
  // Quotes and backslashes alone show what they are.
  std::string plain;
  for (const char c : text) {
    if (c == '"' || c == '\\') plain += '\\';
    plain += c;
  }
  if (quoted.size() == plain.size() + 2) return std::string(text);
  return quoted;
}

std::string WithoutPasswords(std::string_view text) {
  std::string shown;
  while (true) {
    const std::size_t slashes = text.find("//");
    if (slashes == text.npos) return shown.append(text);
    const std::size_t begin = slashes + 2;
    shown.append(text.substr(0, begin));
    text.remove_prefix(begin);
    // A comma, too, may be part of a password: another address begins behind one with its scheme.
    std::size_t end = std::min(text.find('"'), text.size());
    for (std::size_t comma = text.find(','); comma < end; comma = text.find(',', comma + 1)) {
      const std::size_t scheme = std::min(text.find("://", comma), text.size());
      const auto letters = text.substr(comma + 1, scheme - comma - 1);
      if (scheme < end && std::ranges::all_of(
                              letters,
                              [](char c) {
                                return IsDigit(c) || (ToLower(c) >= 'a' && ToLower(c) <= 'z') ||
                                       c == '+';
                              })) {
        end = comma;
      }
    }
    const std::size_t sign = text.substr(0, end).rfind('@');
    if (sign == text.npos) continue;
    shown += "***";
    text.remove_prefix(sign);
  }
}

}  // namespace kvcove
