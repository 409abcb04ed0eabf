// SPDX-License-Identifier: Apache-2.0
// Threads that run asynchronous calls, and the queues where they end.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/pool/pool.h"

namespace kvcove::pool {

// Thread-safe.
class QueueImpl {
 public:
  explicit QueueImpl(std::size_t capacity);
  // False when the queue is full. Each true one must be followed by one final Push.
  bool Reserve();
  void Push(Completion completion);
  std::optional<Completion> Next(std::chrono::milliseconds timeout);
  void WaitForAll();
  int event_fd() const { return event_.get(); }

 private:
  const std::size_t capacity_;
  UniqueFd event_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Completion> done_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t running_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

struct AsyncTask {
  std::shared_ptr<QueueImpl> queue;
  std::uint64_t tag = 0;
  std::int64_t deadline_ns = 0;
  std::function<Status(std::chrono::milliseconds left, std::uint64_t& count)> call;
};

// A few threads that run tasks in order, and one that tells when a running one passes its deadline.
// They start with the first task. Destruction runs what is queued (late tasks end at once).
class Executor {
 public:
  explicit Executor(const Clock& clock) : clock_(clock) {}
  ~Executor();
  void Post(AsyncTask task);

 private:
  struct Running {
    const AsyncTask* task;
    bool told = false;
  };
  void Run();
  void Watch();

  static constexpr int kThreads = 4;
  const Clock& clock_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<AsyncTask> queue_ KVCOVE_GUARDED_BY(mutex_);
  std::list<Running> running_ KVCOVE_GUARDED_BY(mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::pool
