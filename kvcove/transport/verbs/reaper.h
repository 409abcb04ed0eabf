// SPDX-License-Identifier: Apache-2.0
// Brings lanes to their end, and reports for each that the device touches no memory for it any
// more. One thread (kvcove-reaper) makes the calls that wait for a device; it sleeps while no lane
// is dying.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/transport/verbs/lane.h"

namespace kvcove::transport::verbs {

struct ReaperOptions {
  std::chrono::microseconds first_pause{200};  // between two looks at a lane; doubles up to `pause`
  std::chrono::microseconds pause{100'000};
  std::chrono::milliseconds stuck{1000};  // a lane that dies for longer is counted and logged
  std::chrono::milliseconds close{5000};  // the destructor's wait for the device
  bool thread = true;                     // false: tests call Advance
};

struct ReaperStats {
  std::size_t dying = 0;
  std::size_t stuck = 0;  // of these
  std::uint64_t gone = 0;
};

// Thread-safe.
class Reaper {
 public:
  // Errors: kLimit where no thread can be started.
  static Result<std::unique_ptr<Reaper>> Start(const ReaperOptions& options, const Clock& clock);
  // Waits for the lanes that are left. Those that do not end in time, and all that their `on_quiet`
  // holds, are kept until the process ends.
  ~Reaper();

  // Retires the lane, in any state, and returns at once. Calls `on_quiet` once the lane is gone,
  // without a lock, by the reaper's thread or in the destructor. No clock ever does that: a lane
  // whose device does not confirm its end remains, and so does all memory that `on_quiet` holds.
  // In a forked child, whose lanes are the parent's, both are kept until the process ends.
  void Take(std::unique_ptr<Lane> lane, std::function<void()> on_quiet);
  ReaperStats stats() const;
  // Looks at each dying lane once. Returns true if one is gone now. For one thread at a time.
  bool Advance();

 private:
  struct Dying {
    std::unique_ptr<Lane> lane;
    std::function<void()> on_quiet;
    std::int64_t since_ns = 0;
    bool logged = false;
  };

  Reaper(const ReaperOptions& options, const Clock& clock)
      : forks_(ForkCount()), options_(options), clock_(clock) {}
  static void KeepForEver(Dying dying);
  void Loop();
  bool Look(Dying& dying);
  bool IsStuck(const Dying& dying) const;

  const unsigned forks_;
  const ReaperOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar work_;  // notified of a lane, and of the end
  std::vector<Dying> dying_ KVCOVE_GUARDED_BY(mutex_);
  std::size_t looked_at_ KVCOVE_GUARDED_BY(mutex_) = 0;  // by Advance, outside of dying_
  std::size_t stuck_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t gone_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool added_ KVCOVE_GUARDED_BY(mutex_) = false;  // a lane, since the last pause
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcove::transport::verbs
