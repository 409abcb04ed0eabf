// SPDX-License-Identifier: Apache-2.0
// Values of tests, which follow from a seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "kvcove/base/random.h"

namespace kvcove {

// Made eight at a time: made one by one, they took most of the time of sanitized tests.
inline std::string RandomBytes(std::uint64_t seed, std::size_t size) {
  std::string bytes(size, '\0');
  Random random(seed);
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.Next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size - at));
  }
  return bytes;
}

inline std::string RandomBytes(std::string_view seed, std::size_t size) {
  return RandomBytes(std::hash<std::string_view>()(seed), size);
}

}  // namespace kvcove
