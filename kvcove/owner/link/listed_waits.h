// SPDX-License-Identifier: Apache-2.0
// Callers that wait for the master's answers about their puts, without a thread each. Each gets the
// answer, or kNotListed at its deadline or when the waits end. Thread-safe.
//
//   Add -> answered, by the callback that Add returns | ended, by End
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove::owner {

class ListedWaits {
 public:
  using Done = std::function<void(std::vector<Code>)>;

  // Adds a wait for `count` outcomes. `done` is called once, without a lock: by the callback that
  // this returns, or by End if that is earlier. The callback may outlive the wait, and must not
  // outlive this object.
  std::function<void(std::span<const Code>)> Add(std::size_t count, std::int64_t deadline_ns,
                                                 Done done) {
    const MutexLock lock(mutex_);
    const std::uint64_t number = next_++;
    waits_.emplace(number,
                   Wait{.count = count, .deadline_ns = deadline_ns, .done = std::move(done)});
    return [this, number](std::span<const Code> codes) {
      if (const Done waiting = Take(number)) waiting({codes.begin(), codes.end()});
    };
  }

  // Ends the waits whose deadline is over at `now_ns`, or all.
  void End(std::int64_t now_ns, bool all) {
    std::vector<Wait> over;
    {
      const MutexLock lock(mutex_);
      for (auto at = waits_.begin(); at != waits_.end();) {
        if (!all && at->second.deadline_ns > now_ns) {
          ++at;
          continue;
        }
        over.push_back(std::move(at->second));
        at = waits_.erase(at);
      }
    }
    for (const Wait& wait : over) wait.done(std::vector<Code>(wait.count, Code::kNotListed));
  }

 private:
  struct Wait {
    std::size_t count = 0;
    std::int64_t deadline_ns = 0;
    Done done;
  };
  // Takes the wait's callback; empty: the wait has ended. Only one of two threads gets it.
  Done Take(std::uint64_t number) {
    const MutexLock lock(mutex_);
    const auto at = waits_.find(number);
    if (at == waits_.end()) return {};
    Done done = std::move(at->second.done);
    waits_.erase(at);
    return done;
  }

  Mutex mutex_;
  std::map<std::uint64_t, Wait> waits_ KVCOVE_GUARDED_BY(mutex_);  // some tens at a time
  std::uint64_t next_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcove::owner
