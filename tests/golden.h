// SPDX-License-Identifier: Apache-2.0
// Golden bytes: what other builds write, read and derive. A change of one is a new version of its
// format, or an error; a new message, or a field that a message of before does not use, changes
// none of them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvcove/base/hash.h"

namespace kvcove {

// By the message's name.
using GoldenBytes = std::map<std::string_view, std::string_view>;

// Returns the bytes in hex; of many, their number and their hash.
inline std::string GoldenText(std::string_view bytes) {
  constexpr std::size_t kMostBytes = 600;
  if (bytes.size() > kMostBytes) {
    return fmt::format("{} bytes, XXH3 {:016x}", bytes.size(), Hash64(bytes, 0));
  }
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

// Expects that each message has its golden bytes, and that there is a message for each of these. A
// failure prints the entry that the message would have.
inline void ExpectGolden(const std::vector<std::pair<std::string_view, std::string>>& messages,
                         const GoldenBytes& golden) {
  for (const auto& [name, bytes] : messages) {
    const auto at = golden.find(name);
    const std::string text = GoldenText(bytes);
    EXPECT_TRUE(at != golden.end() && at->second == text)
        << "{\"" << name << "\", \"" << text << "\"},";
  }
  EXPECT_EQ(messages.size(), golden.size());
}

}  // namespace kvcove
