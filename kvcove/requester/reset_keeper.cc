// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/reset_keeper.h"

#include <algorithm>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"

namespace kvcove::requester {
namespace {

constexpr std::int64_t kRetryNs = 100 * kMillisecond;

}  // namespace

Status ResetKeeper::Reset(const wire::ResetRequest& request, std::chrono::milliseconds timeout) {
  const std::int64_t deadline_ns =
      clock_.NowNs() + std::clamp<std::int64_t>(timeout.count(), 0, 3'600'000) * kMillisecond;
  std::uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = ++number_;
  }
  Status done = attempt_(request, deadline_ns);
  const MutexLock lock(mutex_);
  if (done) {
    // An earlier one that was not proven is covered by this one.
    if (number == number_) {
      pending_.reset();
      unproven_.store(false, std::memory_order_release);
    }
    return {};
  }
  if (done.error().code == Code::kInvalid || done.error().code == Code::kDenied) return done;
  unproven_.store(true, std::memory_order_release);
  pending_ = request;
  if (!retry_.joinable()) {
    retry_ = StartThread("kvcove-reset", [this] { RunRetries(); });
  }
  changed_.NotifyAll();
  return Fail(Code::kNotProven, done.error().ToString());
}

void ResetKeeper::Stop() {
  std::thread retry;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    retry.swap(retry_);
  }
  if (retry.joinable()) retry.join();
}

void ResetKeeper::RunRetries() {
  std::int64_t since_ns = 0;
  std::uint64_t tries = 0;
  while (true) {
    wire::ResetRequest request;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && !pending_) {
        since_ns = 0;
        tries = 0;
        changed_.Wait(mutex_);
      }
      if (stopping_) return;
      request = *pending_;
      request.late = true;
    }
    if (since_ns == 0) since_ns = clock_.NowNs();
    ++tries;
    const Status done = attempt_(request, clock_.NowNs() + 2500 * kMillisecond);
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      if (!pending_ || pending_->id != request.id) continue;
      if (!done) {
        changed_.WaitFor(mutex_, std::chrono::nanoseconds(kRetryNs));
        continue;
      }
      pending_.reset();
      unproven_.store(false, std::memory_order_release);
    }
    LogWarn(
        "the reset of namespace '{}' is proven after {} ms and {} more tries; the session is "
        "open again",
        name_, (clock_.NowNs() - since_ns) / kMillisecond, tries);
  }
}

}  // namespace kvcove::requester
