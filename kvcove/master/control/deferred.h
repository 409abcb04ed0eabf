// SPDX-License-Identifier: Apache-2.0
// Actions that are decided under a lock and run after it: answers to callers, and commits to the
// store.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

// Takes the answer of a call: within the call or later, on any thread, and without the master's
// locks.
template <typename T>
using Reply = std::function<void(Result<T>)>;

// Passes transactions to the store in the order of Add. Add may be called under a lock that the
// store's answers need, Flush only without one. Thread-safe.
class OrderedCommits {
 public:
  OrderedCommits(ControlStore& store, std::uint64_t revision)
      : store_(store), revision_(revision) {}

  void Add(std::vector<FactChange> changes, ControlStore::Done done) {
    const MutexLock lock(mutex_);
    waiting_.push_back({.changes = std::move(changes), .done = std::move(done)});
  }

  // Passes all waiting transactions to the store. The caller must hold no lock. One thread at a
  // time does this, also for transactions that other threads add meanwhile.
  void Flush() {
    {
      const MutexLock lock(mutex_);
      if (flushing_) return;
      flushing_ = true;
    }
    while (true) {
      Commit next;
      {
        // Checks the queue and gives the role up in one hold: a commit that is added later finds
        // `flushing_` false, and its own Flush passes it on. In two holds it could stay behind.
        const MutexLock lock(mutex_);
        if (waiting_.empty()) {
          flushing_ = false;
          return;
        }
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      ExpectNoLock("a commit");
      store_.Commit(std::move(next.changes),
                    [this, done = std::move(next.done)](Result<std::uint64_t> revision) {
                      if (revision) revision_.store(*revision, std::memory_order_release);
                      done(std::move(revision));
                    });
    }
  }

  // Returns the revision of the latest durable transaction.
  std::uint64_t revision() const { return revision_.load(std::memory_order_acquire); }

 private:
  struct Commit {
    std::vector<FactChange> changes;
    ControlStore::Done done;
  };
  ControlStore& store_;
  std::atomic<std::uint64_t> revision_;
  Mutex mutex_;
  bool flushing_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::deque<Commit> waiting_ KVCOVE_GUARDED_BY(mutex_);
};

// Runs the added actions, then flushes the commits, when it is destroyed. Declare it before the
// MutexLock, so that the lock is released first. Belongs to one thread.
class Deferred {
 public:
  explicit Deferred(OrderedCommits& commits) : commits_(commits) {}
  ~Deferred() {
    if (!runs_.empty()) ExpectNoLock("an answer of the master");
    for (const std::function<void()>& run : runs_) run();
    commits_.Flush();
  }
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

  void Add(std::function<void()> run) { runs_.push_back(std::move(run)); }
  template <typename T>
  void Answer(const Reply<T>& reply, Result<T> answer) {
    Add([reply, answer = std::move(answer)] { reply(answer); });
  }

 private:
  OrderedCommits& commits_;
  std::vector<std::function<void()>> runs_;
};

}  // namespace kvcove::master
