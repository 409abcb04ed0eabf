// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/memory.h"

#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "kvcove/base/control_group.h"
#include "kvcove/base/size.h"
#include "kvcove/base/text.h"

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

void Lower(MemoryRoom& room, std::uint64_t bytes, std::string limit) {
  if (bytes >= room.bytes) return;
  room = {.bytes = bytes, .limit = std::move(limit)};
}

void LowerByGroup(MemoryRoom& room, const ControlGroup& group) {
  const Version& version = group.version2 ? kVersion2 : kVersion1;
  const std::uint64_t limit = group.Number(version.limit, ~0ULL);
  if (limit >= kNoLimit) return;
  const std::uint64_t usage = group.Number(version.usage, 0);
  const std::uint64_t cache = group.Named("memory.stat", version.cache);
  const std::uint64_t used = usage > cache ? usage - cache : 0;
  Lower(room, limit > used ? limit - used : 0,
        fmt::format("control group '{}' ({} {}, {} in use)", group.name, version.limit,
                    FormatSize(limit), FormatSize(used)));
}

}  // namespace

MemoryRoom AvailableMemory(const std::string& root) {
  MemoryRoom room;
  std::ifstream meminfo(root + "/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (!line.starts_with(kName)) continue;
    const std::uint64_t bytes = LeadingNumber(std::string_view(line).substr(kName.size())) * kKiB;
    Lower(room, bytes, fmt::format("this host (MemAvailable {})", FormatSize(bytes)));
  }
  for (const ControlGroup& group : ControlGroups("memory", root)) LowerByGroup(room, group);
  return room;
}

}  // namespace kvcove
