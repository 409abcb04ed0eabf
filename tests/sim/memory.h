// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace kvcove::sim {

struct Unmapper {
  std::size_t size = 0;
  void operator()(std::byte* data) const { munmap(data, size); }
};
using Memory = std::unique_ptr<std::byte, Unmapper>;

// Mapped rather than allocated: simulated owners come and go by the thousand and touch little of
// their half megabyte, and the kernel clears only what is touched.
inline Memory Zeroed(std::size_t size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return Memory(static_cast<std::byte*>(data), {.size = size});
}

}  // namespace kvcove::sim
