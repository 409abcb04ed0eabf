// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/random.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <charconv>

namespace kvcove {
namespace {

thread_local Random* seeded = nullptr;

bool FromHex(std::string_view digits, std::uint64_t& value) {
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace

std::uint64_t RandomU64() {
  if (seeded != nullptr) return seeded->Next();
  std::uint64_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

Id128 RandomId() { return {RandomU64(), RandomU64()}; }

std::string ToHex(const Id128& id) { return fmt::format("{:016x}{:016x}", id.high, id.low); }

std::optional<Id128> IdFromHex(std::string_view text) {
  Id128 id;
  if (text.size() != 32 || !FromHex(text.substr(0, 16), id.high) ||
      !FromHex(text.substr(16), id.low)) {
    return std::nullopt;
  }
  return id;
}

SeededRandomness::SeededRandomness(std::uint64_t seed) : random_(seed) { seeded = &random_; }
SeededRandomness::~SeededRandomness() { seeded = nullptr; }

}  // namespace kvcove
