// SPDX-License-Identifier: Apache-2.0
// XXH3, behind functions so that its header stays out of ours.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvcove/base/random.h"

namespace kvcove {

// XXH3 64 bits. With a random seed per segment, a caller cannot aim at one bucket.
std::uint64_t Hash64(std::string_view bytes, std::uint64_t seed);
Id128 Hash128(std::string_view bytes, std::uint64_t seed);
std::uint64_t Hash64(std::span<const std::byte> bytes, std::uint64_t seed);

// The same value over bytes that come in pieces.
class Hash64Stream {
 public:
  Hash64Stream();
  ~Hash64Stream();
  Hash64Stream(const Hash64Stream&) = delete;
  Hash64Stream& operator=(const Hash64Stream&) = delete;
  void Reset();
  void Add(std::span<const std::byte> bytes);
  // As Hash64(all, 0).
  std::uint64_t Value() const;

 private:
  struct State;
  State* state_;
};

}  // namespace kvcove
