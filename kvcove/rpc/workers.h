// SPDX-License-Identifier: Apache-2.0
// Threads (kvcove-worker) for the calls that may wait, for a disk or a lease: an event loop never
// waits. One mutex guards the queue and is never held while work runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/result.h"

namespace kvcove::rpc {

// Thread-safe, but for Start, Pause and Resume. Destruction runs what is queued, then joins;
// without threads nothing runs.
class Workers {
 public:
  explicit Workers(std::size_t threads) : count_(threads) {}
  // Starts the threads that do not run yet. Errors: as StartThread; it may be called again.
  Status Start() {
    while (threads_.size() < count_) {
      KVCOVE_ASSIGN(std::thread thread, StartThread("kvcove-worker", [this] { Run(); }));
      threads_.push_back(std::move(thread));
    }
    return {};
  }
  ~Workers() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      paused_ = false;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Queues work. False: 4,096 pieces of work are queued already.
  bool Post(std::function<void()> work) {
    const MutexLock lock(mutex_);
    if (queue_.size() >= kMaxQueued) return false;
    queue_.push_back(std::move(work));
    changed_.NotifyOne();
    return true;
  }

  // Begins no more work until Resume; queued work remains.
  void Pause() {
    const MutexLock lock(mutex_);
    paused_ = true;
  }
  // Waits for running work, while paused. False: some still runs after `wait_ns`.
  bool AwaitQuiet(std::int64_t wait_ns) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
    const MutexLock lock(mutex_);
    while (running_ > 0) {
      if (!quiet_.WaitUntil(mutex_, until) && running_ > 0) return false;
    }
    return true;
  }
  void Resume() {
    const MutexLock lock(mutex_);
    paused_ = false;
    changed_.NotifyAll();
  }

 private:
  static constexpr std::size_t kMaxQueued = 4096;

  void Run() {
    while (true) {
      std::function<void()> work;
      {
        const MutexLock lock(mutex_);
        while ((queue_.empty() && !stopping_) || paused_) changed_.Wait(mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
        ++running_;
      }
      work();
      // Before running_ drops: the captures may own what a successor takes over after AwaitQuiet.
      work = {};
      const MutexLock lock(mutex_);
      if (--running_ == 0) quiet_.NotifyAll();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  CondVar quiet_;
  std::deque<std::function<void()>> queue_ KVCOVE_GUARDED_BY(mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool paused_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::size_t running_ KVCOVE_GUARDED_BY(mutex_) = 0;
  const std::size_t count_;
  std::vector<std::thread> threads_;
};

}  // namespace kvcove::rpc
