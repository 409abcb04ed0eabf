// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/random.h"

#include <sys/random.h>

#include <cstdlib>

namespace kvcove {
namespace {

thread_local Random* seeded = nullptr;

}  // namespace

std::uint64_t RandomU64() {
  if (seeded != nullptr) return seeded->Next();
  std::uint64_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

Id128 RandomId() { return {RandomU64(), RandomU64()}; }

SeededRandomness::SeededRandomness(std::uint64_t seed) : random_(seed) { seeded = &random_; }
SeededRandomness::~SeededRandomness() { seeded = nullptr; }

}  // namespace kvcove
