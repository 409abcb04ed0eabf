// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/reset_keeper.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

constexpr std::int64_t kRetryNs = 100 * kMillisecond;
constexpr std::int64_t kAttemptNs = 2500 * kMillisecond;
constexpr std::int64_t kNobodyWaits = std::numeric_limits<std::int64_t>::max();

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

// Returns true if another engine's reset may have come to share the generation within the last
// `late_ns`, since a caller had its answer. The authority's clock may be 1 % faster than this one.
bool MayBeShared(const wire::ResetOutcome& outcome, std::int64_t late_ns) {
  if (outcome.unshared_ms == 0) return false;  // an earlier build
  return outcome.unshared_ms <=
         static_cast<std::uint64_t>((late_ns + late_ns / 100) / kMillisecond + 1);
}

// Returns a reset that covers both. It has a new id, because the master may have decided either of
// them under its own, and would answer with that decision.
wire::ResetRequest Both(const wire::ResetRequest& earlier, const wire::ResetRequest& later) {
  if (Covers(later, earlier)) return later;
  wire::ResetRequest both = later;
  both.id = RandomId();
  both.late = earlier.late || later.late;
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
  std::int64_t late_ns = 0;
  {
    const MutexLock lock(mutex_);
    number = ++number_;
    // `request` alone would not reopen the session: the pending one is tried again before it.
    if (pending_ && !Covers(request, pending_->request)) first = pending_->request;
    if (first) late_ns = pending_->late_ns != 0 ? pending_->late_ns : clock_.NowNs();
  }
  Status done;
  if (first) {
    wire::ResetRequest earlier = *first;
    earlier.late = true;
    done = Try(earlier, late_ns, deadline_ns);
    if (!done) done = Fail(done.error().code, "an earlier one: " + done.error().detail);
  }
  if (done) {
    wire::ResetRequest own = request;
    done = Try(own, 0, deadline_ns);
  }
  const std::optional<std::uint64_t> proofs = Keep(request, number, first, done, deadline_ns);
  if (!proofs) return done;  // proven, or refused
  // Only kUnavailable promises another answer soon, if a thread asks again.
  const bool waits = StartRetries() && done.error().code == Code::kUnavailable;
  return AwaitProof(*proofs, done.error(), waits ? deadline_ns : 0);
}

Status ResetKeeper::Try(wire::ResetRequest& request, std::int64_t late_ns,
                        std::int64_t deadline_ns) {
  Result<wire::ResetOutcome> outcome = attempt_(request, deadline_ns);
  if (outcome && request.late && MayBeShared(*outcome, clock_.NowNs() - late_ns)) {
    request.id = RandomId();  // raises a generation for this engine alone
    outcome = attempt_(request, deadline_ns);
  }
  if (!outcome) return std::unexpected(outcome.error());
  if (taken_) taken_(*outcome);
  return {};
}

// Notes the outcome of a call. Returns the number of proofs so far if the reset has to be repeated.
std::optional<std::uint64_t> ResetKeeper::Keep(const wire::ResetRequest& request,
                                               std::uint64_t number,
                                               const std::optional<wire::ResetRequest>& first,
                                               const Status& done, std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  if (done) {
    // A call that began before the pending one proves nothing about it.
    const auto proves = [&]() KVCOVE_REQUIRES(mutex_) {
      return pending_ && number > pending_->number &&
             (Covers(request, pending_->request) || (first && first->id == pending_->request.id));
    };
    if (proves()) EndSharing();
    if (proves()) Proven();  // others may have joined or proven it meanwhile
    return std::nullopt;
  }
  unproven_->store(true, std::memory_order_release);
  std::optional<Error> refusal;
  if (IsRefused(done)) refusal = done.error();
  wire::ResetRequest kept = request;
  kept.late = done.error().code != Code::kUnavailable;  // its caller does not wait
  const std::int64_t until_ns = kept.late ? kNobodyWaits : deadline_ns;
  const std::int64_t now_ns = clock_.NowNs();
  if (!pending_) {
    const std::int64_t late_ns = kept.late ? now_ns : 0;
    pending_ = {.number = number,
                .request = std::move(kept),
                .refusal = refusal,
                .until_ns = until_ns,
                .late_ns = late_ns};
  } else {
    // Calls may end in another order than they began, so the later number decides what the version
    // is afterwards. Refused only if both are: the master's answer for both together is not known.
    const bool later = number > pending_->number;
    pending_ = {.number = std::max(number, pending_->number),
                .request = later ? Both(pending_->request, kept) : Both(kept, pending_->request),
                .refusal = pending_->refusal ? refusal : std::nullopt,
                .until_ns = std::min(pending_->until_ns, until_ns),
                .late_ns = pending_->late_ns};
    if (!pending_->request.late) pending_->late_ns = 0;
    if (pending_->request.late && pending_->late_ns == 0) pending_->late_ns = now_ns;
  }
  changed_.NotifyAll();
  if (refusal) return std::nullopt;
  return proofs_;
}

