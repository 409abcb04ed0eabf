// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/mounts.h"

#include <fstream>
#include <sstream>
#include <utility>

namespace kvcove {
namespace {

// The kernel writes a blank in a path as \040.
std::string WithoutEscapes(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 3 < text.size() &&
                        text.find_first_not_of("01234567", i + 1) >= i + 4;
    if (escape) {
      const auto digit = [&](std::size_t at) { return text[i + at] - '0'; };
      plain += static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

}  // namespace

std::vector<Mount> Mounts(const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // 36 35 98:0 ROOT POINT options - TYPE source super-options
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream behind(line.substr(dash + 3));
    std::string skipped;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    behind >> mount.type >> skipped >> mount.options;
    mount.root = WithoutEscapes(mount.root);
    mount.point = WithoutEscapes(mount.point);
    mounts.push_back(std::move(mount));
  }
  return mounts;
}

}  // namespace kvcove
