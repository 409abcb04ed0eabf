// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/mutex.h"

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "kvcove/base/random.h"
#include "kvcove/base/text.h"

namespace kvcove {

void AbortUnderLock(const char* act) {
  // stdio, not LogLine: a log line is one of the acts that end here.
  (void)std::fprintf(stderr, "kvcove: %s under a lock (docs/threads.md):\n", act);
  std::array<void*, 32> frames{};
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  backtrace_symbols_fd(frames.data(), depth, STDERR_FILENO);
  std::abort();
}

namespace {
// A wait that is not cut short goes on in such turns, so that its loop may still look at what ends
// by and by.
constexpr std::int64_t kTurnOfEndedNs = 5 * kMillisecond;
}  // namespace

bool CondVar::WaitTurn(Mutex& mutex, std::chrono::steady_clock::time_point until) {
  const bool ended = Interrupt::Ended();
  const std::int64_t turn_ns = ended ? kTurnOfEndedNs : Interrupt::TurnNs(Interrupt::kLookNs);
  const auto turn_end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(turn_ns);
  const bool notified =
      condition_.wait_until(mutex, std::min(until, turn_end)) == std::cv_status::no_timeout;
  // A thread that was notified acts on it now, for no other one was: it looks in its next wait.
  if (!ended && !notified) {
    mutex.unlock();
    Interrupt::LookIfDue();
    mutex.lock();
  }
  // What came while the lock was free is seen by the caller, who looks at its condition again.
  return notified || turn_end < until;
}

#ifdef KVCOVE_CHECK_LOCKS
namespace {

std::uint64_t SeedOfSchedules() {
  const char* text = std::getenv("KVCOVE_SCHEDULE_SEED");
  return text == nullptr ? 0 : LeadingNumber(text);
}

// One thread's stops. Some threads stop at every fourth lock and others at every 256th: an order
// that is rare needs one thread that is far slower than the others.
class Stops {
 public:
  explicit Stops(std::uint64_t seed)
      : random_(seed), every_(std::uint64_t{4} << random_.Below(7)) {}
  void Next() {
    if (random_.Below(every_) != 0) return;
    const std::uint64_t kind = random_.Below(64);
    if (kind < 24) return std::this_thread::yield();
    // Rarely for long: whatever others do in a few steps happens meanwhile.
    const std::uint64_t most_us = kind == 63 ? 5'000 : 300;
    std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(most_us)));
  }

 private:
  Random random_;
  const std::uint64_t every_;
};

}  // namespace

void StopBySeed() {
  static const std::uint64_t seed = SeedOfSchedules();
  if (seed == 0) return;
  static std::atomic<std::uint64_t> threads{0};
  thread_local Stops stops((seed << 20) + threads.fetch_add(1, std::memory_order_relaxed));
  stops.Next();
}
#endif

}  // namespace kvcove
