// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/control_group.h"

#include <fmt/core.h>

#include <fstream>

#include "kvcove/base/mounts.h"

namespace kvcove {
namespace {

bool Names(const std::string& list, std::string_view controller) {
  return ("," + list + ",").find(fmt::format(",{},", controller)) != std::string::npos;
}

// Whether the hierarchy has the controller: "cgroup2", or "cgroup" with its name among the options.
bool IsHierarchy(const Mount& mount, bool version2, std::string_view controller) {
  if (version2) return mount.type == "cgroup2";
  return mount.type == "cgroup" && Names(mount.options, controller);
}

// `group` and all above it that are mounted.
void AddHierarchy(std::vector<ControlGroup>& groups, const std::string& root,
                  const std::string& group, const Mount& mount, bool version2) {
  // In a container, the mount may show this process's group (or one above it) as its top.
  std::string below = group;
  if (mount.root != "/") {
    const bool inside = group.starts_with(mount.root) &&
                        (group.size() == mount.root.size() || group[mount.root.size()] == '/');
    below = inside ? group.substr(mount.root.size()) : "";
  }
  while (!below.empty() && below.back() == '/') below.pop_back();
  while (true) {
    groups.push_back({.name = below.empty() ? mount.root : below,
                      .directory = fmt::format("{}{}{}", root, mount.point, below),
                      .version2 = version2});
    if (below.empty()) return;
    below.resize(below.rfind('/'));
  }
}

}  // namespace

std::uint64_t ControlGroup::Number(std::string_view file, std::uint64_t otherwise) const {
  std::ifstream stream(fmt::format("{}/{}", directory, file));
  std::uint64_t value = 0;
  return stream >> value ? value : otherwise;
}

std::uint64_t ControlGroup::Named(std::string_view file, std::string_view name) const {
  std::ifstream stream(fmt::format("{}/{}", directory, file));
  std::string key;
  for (std::uint64_t value = 0; stream >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

std::vector<ControlGroup> ControlGroups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> found;
  const std::vector<Mount> mounts = Mounts(root);
  // "4:memory:/a/b" is of version 1, "0::/a/b" of version 2.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && !Names(controllers, controller)) continue;
    const std::string group = line.substr(second + 1);
    if (group.empty() || group[0] != '/') continue;
    for (const Mount& mount : mounts) {
      if (IsHierarchy(mount, version2, controller)) {
        AddHierarchy(found, root, group, mount, version2);
      }
    }
  }
  return found;
}

}  // namespace kvcove
