// SPDX-License-Identifier: Apache-2.0
// What is mounted where, as this process sees it (/proc/self/mountinfo).
#pragma once

#include <string>
#include <vector>

namespace kvcove {

struct Mount {
  std::string root;     // the directory of the file system that is seen at `point`
  std::string point;    // as a path of this process
  std::string type;     // "ext4", "cgroup2"
  std::string options;  // of the file system as a whole, with commas
};

// In the kernel's order: a later mount at the same point hides an earlier one. `root` stands before
// /proc, in tests. Skips lines that it cannot read; returns nothing where there is no /proc.
std::vector<Mount> Mounts(const std::string& root = "");

}  // namespace kvcove
