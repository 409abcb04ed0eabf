// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/reset_keeper.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

constexpr std::int64_t kRetryNs = 100 * kMillisecond;

// True if the master would give the same answer again.
bool IsRefused(const Status& done) {
  return !done && (done.error().code == Code::kInvalid || done.error().code == Code::kDenied);
}

bool Versioned(const wire::ResetRequest& request) { return !request.version.value_or("").empty(); }

// True if a proof of `later` also proves `earlier`. A reset with a version voids at most that
// version. A reset without an engine (all_void) leaves the sessions of other engines open, so it
// does not cover an engine's reset, which closes them.
bool Covers(const wire::ResetRequest& later, const wire::ResetRequest& earlier) {
  if (!earlier.engine.empty() && later.engine.empty()) return false;
  return !Versioned(later) || (Versioned(earlier) && later.version == earlier.version);
}

// Returns a reset that covers both. It has a new id, because the master may have decided either of
// them under its own, and would answer with that decision.
wire::ResetRequest Both(const wire::ResetRequest& earlier, const wire::ResetRequest& later) {
  if (Covers(later, earlier)) return later;
  wire::ResetRequest both = later;
  both.id = RandomId();
  if (both.engine.empty()) both.engine = earlier.engine;
  if (earlier.version != later.version) both.version.reset();
  return both;
}

}  // namespace

Status ResetKeeper::Reset(const wire::ResetRequest& request, std::chrono::milliseconds timeout) {
  const std::int64_t deadline_ns =
      clock_.NowNs() + std::clamp<std::int64_t>(timeout.count(), 0, 3'600'000) * kMillisecond;
  std::uint64_t number = 0;
  std::optional<wire::ResetRequest> first;
  {
    const MutexLock lock(mutex_);
    number = ++number_;
    // `request` alone would not reopen the session: the pending one is tried again before it.
    if (pending_ && !Covers(request, pending_->request)) first = pending_->request;
  }
  Status done;
  if (first) {
    first->late = true;
    done = attempt_(*first, deadline_ns);
    if (!done) done = Fail(done.error().code, "an earlier one: " + done.error().detail);
  }
  if (done) done = attempt_(request, deadline_ns);
  if (!Keep(request, number, first, done)) return done;  // proven, or refused
  StartRetries();
  return Fail(Code::kNotProven, done.error().ToString());
}

// Notes the outcome of a call. True: the reset has to be repeated.
bool ResetKeeper::Keep(const wire::ResetRequest& request, std::uint64_t number,
                       const std::optional<wire::ResetRequest>& first, const Status& done) {
  const MutexLock lock(mutex_);
  if (done) {
    // A call that began before the pending one proves nothing about it.
    if (pending_ && number > pending_->number &&
        (Covers(request, pending_->request) || (first && first->id == pending_->request.id))) {
      pending_.reset();
      unproven_->store(false, std::memory_order_release);
    }
    return false;
  }
  unproven_->store(true, std::memory_order_release);
  const bool refused = IsRefused(done);
  if (!pending_) {
    pending_ = {.number = number, .request = request, .refused = refused};
  } else {
    // Calls may end in another order than they began, so the later number decides what the version
    // is afterwards. Refused only if both are: the master's answer for both together is not known.
    const bool both_refused = refused && pending_->refused;
    const bool later = number > pending_->number;
    pending_ = {
        .number = std::max(number, pending_->number),
        .request = later ? Both(pending_->request, request) : Both(request, pending_->request),
        .refused = both_refused};
  }
  changed_.NotifyAll();
  return !refused;
}

void ResetKeeper::StartRetries() {
  {
    const MutexLock lock(mutex_);
    if (stopping_ || std::exchange(started_, true)) return;
  }
  auto retry = StartThread("kvcove-reset", [this] { RunRetries(); });
  if (!retry) {
    LogError("a reset that is not proven is repeated with the next one only: {}",
             retry.error().detail);
  }
  const MutexLock lock(mutex_);
  if (retry) retry_ = std::move(*retry);
  if (!retry) started_ = false;
  changed_.NotifyAll();
}

void ResetKeeper::Stop() {
  std::thread retry;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    // StartRetries starts the thread without the lock, and stores it in `retry_` a moment later.
    while (started_ && !retry_.joinable()) changed_.Wait(mutex_);
    started_ = false;
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
      while (!stopping_ && (!pending_ || pending_->refused)) {
        since_ns = 0;
        tries = 0;
        changed_.Wait(mutex_);
      }
      if (stopping_) return;
      request = pending_->request;
      request.late = true;
    }
    if (since_ns == 0) since_ns = clock_.NowNs();
    ++tries;
    const Status done = attempt_(request, clock_.NowNs() + 2500 * kMillisecond);
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
      // Another call has replaced or proven the pending reset meanwhile: this outcome is not about
      // the present one.
      if (!pending_ || pending_->request.id != request.id) continue;
      if (!done && !IsRefused(done)) {
        changed_.WaitFor(mutex_, std::chrono::nanoseconds(kRetryNs));
        continue;
      }
      if (done) {
        pending_.reset();
        unproven_->store(false, std::memory_order_release);
      } else {
        pending_->refused = true;
      }
    }
    if (!done) {
      LogError(
          "the reset of namespace '{}' is refused ({}) and not repeated: the session neither finds "
          "nor stores until a later reset is proven",
          name_, done.error().ToString());
      continue;
    }
    LogWarn(
        "the reset of namespace '{}' is proven after {} ms and {} more tries; the session is "
        "open again",
        name_, (clock_.NowNs() - since_ns) / kMillisecond, tries);
  }
}

}  // namespace kvcove::requester
