// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <optional>
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

void LowerRoom(MemoryRoom& room, std::uint64_t bytes, std::uint64_t most_bytes, std::string limit,
               bool throttles = false) {
  room.most_bytes = std::min(room.most_bytes, most_bytes);
  if (bytes >= room.bytes) return;
  room.bytes = bytes;
  room.limit = std::move(limit);
  room.throttles = throttles;
}

void LowerByGroup(MemoryRoom& room, const ControlGroup& group) {
  const Version& version = group.version2 ? kVersion2 : kVersion1;
  const std::uint64_t usage = group.Number(version.usage, 0);
  const std::uint64_t cache = group.Named("memory.stat", version.cache);
  const std::uint64_t used = usage > cache ? usage - cache : 0;
  const auto lower = [&](const char* file, const std::string& more, bool throttles) {
    const std::uint64_t limit = group.Number(file, ~0ULL);
    if (limit >= kNoLimit) return;
    LowerRoom(room, limit > used ? limit - used : 0, limit,
              fmt::format("control group '{}' ({} {}, {} in use{})", group.name, file,
                          FormatSize(limit), FormatSize(used), more),
              throttles);
  };
  lower(version.limit, "", false);
  if (!group.version2) return;
  // Beyond memory.high the kernel swaps first, if it may.
  const std::uint64_t swap = group.Number("memory.swap.max", ~0ULL);
  lower("memory.high",
        swap >= kNoLimit ? "" : fmt::format(", memory.swap.max {}", FormatSize(swap)), true);
}

}  // namespace

MemoryRoom AvailableMemory(const std::string& root) {
  MemoryRoom room;
  std::ifstream meminfo(root + "/proc/meminfo");
  std::uint64_t total = ~0ULL;
  for (std::string line; std::getline(meminfo, line);) {
    const auto bytes = [&](std::string_view name) -> std::optional<std::uint64_t> {
      if (!line.starts_with(name)) return std::nullopt;
      return LeadingNumber(std::string_view(line).substr(name.size())) * kKiB;
    };
    if (const auto all = bytes("MemTotal:")) total = *all;
    if (const auto available = bytes("MemAvailable:")) {
      LowerRoom(room, *available, total,
                fmt::format("this host (MemAvailable {})", FormatSize(*available)));
    }
  }
  for (const ControlGroup& group : ControlGroups("memory", root)) LowerByGroup(room, group);
  return room;
}

}  // namespace kvcove
