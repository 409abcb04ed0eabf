// SPDX-License-Identifier: Apache-2.0
// Counts what a test's whole process allocates, in `allocations`. It defines `operator new`, so one
// source of a program includes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "kvcove/base/thread_sanitizer.h"

inline std::atomic<std::uint64_t> allocations{0};

// The thread sanitizer has its own `operator new`, and no second one can be linked beside it.
#if !KVCOVE_THREAD_SANITIZER
void* operator new(std::size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
#endif
