// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include "kvcove/base/hash.h"

#include <xxhash.h>

namespace kvcove {

std::uint64_t Hash64(std::string_view bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t Hash64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace kvcove
