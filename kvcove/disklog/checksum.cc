// SPDX-License-Identifier: Apache-2.0
#define XXH_INLINE_ALL
#include "kvcove/disklog/checksum.h"

#include <xxhash.h>

namespace kvcove::disklog {
namespace {
Id128 ToId(const XXH128_hash_t& hash) { return {.high = hash.high64, .low = hash.low64}; }
}  // namespace

struct alignas(64) Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
void Checksum::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}
Id128 Checksum::Value() const { return ToId(XXH3_128bits_digest(&state_->xxh)); }
Id128 Checksum::Of(std::span<const std::byte> bytes) {
  return ToId(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace kvcove::disklog
