// SPDX-License-Identifier: Apache-2.0
// Refuses puts that a caller queued before another process's reset and calls after it.
#pragma once

#include <optional>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/model/ids.h"

namespace kvcove::python {

// A put of this API begins when it is called, so a call from a queue that the caller filled before
// a reset carries the generation of after it. From the first put that sees a generation which its
// store did not make, all puts are refused until none was called for a pause: a queue is worked off
// back to back, so a pause says that it has run dry. A bound ends the refusals under a caller that
// never pauses. This is a heuristic: a queue that stalls for longer than the pause, or lasts longer
// than the bound, is taken for new puts. Thread-safe.
class QueueFence {
 public:
  static constexpr std::int64_t kPauseNs = 100 * kMillisecond;
  static constexpr std::int64_t kBoundNs = 5'000 * kMillisecond;

  explicit QueueFence(const Clock& clock) : clock_(clock) {}

  // From now on; `now`: a generation whose puts are taken. Before it all puts are.
  void Begin(const Token& now);
  // Whether it has begun.
  bool on();
  // This store made a reset; tokens that it captured before and after. Its caller's queue is its
  // caller's to empty.
  void OwnReset(const Token& before, const Token& after);
  // Whether a put that is called now, under a token that was captured in the call, is taken.
  bool Admits(const Token& token);

 private:
  const Clock& clock_;
  Mutex mutex_;
  std::optional<Token> seen_ KVCOVE_GUARDED_BY(mutex_);
  bool refusing_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::int64_t since_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t last_call_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t refused_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcove::python
