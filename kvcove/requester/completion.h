// SPDX-License-Identifier: Apache-2.0
// Where asynchronous calls run and end. Users include kvcove/pool/pool.h.
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

// What an asynchronous call ended with.
struct Completion {
  std::uint64_t tag = 0;    // the caller's
  Status status;            // as the synchronous call returns it
  std::uint64_t count = 0;  // LongestPrefix: the length; RemoveMatching: the number
  // False: the deadline passed with kBufferBusy, and bytes may still land in the call's buffers: it
  // still runs, or a device could not be stopped. Another completion with the same tag follows when
  // nothing can land any more, with what the call returned.
  bool final = true;
};

// Runs calls on a few threads of its own, in order, and collects how they ended. Thread-safe.
// Bounded: a call that finds `capacity` others unfinished or not taken yet is refused with kLimit.
// Its threads start with the first call. Destruction waits for all calls (late ones end at once),
// so the sessions and buffers of these calls must outlive it. In a forked child it refuses calls,
// and destruction frees nothing.
class KVCOVE_API CompletionQueue {
 public:
  explicit CompletionQueue(std::size_t capacity = 1024);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  // Readable (poll, epoll) while completions wait.
  int event_fd() const;
  // Takes one; waits up to `timeout` for it. Empty when none came.
  std::optional<Completion> Next(std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

  // Runs `call` with what is left of `timeout` by then; its completion has `tag`. Session's
  // asynchronous calls come through here. Errors: kLimit when the queue is full, kUnavailable in a
  // forked child.
  using Call = std::function<Status(std::chrono::milliseconds left, std::uint64_t& count)>;
  Status Start(std::uint64_t tag, std::chrono::milliseconds timeout, Call call);

 private:
  class KVCOVE_INTERNAL Impl;
  const unsigned forks_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove
