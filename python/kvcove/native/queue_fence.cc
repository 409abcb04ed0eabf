// SPDX-License-Identifier: Apache-2.0
#include "queue_fence.h"

#include <utility>

#include "kvcove/base/log.h"

namespace kvcove::python {
namespace {

// A token of before says nothing new: the pool refuses it by itself.
bool IsLater(const Token& token, const Token& seen) {
  return token.incarnation != seen.incarnation || token.generation > seen.generation;
}

}  // namespace

void QueueFence::Begin(const Token& now) {
  const MutexLock lock(mutex_);
  seen_ = now;
}

bool QueueFence::on() {
  const MutexLock lock(mutex_);
  return seen_.has_value();
}

void QueueFence::OwnReset(const Token& before, const Token& after) {
  const MutexLock lock(mutex_);
  // Else another's came first, and the next put refuses.
  if (seen_ && !IsLater(before, *seen_)) seen_ = after;
}

bool QueueFence::Admits(const Token& token) {
  bool paused = false;
  std::uint64_t refused = 0;
  {
    const MutexLock lock(mutex_);
    if (!seen_ || (!refusing_ && !IsLater(token, *seen_))) return true;
    const std::int64_t now_ns = clock_.NowNs();
    if (IsLater(token, *seen_)) {
      seen_ = token;
      refusing_ = true;
      since_ns_ = last_call_ns_ = now_ns;
    }
    paused = now_ns - std::exchange(last_call_ns_, now_ns) >= kPauseNs;
    if (!paused && now_ns - since_ns_ < kBoundNs) {
      ++refused_;
      return false;
    }
    refusing_ = false;
    refused = std::exchange(refused_, 0);
  }
  LogInfo(
      "{} calls of puts after another's reset were refused: they may have been queued before it; "
      "{}",
      refused,
      paused ? "the caller has paused since" : "their caller does not pause, and is believed now");
  return true;
}

}  // namespace kvcove::python
