// SPDX-License-Identifier: Apache-2.0
// Waits for what other threads or processes do, or watches it.
#pragma once

#include <chrono>
#include <thread>

namespace kvcove {

// Whether the condition holds, now or within `patience`.
template <typename Condition>
bool Becomes(Condition&& condition,
             std::chrono::milliseconds patience = std::chrono::milliseconds(60'000)) {
  const auto until = std::chrono::steady_clock::now() + patience;
  // Once is enough: what holds for a moment may be over when it is looked at again.
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// Calls `look` again and again for so long, to see what must not be there at any moment. It rests
// between the calls: else it keeps a core busy, which slows what it looks at.
template <typename Look>
void Throughout(std::chrono::milliseconds time, Look&& look) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace kvcove
