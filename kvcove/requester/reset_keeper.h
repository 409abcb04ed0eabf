// SPDX-License-Identifier: Apache-2.0
// Resets of a session. A reset is tried once; if it is not proven, a thread repeats it, under the
// same id, until it is. A reset that the master refuses (the session's token may not reset, or a
// name is invalid) would be refused again, so it is not repeated. Both close the session, because
// objects that had to be voided may still be found.
//
//   open -> closed, repeated -> open       (proven by the thread, or by a later reset)
//           closed, refused  -> open       (proven by a later reset)
//
// A later proven reset reopens the session only if it voids everything that the earlier one had to
// void.
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
  using Attempt =
      std::function<Status(const wire::ResetRequest& request, std::int64_t deadline_ns)>;
  ResetKeeper(std::string name, Attempt attempt, const Clock& clock)
      : name_(std::move(name)), attempt_(std::move(attempt)), clock_(clock) {}
  ~ResetKeeper() { Stop(); }

  // Resets once. Errors: kNotProven (the thread repeats it); kDenied, kInvalid (it is not repeated,
  // and only a later reset can open the session).
  Status Reset(const wire::ResetRequest& request, std::chrono::milliseconds timeout);
  // True while a reset is not proven.
  bool closed() const { return unproven_->load(std::memory_order_acquire); }
  // Returns closed() as a flag that outlives this object, for loans of the session.
  std::shared_ptr<const std::atomic<bool>> closed_flag() const { return unproven_; }
  // Joins the thread. No attempt begins afterwards.
  void Stop();

 private:
  struct Pending {
    std::uint64_t number = 0;    // of the latest call of Reset that it covers
    wire::ResetRequest request;  // voids all that the calls had to void
    bool refused = false;        // it is not repeated
  };
  bool Keep(const wire::ResetRequest& request, std::uint64_t number,
            const std::optional<wire::ResetRequest>& first, const Status& done);
  void StartRetries();
  void RunRetries();

  const std::string name_;
  const Attempt attempt_;
  const Clock& clock_;
  const std::shared_ptr<std::atomic<bool>> unproven_ = std::make_shared<std::atomic<bool>>(false);
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t number_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::optional<Pending> pending_ KVCOVE_GUARDED_BY(mutex_);
  bool started_ KVCOVE_GUARDED_BY(mutex_) =
      false;  // the thread runs, or is about to; then `retry_`
  std::thread retry_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::requester
