// SPDX-License-Identifier: Apache-2.0
// How much memory this process can still get: the least that the host and each of its control
// groups allow, its own and all above it, of version 1 and 2.
#pragma once

#include <cstdint>
#include <string>

namespace kvcove {

struct MemoryRoom {
  std::uint64_t bytes = ~0ULL;
  // What sets it, for messages: "this host (MemAvailable 5GiB)" or "control group '/a/b'
  // (memory.max 2GiB, 1.5GiB in use)".
  std::string limit;
  // The least of what all of them would give if nothing were in use.
  std::uint64_t most_bytes = ~0ULL;
  // `limit` is a memory.high: beyond it the kernel does not kill, but slows every thread that needs
  // memory, one that renews a lease as well.
  bool throttles = false;
};

// `root` stands before /proc and the mount points, in tests. A file that cannot be read sets no
// limit.
MemoryRoom AvailableMemory(const std::string& root = "");

}  // namespace kvcove
