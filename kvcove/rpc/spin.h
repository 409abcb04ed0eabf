// SPDX-License-Identifier: Apache-2.0
// A wake-up from sleep costs more than most calls take, above all on virtual machines. So a thread
// that waits for a peer looks again and again for a moment, and lets others run in between, before
// it sleeps.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kvcove/base/clock.h"

namespace kvcove::rpc {

// Belongs to one thread.
class Spin {
 public:
  static constexpr std::int64_t kForNs = 50 * kMicrosecond;

  // `longer_ns`: time that the peer is known to need in addition.
  explicit Spin(const Clock& clock, std::int64_t longer_ns = 0)
      : clock_(clock), until_ns_(clock.NowNs() + kForNs + longer_ns) {}
  // Returns the time that a peer needs for a request: an item has some hundred bytes and takes
  // about a microsecond. In nanoseconds, 200 us at most.
  static constexpr std::int64_t NeededFor(std::size_t request_bytes) {
    return std::min<std::int64_t>(static_cast<std::int64_t>(request_bytes) * 10,
                                  200 * kMicrosecond);
  }
  // Starts the moment again, because something has arrived.
  void Restart() { until_ns_ = clock_.NowNs() + kForNs; }
  // Lets others run. False when the moment is over: the caller sleeps.
  bool Again() {
    if (clock_.NowNs() >= until_ns_) return false;
    sched_yield();
    return true;
  }

 private:
  const Clock& clock_;
  std::int64_t until_ns_;
};

// Runs an event loop (boost::asio::io_context) until it is stopped or has no work left.
template <typename Context>
void RunSpinning(Context& context, const Clock& clock) {
  Spin spin(clock);
  while (!context.stopped()) {
    if (context.poll() > 0) {
      spin.Restart();
    } else if (!spin.Again()) {
      if (context.run_one() > 0) spin.Restart();
    }
  }
}

}  // namespace kvcove::rpc
