// SPDX-License-Identifier: Apache-2.0
// The time that a step of the engine's scheduler may still wait for the pool: for look-ups,
// captures of tokens, and the binding of a version, all requests of the step together.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kvcove/base/clock.h"

namespace kvcove::connector {

// Does no I/O. Needs its owner's lock.
class StepBudget {
 public:
  // Limit for a step's captures, as far as a timeout of the pool's calls can bound them; the time
  // of its look-ups counts, too.
  static constexpr std::chrono::milliseconds kCaptureTimeout{5};

  explicit StepBudget(std::chrono::milliseconds lookups)
      : whole_ns_(lookups.count() * kMillisecond), left_ns_(whole_ns_) {}

  void BeginStep() {
    left_ns_ = whole_ns_;
    capture_ns_ = 0;
  }
  void AddLookup(std::int64_t took_ns) { left_ns_ -= took_ns; }
  void AddCapture(std::int64_t took_ns) { capture_ns_ += took_ns; }

  std::int64_t ForLookups() const { return std::max<std::int64_t>(left_ns_, 0); }
  // Returns the time for the wait for a binding; 0 or less: none is left.
  std::int64_t ForBinding() const {
    return left_ns_ - static_cast<std::int64_t>((1 - kBindShare) * static_cast<double>(whole_ns_));
  }
  std::chrono::milliseconds ForCapture() const {
    const auto spent =
        std::chrono::milliseconds((capture_ns_ + whole_ns_ - left_ns_) / kMillisecond);
    if (spent < kCaptureTimeout) return kCaptureTimeout - spent;
    // Look-ups that have used up the time leave one capture a millisecond: else a slow pool would
    // let no request of the step store.
    return std::chrono::milliseconds(capture_ns_ < kMillisecond ? 1 : 0);
  }

 private:
  // The share of a step's budget for waits for a binding: a healthy pool answers in a tenth of it.
  static constexpr double kBindShare = 0.2;

  const std::int64_t whole_ns_;
  std::int64_t left_ns_;
  std::int64_t capture_ns_ = 0;
};

}  // namespace kvcove::connector
