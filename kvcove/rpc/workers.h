// SPDX-License-Identifier: Apache-2.0
// Threads for the calls that may wait (for a disk, for leases): an event loop never does.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"

namespace kvcove::rpc {

// Thread-safe. Destruction runs what is queued, then joins.
class Workers {
 public:
  explicit Workers(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.push_back(StartThread("kvcove-worker", [this] { Run(); }));
    }
  }
  ~Workers() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False when too much is waiting already.
  bool Post(std::function<void()> work) {
    const MutexLock lock(mutex_);
    if (queue_.size() >= kMaxQueued) return false;
    queue_.push_back(std::move(work));
    changed_.NotifyOne();
    return true;
  }

 private:
  static constexpr std::size_t kMaxQueued = 4096;

  void Run() {
    while (true) {
      std::function<void()> work;
      {
        const MutexLock lock(mutex_);
        while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ KVCOVE_GUARDED_BY(mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kvcove::rpc
