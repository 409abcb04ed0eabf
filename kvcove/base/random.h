// SPDX-License-Identifier: Apache-2.0
// Randomness as an input: seeded for tests and replays, from the kernel for identities.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcove {

// One round of SplitMix64 (Steele, Lea, Flood 2014; public domain constants): a cheap bijective
// mixer.
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Deterministic; belongs to one thread.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15ULL;
    return Mix64(state_);
  }
  // In [0, bound); bound > 0.
  std::uint64_t Below(std::uint64_t bound) { return Next() % bound; }
  bool OneIn(std::uint64_t n) { return Below(n) == 0; }

 private:
  std::uint64_t state_;
};

struct Id128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Id128&) const = default;
};

// As 32 hexadecimal digits, and back; nothing for any other text.
std::string ToHex(const Id128& id);
std::optional<Id128> IdFromHex(std::string_view text);

// From getrandom(2). Thread-safe.
std::uint64_t RandomU64();
Id128 RandomId();

// For simulations: while it lives, what this thread gets from RandomU64 and RandomId follows from
// the seed, so that a run can be repeated. One at a time.
class SeededRandomness {
 public:
  explicit SeededRandomness(std::uint64_t seed);
  ~SeededRandomness();
  SeededRandomness(const SeededRandomness&) = delete;
  SeededRandomness& operator=(const SeededRandomness&) = delete;

 private:
  Random random_;
};

}  // namespace kvcove
