// SPDX-License-Identifier: Apache-2.0
// Threads (kvcove-worker) for the calls that may wait, for a disk or a lease: an event loop never
// waits. One thread runs when there is nothing to do. A thread that takes work up and leaves none
// that is free starts a further one first. A thread that has had no work for some seconds ends,
// unless it is the only free one.
//
// No caller of Post starts a thread: a new thread waits for the lock of the process's address space
// to get a stack, and that may be held while memory is populated. So one thread is always free, or
// about to be, for the work that comes next.
//
// One mutex guards the queue and the list of threads. It is held neither while work runs nor while
// a thread is started or joined.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/result.h"

namespace kvcove::rpc {

// Thread-safe, but for Start, Pause and Resume. Destruction runs what is queued, then joins;
// without threads nothing runs.
class Workers {
 public:
  static constexpr std::chrono::seconds kRest{5};

  // `most`: threads, at least 1. `rest`: how long one may have no work before it ends.
  explicit Workers(std::size_t most, std::chrono::nanoseconds rest = kRest)
      : most_(most), rest_(rest) {}
  // Starts the first thread, unless one runs. Errors: as StartThread; it may be called again. A
  // thread that cannot be started later is logged, and work waits for the others.
  Status Start() {
    {
      const MutexLock lock(mutex_);
      if (!threads_.empty()) return {};
      ++free_;
    }
    auto thread = StartThread("kvcove-worker", [this] { Run(); });
    const MutexLock lock(mutex_);
    if (thread) {
      threads_.push_back(std::move(*thread));
      return {};
    }
    --free_;
    return std::unexpected(thread.error());
  }
  ~Workers() {
    std::vector<std::thread> all;
    std::vector<std::thread> ended;
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      paused_ = false;
      changed_.NotifyAll();
      // Nothing ends by itself any more, and nothing is started behind this.
      while (starting_) quiet_.Wait(mutex_);
      all = std::exchange(threads_, {});
      ended = std::exchange(ended_, {});
    }
    for (std::thread& thread : all) thread.join();
    for (std::thread& thread : ended) thread.join();
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
  // Threads that run now.
  std::size_t threads() const {
    const MutexLock lock(mutex_);
    return threads_.size();
  }

 private:
  static constexpr std::size_t kMaxQueued = 4096;

  void Run() {
    while (true) {
      std::function<void()> work;
      std::vector<std::thread> ended;
      bool starts = false;
      {
        const MutexLock lock(mutex_);
        const bool goes_on = AwaitWork();
        ended.swap(ended_);
        if (!goes_on) LeaveList();
        if (goes_on && !queue_.empty()) {
          work = std::move(queue_.front());
          queue_.pop_front();
          --free_;
          ++running_;
          starts = MayStart();
        }
      }
      for (std::thread& thread : ended) thread.join();  // they have nothing left to do
      if (!work) return;
      while (starts) starts = StartOne();
      work();
      // Before running_ drops: the captures may own what a successor takes over after AwaitQuiet.
      work = {};
      const MutexLock lock(mutex_);
      ++free_;
      if (--running_ == 0) quiet_.NotifyAll();
    }
  }

  // Returns when there is work, or all is to end. False: this thread has rested for long enough.
  bool AwaitWork() KVCOVE_REQUIRES(mutex_) {
    while ((queue_.empty() && !stopping_) || paused_) {
      // The only free one stays, for Post starts none, and nothing wakes it but work.
      if (free_ == 1) {
        changed_.Wait(mutex_);
        continue;
      }
      const bool rested = !changed_.WaitFor(mutex_, rest_);
      // A thread that is not listed yet stays, too.
      if (rested && free_ > 1 && queue_.empty() && !stopping_ && !paused_ &&
          Own() != threads_.end()) {
        return false;
      }
    }
    return true;
  }
  std::vector<std::thread>::iterator Own() KVCOVE_REQUIRES(mutex_) {
    return std::ranges::find(threads_, std::this_thread::get_id(),
                             [](const std::thread& thread) { return thread.get_id(); });
  }
  void LeaveList() KVCOVE_REQUIRES(mutex_) {
    --free_;
    const auto own = Own();
    ended_.push_back(std::move(*own));
    threads_.erase(own);
  }

  // True: the caller is to start a thread, which counts as free from now on.
  bool MayStart() KVCOVE_REQUIRES(mutex_) {
    if (free_ > 0 || threads_.size() >= most_ || starting_ || stopping_) return false;
    starting_ = true;
    ++free_;
    return true;
  }
  // Returns whether a further one is to be started: the new thread may have taken work meanwhile.
  bool StartOne() {
    auto thread = StartThread("kvcove-worker", [this] { Run(); });
    std::size_t running = 0;
    {
      const MutexLock lock(mutex_);
      starting_ = false;
      quiet_.NotifyAll();
      if (thread) {
        threads_.push_back(std::move(*thread));
        refused_ = false;
        return MayStart();
      }
      --free_;
      if (std::exchange(refused_, true)) return false;
      running = threads_.size();
    }
    LogWarn("a further worker cannot be started, so calls wait for the {} that run: {}", running,
            thread.error().detail);
    return false;
  }

  mutable Mutex mutex_;
  CondVar changed_;
  CondVar quiet_;  // nothing runs, or nothing is being started
  std::deque<std::function<void()>> queue_ KVCOVE_GUARDED_BY(mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool paused_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::size_t running_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::size_t free_ KVCOVE_GUARDED_BY(mutex_) = 0;   // threads without work
  bool starting_ KVCOVE_GUARDED_BY(mutex_) = false;  // a thread starts another one
  bool refused_ KVCOVE_GUARDED_BY(mutex_) = false;   // the last one could not be started
  std::vector<std::thread> threads_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<std::thread> ended_ KVCOVE_GUARDED_BY(mutex_);  // to be joined
  const std::size_t most_;
  const std::chrono::nanoseconds rest_;
};

}  // namespace kvcove::rpc
