// SPDX-License-Identifier: Apache-2.0
// Time as an input. Cores take a `Clock`; tests drive a `FakeClock`.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvcove {

inline constexpr std::int64_t kMicrosecond = 1'000;
inline constexpr std::int64_t kMillisecond = 1'000'000;
inline constexpr std::int64_t kSecond = 1'000'000'000;

// Thread-safe. Nanoseconds of CLOCK_BOOTTIME: it goes on while the host sleeps, so a lease cannot
// survive a suspended machine, and it is the same for all processes of a host.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t NowNs() const = 0;
};

class SystemClock final : public Clock {
 public:
  std::int64_t NowNs() const override;
  static const SystemClock& Instance();
};

// Stands still until told otherwise.
class FakeClock final : public Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }
  void AdvanceNs(std::int64_t delta_ns) { now_ns_.fetch_add(delta_ns, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> now_ns_{kSecond};
};

}  // namespace kvcove
