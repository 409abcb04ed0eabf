// SPDX-License-Identifier: Apache-2.0
// Resets of a session. A caller attempts its reset once. If the attempt proves nothing, a thread
// repeats it, under the same id, until a proof is taken. A reset that the master refuses (the
// session's token may not reset, or a name is invalid) would be refused again, so it is not
// repeated. Both close the session, because objects that had to be voided may still be found.
//
//   open -> closed, repeated -> open       (proven by the thread, or by a later reset)
//           closed, refused  -> open       (proven by a later reset)
//
// A later proven reset reopens the session only if it voids everything that the earlier one had to
// void.
//
// A caller whose attempt ends with kUnavailable (masters elect a leader, or one starts again) waits
// until its timeout for the proof that the thread gets.
// - The thread alone makes repetitions, so two resets that both wait cannot overtake each other:
//   the thread repeats the one reset that covers both.
// - Each repetition is a whole attempt, with the registration that must precede the reset
//   (AttemptReset): a new leader that appears in between gets both, or none.
// - If the master decided on a reset and its answer was lost, the repetition raises nothing more:
//   a master raises at most once for an id, and stores the id with the raise.
// - While the caller waits, a repetition may share a generation that another engine's reset has
//   raised: a trainer loads no further weights before it has all answers. Once a caller has its
//   answer "not proven", others may have newer weights, so the repetitions are `late`. A caller
//   therefore gives up only after an attempt that is not late has ended, and so does a later call
//   whose own attempt proves the reset.
// - An attempt that has ended here may still reach the master. Requests name what is left of their
//   time, so a master that was frozen, or cut off from this host alone, carries one out as it
//   arrives, and lets it share a generation that another engine has raised for newer weights. The
//   other engine may also come to share a generation that this one has raised. In both cases the
//   late repetition has the same id, and would be answered as proven. So the answer says for how
//   long nobody has come to share the generation (ResetOutcome::unshared_ms). If that is not longer
//   than the caller has had its answer, the proof is not taken, and the reset is repeated under a
//   new id. Not before: the master must have decided on the first id, or an attempt that is still
//   under way would open the session again later. Only durations are compared, each by its own
//   host's clock.
// Other errors are answered at once: they say that the master was reached and has no proof, or that
// the time is over.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/requester/types.h"
#include "kvcove/wire/messages.h"

namespace kvcove::requester {

// Thread-safe.
class ResetKeeper {
 public:
  using Attempt = std::function<Result<wire::ResetOutcome>(const wire::ResetRequest& request,
                                                           std::int64_t deadline_ns)>;
  // `taken` is called with each proof that is taken, before closed() becomes false. It may be null.
  using Taken = std::function<void(const wire::ResetOutcome& outcome)>;
  ResetKeeper(std::string name, Attempt attempt, const Clock& clock, Taken taken = nullptr)
      : name_(std::move(name)),
        attempt_(std::move(attempt)),
        clock_(clock),
        taken_(std::move(taken)) {}
  ~ResetKeeper() { Stop(); }

  // Resets; waits for the proof until the timeout while no master answers. Errors: kNotProven (the
  // thread repeats it); kDenied, kInvalid (it is not repeated, and only a later reset can open the
  // session).
  Status Reset(const wire::ResetRequest& request, std::chrono::milliseconds timeout);
  // True while a reset is not proven.
  bool closed() const { return unproven_->load(std::memory_order_acquire); }
  // Returns closed() as a flag that outlives this object, for loans of the session.
  std::shared_ptr<const std::atomic<bool>> closed_flag() const { return unproven_; }
  // Ends the thread, and its attempt within Interrupt::kLookNs: a session must not wait for a
  // master that is away. No attempt begins afterwards.
  void Stop();

 private:
  struct Pending {
    std::uint64_t number = 0;      // of the latest call of Reset that it covers
    wire::ResetRequest request;    // voids all that the calls had to void
    std::optional<Error> refusal;  // it is not repeated
    std::int64_t until_ns = 0;     // when the first caller that waits gives up
    std::int64_t late_ns = 0;      // when the first caller got "not proven"; 0: all wait
  };
  // Makes an attempt, and another one if the proof is not taken; `request` then gets a new id.
  // `late_ns`: since when the request is late.
  Status Try(wire::ResetRequest& request, std::int64_t late_ns, std::int64_t deadline_ns);
  std::optional<std::uint64_t> Keep(const wire::ResetRequest& request, std::uint64_t number,
                                    const std::optional<wire::ResetRequest>& first,
                                    const Status& done, std::int64_t deadline_ns);
  Status AwaitProof(std::uint64_t proofs, const Error& error, std::int64_t deadline_ns);
  void EndSharing() KVCOVE_REQUIRES(mutex_);
  void Proven() KVCOVE_REQUIRES(mutex_);
  bool StartRetries();
  void RunRetries();

  const std::string name_;
  const Attempt attempt_;
  const Clock& clock_;
  const Taken taken_;
  const std::shared_ptr<std::atomic<bool>> unproven_ = std::make_shared<std::atomic<bool>>(false);
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t number_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::optional<Pending> pending_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t proofs_ KVCOVE_GUARDED_BY(mutex_) = 0;    // of pending resets
  std::uint64_t attempts_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the thread
  // The number of the thread's attempt that is under way and not late; 0: none.
  std::uint64_t sharing_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> ends_{false};  // the thread's attempt is to end; written under mutex_
  bool starting_ KVCOVE_GUARDED_BY(mutex_) = false;  // a call starts the thread without the lock
  std::thread retry_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::requester
