// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/interrupt.h"

#include <chrono>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"

namespace kvcove {

std::int64_t Interrupt::DueInNs() {
  const std::int64_t now_ns = SystemClock::Instance().NowNs();
  if (due_ns_ == 0) due_ns_ = now_ns + kLookNs;
  return std::max<std::int64_t>(due_ns_ - now_ns, 0);
}

void Interrupt::Look() {
  ExpectNoLock("a look for signals");
  const unsigned forks = ForkCount();
  {
    const Aside aside;
    ended_ = Asks();
  }
  // In a child that a handler made, the connections of this call are its parent's.
  ended_ = ended_ || forks != ForkCount();
  due_ns_ = SystemClock::Instance().NowNs() + kLookNs;
}

void SleepNs(std::int64_t ns) {
  const Clock& clock = SystemClock::Instance();
  const std::int64_t until_ns = clock.NowNs() + ns;
  for (std::int64_t left_ns = ns; left_ns > 0 && !Interrupt::Ended();
       left_ns = until_ns - clock.NowNs()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(Interrupt::TurnNs(left_ns)));
    Interrupt::LookIfDue();
  }
}

}  // namespace kvcove
