// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/clock.h"

#include <ctime>

namespace kvcove {

std::int64_t SystemClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * kSecond + now.tv_nsec;
}

const SystemClock& SystemClock::Instance() {
  static const SystemClock clock;
  return clock;
}

}  // namespace kvcove
