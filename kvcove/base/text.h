// SPDX-License-Identifier: Apache-2.0
// Letters and numbers of text as ASCII and the C locale have them. The functions of <cctype> and
// strtod(3) obey the locale that the program has set, and a program that carries an engine may set
// any: a decimal comma, or Turkish letters.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcove {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }
constexpr char ToLower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
constexpr char ToUpper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }

// What all of `text` says; nothing where it is no number, or one that T cannot hold.
template <typename T>
std::optional<T> NumberOf(std::string_view text) {
  T value{};
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto [at, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || at != end) return std::nullopt;
  return value;
}

// The decimal number that `text` begins with, behind spaces; 0 where there is none.
inline std::uint64_t LeadingNumber(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  std::uint64_t value = 0;
  const char* const begin = text.data();
  (void)std::from_chars(begin, begin + text.size(), value);
  return value;
}

// "1 owner", "3 owners".
inline std::string Counted(std::uint64_t count, std::string_view one, std::string_view many) {
  return std::to_string(count).append(1, ' ').append(count == 1 ? one : many);
}

// Whether all of `text` is UTF-8 as Unicode defines it: no surrogates, no longer form than needed.
bool IsUtf8(std::string_view text);

// `text` as a terminal may show it. Control characters, characters that are not visible or change
// the direction of writing, and bytes that are no UTF-8 could make it show something else; a text
// with such ones stands in quotes, with escapes: "a\n\xff\u202e". Others stand as they are.
std::string Printable(std::string_view text);

// `text` with *** for each user and password of an address in it: for what stands between "//" and
// the last "@" before the next address of a list, or a quote. kvcove takes them from files only,
// but somebody may write them into an address all the same.
std::string WithoutPasswords(std::string_view text);

}  // namespace kvcove
