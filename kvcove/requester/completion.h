// SPDX-License-Identifier: Apache-2.0
// The queue in which asynchronous calls run and complete. Users include kvcove/pool/pool.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "kvcove/base/export.h"
#include "kvcove/base/result.h"

namespace kvcove {

// Outcome of an asynchronous call.
struct Completion {
  std::uint64_t tag = 0;    // set by the caller
  Status status;            // as of the synchronous call
  std::uint64_t count = 0;  // LongestPrefix: the length; RemoveMatching: the number
  // False: the deadline has passed (kBufferBusy), but bytes may still be written to the call's
  // buffers, because the call still runs or a device could not be stopped. A final completion with
  // the same tag and the call's outcome follows once the buffers are no longer written.
  bool final = true;
};

// Runs calls in order on four threads of its own, and collects their completions. Thread-safe.
// Bounded: Start refuses (kLimit) a call while `capacity` others are unfinished or not taken yet.
// The threads start with the first call. The destructor waits for all calls (late ones end at
// once), so the sessions and buffers of these calls must outlive it. In a forked child it refuses
// calls, and destruction frees nothing.
class KVCOVE_API CompletionQueue {
 public:
  explicit CompletionQueue(std::size_t capacity = 1024);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Returns a descriptor that is readable (poll, epoll) while there are completions.
  int event_fd() const;
  // Takes a completion, and waits up to `timeout` for it. Empty if there is none by then, or if the
  // thread is interrupted (base/interrupt.h).
  std::optional<Completion> Next(std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

  // Queues `call`, which gets the rest of `timeout` when it runs; its completion has `tag`. All
  // asynchronous calls of Session use this. Errors: kLimit (the queue is full, or the process has
  // no descriptor left), kUnavailable in a forked child.
  using Call = std::function<Status(std::chrono::milliseconds left, std::uint64_t& count)>;
  Status Start(std::uint64_t tag, std::chrono::milliseconds timeout, Call call);

 private:
  class KVCOVE_INTERNAL Impl;
  const unsigned forks_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove
