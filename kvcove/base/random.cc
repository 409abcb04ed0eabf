// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/random.h"

#include <sys/random.h>

#include <cstdlib>

namespace kvcove {

std::uint64_t RandomU64() {
  std::uint64_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

Id128 RandomId() { return {RandomU64(), RandomU64()}; }

}  // namespace kvcove
