// SPDX-License-Identifier: Apache-2.0
// Work that must disturb nobody: a thread that runs at a low priority, in short steps with rests
// between them.
//
// The steps are short because of what a step may hold inside the kernel (the lock of the process's
// address space, while pages are mapped): a thread of low priority that is preempted there keeps
// others waiting until it runs again. For the same reason a step takes no lock that other threads
// use. kIdle leaves a busy core alone altogether; kLow still gets about a tenth of one, so that it
// ends, and what it holds is released within milliseconds. Use kLow inside processes of others.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"

namespace kvcove {

enum class Priority {
  kIdle,  // SCHED_IDLE
  kLow,   // SCHED_BATCH, nice 10
};

// Of the calling thread, from now on. A sandbox may refuse it, and then nothing changes.
void LowerThisThread(Priority priority);

// Start and Stop belong to one thread.
class BackgroundWork {
 public:
  // Does a little, and says for how many nanoseconds to rest before the next step; kDone: there is
  // none.
  using Step = std::function<std::int64_t()>;
  static constexpr std::int64_t kDone = -1;

  ~BackgroundWork() { Stop(); }

  // `cpus`: where the thread may run; empty: anywhere. A priority or a place that the host refuses
  // changes nothing else.
  void Start(const std::string& name, Priority priority, Step step,
             const std::vector<int>& cpus = {});
  // Waits for the step that runs now; no further one begins. May be called again. The thread gets
  // the usual priority for that, where the process may give it: one of idle priority ends a second
  // late on a busy host.
  void Stop();
  // Stop, but waits for `wait_ns` at most. False: the step still runs, and is the last one.
  bool StopWithin(std::int64_t wait_ns);

 private:
  void End();
  void Run(Priority priority, const std::vector<int>& cpus, const Step& step);

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Not under the mutex: a waiter would depend on a thread that may not run for long.
  std::atomic<bool> ended_ = true;
  std::atomic<pid_t> tid_ = 0;
  std::thread thread_;
};

}  // namespace kvcove
