// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/memory.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "kvcove/base/size.h"

namespace kvcove {
namespace {

std::uint64_t ReadNumberFile(const char* path, std::uint64_t otherwise) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : otherwise;
}

}  // namespace

std::uint64_t AvailableMemory() {
  std::uint64_t available = ~0ULL;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (line.starts_with(kName))
      available = std::strtoull(line.c_str() + kName.size(), nullptr, 10) * kKiB;
  }
  // cgroup v2, as containers see it; "max" reads as no number.
  const std::uint64_t limit = ReadNumberFile("/sys/fs/cgroup/memory.max", ~0ULL);
  if (limit != ~0ULL) {
    const std::uint64_t used = ReadNumberFile("/sys/fs/cgroup/memory.current", 0);
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

}  // namespace kvcove
