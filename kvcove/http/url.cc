// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/url.h"

#include <fmt/core.h>

#include <utility>

namespace kvcove::http {
namespace {

// Returns the value of a hex digit; below 0: it is none.
int Digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool IsEscape(std::string_view text, std::size_t at) {
  return text[at] == '%' && at + 2 < text.size() && Digit(text[at + 1]) >= 0 &&
         Digit(text[at + 2]) >= 0;
}

}  // namespace

std::string UrlDecode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (IsEscape(text, i)) {
      out += static_cast<char>(Digit(text[i + 1]) * 16 + Digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

Status CheckEscapes(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || IsEscape(text, i)) continue;
    return Fail(Code::kInvalid, fmt::format("'{}' in the URL is no escape: two hex digits follow a "
                                            "'%', which itself is written '%25'",
                                            text.substr(i, 3)));
  }
  return {};
}

Result<std::map<std::string, std::string>> ParseQuery(std::string_view query) {
  KVCOVE_TRY(CheckEscapes(query));
  std::map<std::string, std::string> values;
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t equals = pair.find('=');
    if (pair.empty()) continue;
    std::string name = UrlDecode(pair.substr(0, equals));
    if (values.contains(name)) {
      return Fail(Code::kInvalid, fmt::format("'{:.64}' is given twice in the query", name));
    }
    values[std::move(name)] =
        equals == std::string_view::npos ? "" : UrlDecode(pair.substr(equals + 1));
  }
  return values;
}

std::string UrlEncode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

}  // namespace kvcove::http
