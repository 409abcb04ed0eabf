// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/toml.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcove::rpc {

Result<toml::table> ParseToml(std::string_view text, const std::string& path) {
  // toml++ 3.3 has undefined behaviour for some letters beyond ASCII.
  const auto odd = std::ranges::find_if(
      text, [](char byte) { return static_cast<unsigned char>(byte) >= 0x80; });
  if (odd != text.end()) {
    return Fail(Code::kInvalid,
                fmt::format("{}:{}: a byte that is not ASCII; keys, values and comments of this "
                            "file are ASCII",
                            path, std::count(text.begin(), odd, '\n') + 1));
  }
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    return Fail(Code::kInvalid,
                fmt::format("{}:{}: {}", path, error.source().begin.line, error.description()));
  }
}

}  // namespace kvcove::rpc