// Waits until the pending reset, which covers the caller's, is proven or refused. `proofs`: the
// value of proofs_ when the caller's reset became a part of it. `error`: of the caller's attempt.
Status ResetKeeper::AwaitProof(std::uint64_t proofs, const Error& error, std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  while (proofs_ == proofs && !pending_->refusal && !stopping_) {
    const std::int64_t left_ns = LeftNs(deadline_ns, clock_);
    if (left_ns <= 0) break;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(left_ns));
  }
  if (proofs_ == proofs) {
    pending_->request.late = true;
    pending_->until_ns = kNobodyWaits;
    if (pending_->late_ns == 0) pending_->late_ns = clock_.NowNs();
    EndSharing();
  }
  if (proofs_ != proofs) return {};
  if (pending_->refusal) return std::unexpected(*pending_->refusal);
  return Fail(Code::kNotProven, error.ToString());
}

// An attempt that is not late must not reach a master after the answer of a call that it is for:
// the call waits until the attempt has ended. Those that begin meanwhile are for later calls.
void ResetKeeper::EndSharing() {
  const std::uint64_t attempt = sharing_;
  if (attempt == 0) return;
  ends_ = true;
  while (sharing_ == attempt) changed_.Wait(mutex_);
}

void ResetKeeper::Proven() {
  pending_.reset();
  ++proofs_;
  unproven_->store(false, std::memory_order_release);
  changed_.NotifyAll();
}

// Returns false if no thread repeats the reset.
bool ResetKeeper::StartRetries() {
  {
    const MutexLock lock(mutex_);
    // Another call starts it at this moment. If that fails, this caller must not wait for a proof
    // that nobody gets.
    while (starting_) changed_.Wait(mutex_);
    if (stopping_) return false;
    if (retry_.joinable()) return true;
    starting_ = true;
  }
  auto retry = StartThread("kvcove-reset", [this] { RunRetries(); });
  if (!retry) {
    LogError("a reset that is not proven is repeated with the next one only: {}",
             retry.error().detail);
  }
  const MutexLock lock(mutex_);
  if (retry) retry_ = std::move(*retry);
  starting_ = false;
  changed_.NotifyAll();
  return retry.has_value();
}

void ResetKeeper::Stop() {
  std::thread retry;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    ends_ = true;
    changed_.NotifyAll();
    // StartRetries starts the thread without the lock, and stores it in `retry_` a moment later.
    while (starting_) changed_.Wait(mutex_);
    retry.swap(retry_);
  }
  if (retry.joinable()) retry.join();
}

void ResetKeeper::RunRetries() {
  std::int64_t since_ns = 0;
  std::uint64_t tries = 0;
  while (true) {
    wire::ResetRequest request;
    std::int64_t deadline_ns = 0;
    std::int64_t late_ns = 0;
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && (!pending_ || pending_->refusal)) {
        since_ns = 0;
        tries = 0;
        changed_.Wait(mutex_);
      }
      if (stopping_) return;
      request = pending_->request;
      late_ns = pending_->late_ns;
      deadline_ns = std::min(clock_.NowNs() + kAttemptNs, pending_->until_ns);
      ++attempts_;
      sharing_ = request.late ? 0 : attempts_;
      ends_ = false;
    }
    if (since_ns == 0) since_ns = clock_.NowNs();
    ++tries;
    const Id128 asked = request.id;
    const Status done = [&] {
      const InterruptBy interrupt(ends_);
      return Try(request, late_ns, deadline_ns);
    }();
    {
      const MutexLock lock(mutex_);
      sharing_ = 0;
      changed_.NotifyAll();
      if (stopping_) return;
      if (pending_ && pending_->request.id == asked) pending_->request.id = request.id;
      // Another call has replaced or proven the pending reset meanwhile: this outcome is not about
      // the present one.
      if (!pending_ || pending_->request.id != request.id) continue;
      if (!done && !IsRefused(done)) {
        changed_.WaitFor(mutex_, std::chrono::nanoseconds(kRetryNs));
        continue;
      }
      if (done) {
        Proven();
      } else {
        pending_->refusal = done.error();
        changed_.NotifyAll();
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
