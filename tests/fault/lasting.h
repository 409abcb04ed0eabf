// SPDX-License-Identifier: Apache-2.0
// What a process has open all the time.
#pragma once

#include <fmt/core.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace kvcove {

inline std::size_t CountIn(const std::string& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory),
                                                std::filesystem::directory_iterator()));
}
inline std::size_t Descriptors(pid_t pid) { return CountIn(fmt::format("/proc/{}/fd", pid)); }
// Of shared memory files: those that an upgrade may leave behind.
inline std::size_t Mappings(pid_t pid) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.contains("memfd:kvcove") ? 1 : 0;
  return count;
}

// What is there all the time: a process that has just begun, or lost a connection, opens some
// descriptors more for a moment.
inline std::size_t Lasting(std::size_t (*count)(pid_t), pid_t pid) {
  std::size_t least = count(pid);
  for (int i = 0; i < 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    least = std::min(least, count(pid));
  }
  return least;
}

}  // namespace kvcove
