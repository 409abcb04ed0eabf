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

Id128 Hash128(std::string_view bytes, std::uint64_t seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(bytes.data(), bytes.size(), seed);
  return {.high = hash.high64, .low = hash.low64};
}

struct alignas(64) Hash64Stream::State {
  XXH3_state_t xxh;
};

Hash64Stream::Hash64Stream() : state_(new State) { Reset(); }
Hash64Stream::~Hash64Stream() { delete state_; }
void Hash64Stream::Reset() { XXH3_64bits_reset(&state_->xxh); }
void Hash64Stream::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
}
std::uint64_t Hash64Stream::Value() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace kvcove
