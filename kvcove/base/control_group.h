// SPDX-License-Identifier: Apache-2.0
// The control groups of this process, of version 1 and 2: whose limits it meets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove {

struct ControlGroup {
  std::string name;       // "/a/b", as /proc/self/cgroup and the mount show it
  std::string directory;  // of its files
  bool version2 = false;

  // The number in one of its files; `otherwise`, where there is none ("max") or no such file.
  std::uint64_t Number(std::string_view file, std::uint64_t otherwise) const;
  // The number behind `name` in a file of lines "name number"; 0 where there is none.
  std::uint64_t Named(std::string_view file, std::string_view name) const;
};

// Its own groups for `controller` ("memory", "pids"), and all above them that are mounted. `root`
// stands before /proc and the mount points, in tests. What cannot be read is left out.
std::vector<ControlGroup> ControlGroups(std::string_view controller, const std::string& root = "");

}  // namespace kvcove
