// SPDX-License-Identifier: Apache-2.0
// A control store in memory, whose facts end with the process: for a pool without a data directory.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/store/control_store.h"

namespace kvcove::master {

// Thread-safe. Each commit counts as durable at once. Calls `done` within its own Commit, or within
// another thread's Commit that runs at that time.
class MemoryStore final : public ControlStore {
 public:
  void Commit(std::vector<FactChange> changes, Done done) override {
    if (Status status = CheckTransaction(changes); !status) {
      done(std::unexpected<Error>(std::move(status).error()));
      return;
    }
    MutexLock lock(mutex_);
    done_.emplace_back(++revision_, std::move(done));
    ApplyTransaction(std::move(changes), revision_, facts_);
    // One call runs `done` for all others, so that revisions arrive in order, and a `done` that
    // commits does not nest.
    if (notifies_) return;
    notifies_ = true;
    while (!done_.empty()) {
      auto [revision, next] = std::move(done_.front());
      done_.pop_front();
      mutex_.unlock();
      next(revision);
      next = nullptr;  // before the lock: destructors of its captures may commit, too
      mutex_.lock();
    }
    notifies_ = false;
  }

  Facts facts() const {
    MutexLock lock(mutex_);
    return facts_;
  }

 private:
  mutable Mutex mutex_;
  Facts facts_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t revision_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::deque<std::pair<std::uint64_t, Done>> done_ KVCOVE_GUARDED_BY(mutex_);
  bool notifies_ KVCOVE_GUARDED_BY(mutex_) = false;
};

}  // namespace kvcove::master
