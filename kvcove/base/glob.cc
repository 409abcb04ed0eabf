// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/glob.h"

#include <algorithm>

namespace kvcove {

Status CheckPattern(std::string_view pattern) {
  if (pattern.empty()) {
    return Fail(Code::kInvalid, "the pattern is empty; write a prefix such as 'model/*'");
  }
  if (pattern.size() > 256 || std::count(pattern.begin(), pattern.end(), '*') > 16) {
    return Fail(Code::kInvalid, "the pattern is too long; at most 256 bytes and 16 stars");
  }
  return {};
}

// Greedy matching with one point of return: after a star matched as little as possible, only the
// last star can need more. At most |pattern| x |text| steps, both bounded.
bool GlobMatches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace kvcove
