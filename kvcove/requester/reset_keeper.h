// SPDX-License-Identifier: Apache-2.0
// A session's reset: tried once, and if it could not be proven, repeated under its id in the
// background until it is. One that the master refuses (the session's token may not reset, or what
// it names is wrong) would be refused again, so it is not repeated. In both cases nothing is
// voided, so the session is closed. A later reset that is proven opens it again only if it voids
// everything that the earlier one had to void.
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

  // Errors: kNotProven: it is repeated; kDenied, kInvalid: it is not, and only a later one can open
  // the session.
  Status Reset(const wire::ResetRequest& request, std::chrono::milliseconds timeout);
  bool closed() const { return unproven_->load(std::memory_order_acquire); }
  // The same for who outlives this, as a loan of its session does.
  std::shared_ptr<const std::atomic<bool>> closed_flag() const { return unproven_; }
  // Joins the thread; no attempt is made any more.
  void Stop();

 private:
  struct Pending {
    std::uint64_t number = 0;  // of the latest call that it stands for
    wire::ResetRequest request;
    bool refused = false;  // it is not repeated
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
  bool started_ KVCOVE_GUARDED_BY(mutex_) = false;  // the thread, which is `retry_` a moment later
  std::thread retry_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::requester
