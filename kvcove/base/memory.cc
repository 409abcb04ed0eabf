// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/memory.h"

#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "kvcove/base/size.h"

namespace kvcove {
namespace {

// A version's names. What it calls no limit is larger than any memory.
struct Version {
  const char* limit;
  const char* usage;
  const char* cache;  // of memory.stat: file pages that the kernel takes back when asked
};
constexpr Version kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr Version kVersion2 = {"memory.max", "memory.current", "inactive_file"};
constexpr std::uint64_t kNoLimit = 1ULL << 60;

std::uint64_t NumberIn(const std::string& path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : otherwise;  // "max" is none
}

std::uint64_t NamedNumberIn(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

void Lower(MemoryRoom& room, std::uint64_t bytes, std::string limit) {
  if (bytes >= room.bytes) return;
  room = {.bytes = bytes, .limit = std::move(limit)};
}

void LowerByGroup(MemoryRoom& room, const std::string& directory, const std::string& group,
                  const Version& version) {
  const std::uint64_t limit = NumberIn(directory + "/" + version.limit, ~0ULL);
  if (limit >= kNoLimit) return;
  const std::uint64_t usage = NumberIn(directory + "/" + version.usage, 0);
  const std::uint64_t cache = NamedNumberIn(directory + "/memory.stat", version.cache);
  const std::uint64_t used = usage > cache ? usage - cache : 0;
  Lower(room, limit > used ? limit - used : 0,
        fmt::format("control group '{}' ({} {}, {} in use)", group, version.limit,
                    FormatSize(limit), FormatSize(used)));
}

struct Mount {
  std::string root;  // the group that is seen at `point`
  std::string point;
};

// Of the hierarchy with the memory controller: "cgroup2", or "cgroup" with the option "memory".
std::vector<Mount> Mounts(const std::string& root, bool version2) {
  std::vector<Mount> mounts;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // 36 35 98:0 ROOT POINT options - TYPE source super-options
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream behind(line.substr(dash + 3));
    std::string skipped;
    std::string type;
    std::string options;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    behind >> type >> skipped >> options;
    const bool memory = ("," + options + ",").find(",memory,") != std::string::npos;
    if (version2 ? type == "cgroup2" : type == "cgroup" && memory) {
      mounts.push_back(std::move(mount));
    }
  }
  return mounts;
}

// `group` and all above it that are mounted.
void LowerByHierarchy(MemoryRoom& room, const std::string& root, std::string group,
                      const Mount& mount, const Version& version) {
  // In a container, the mount may show this process's group (or one above it) as its top.
  std::string below = group;
  if (mount.root != "/") {
    const bool inside = group.starts_with(mount.root) &&
                        (group.size() == mount.root.size() || group[mount.root.size()] == '/');
    below = inside ? group.substr(mount.root.size()) : "";
  }
  while (!below.empty() && below.back() == '/') below.pop_back();
  while (true) {
    LowerByGroup(room, fmt::format("{}{}{}", root, mount.point, below),
                 below.empty() ? mount.root : below, version);
    if (below.empty()) return;
    below.resize(below.rfind('/'));
  }
}

}  // namespace

MemoryRoom AvailableMemory(const std::string& root) {
  MemoryRoom room;
  std::ifstream meminfo(root + "/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (!line.starts_with(kName)) continue;
    const std::uint64_t bytes = std::strtoull(line.c_str() + kName.size(), nullptr, 10) * kKiB;
    Lower(room, bytes, fmt::format("this host (MemAvailable {})", FormatSize(bytes)));
  }
  // "4:memory:/a/b" is of version 1, "0::/a/b" of version 2.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find(",memory,") == std::string::npos) continue;
    const std::string group = line.substr(second + 1);
    if (group.empty() || group[0] != '/') continue;
    for (const Mount& mount : Mounts(root, version2)) {
      LowerByHierarchy(room, root, group, mount, version2 ? kVersion2 : kVersion1);
    }
  }
  return room;
}

}  // namespace kvcove
