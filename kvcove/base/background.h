// SPDX-License-Identifier: Apache-2.0
// Work that must disturb nobody: a thread that works in short steps with rests between them.
//
// A step may hold locks inside the kernel: that of the process's address space, those of the pages
// that it populates. If the thread is preempted inside a step, everybody who needs such a lock
// waits until the thread runs again. At the lowest priority that is seconds later on a busy host.
// The thread therefore has a low priority, but not the lowest: it still gets about a tenth of a
// busy core, and releases what it holds within milliseconds.
//
// With kIdle the thread also asks a second thread, the gate, before each step. The gate has the
// lowest priority and holds nothing, so it answers when a core has nothing else to do. On a busy
// host no step begins.
//
// For the same reason a step takes no lock that other threads use.
#pragma once

#include <sched.h>
#include <semaphore.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"

namespace kvcove {

enum class Priority {
  kIdle,  // kLow, and a step begins only where a core would be idle
  kLow,   // SCHED_BATCH, nice 10
};

// Gives the calling thread kLow from now on. A sandbox may refuse it, and then nothing changes.
void LowerThisThread();

// Start and Stop belong to one thread.
class BackgroundWork {
 public:
  // Does a little, and says for how many nanoseconds to rest before the next step; kDone: there is
  // none.
  using Step = std::function<std::int64_t()>;
  static constexpr std::int64_t kDone = -1;

  ~BackgroundWork() { Stop(); }

  // `cpus`: where the thread may run; empty: anywhere. A priority or a place that the host refuses
  // changes nothing else. Errors: as StartThread; then nothing runs.
  Status Start(const std::string& name, Priority priority, Step step,
               const std::vector<int>& cpus = {});
  // Waits for the step that runs now; no further one begins. May be called again. A gate gets the
  // usual priority to end, where the process may give it: else it ends late on a busy host.
  void Stop();
  // Stop, but waits for `wait_ns` at most, and for no gate: the next Start, or Stop, joins that.
  // False: the step still runs, and is the last one.
  bool StopWithin(std::int64_t wait_ns);

 private:
  // A counter that threads wait for. Unlike a mutex, nobody holds it.
  class Semaphore {
   public:
    Semaphore() { sem_init(&count_, 0, 0); }
    ~Semaphore() { sem_destroy(&count_); }
    Semaphore(const Semaphore&) = delete;
    Semaphore& operator=(const Semaphore&) = delete;
    void Drain() {
      while (sem_trywait(&count_) == 0) {
      }
    }
    void Post() { sem_post(&count_); }
    void Wait() {
      while (sem_wait(&count_) != 0) {
      }
    }

   private:
    sem_t count_;
  };

  void End();
  void Run(Priority priority, const std::vector<int>& cpus, const Step& step);
  void RunGate(const std::vector<int>& cpus);
  // Until it stops or the rest is over.
  void Rest(std::int64_t rest_ns);

  Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> stopping_ = false;  // becomes true under the mutex, so that no rest misses it
  // Not under the mutex: a waiter would depend on a thread that may not run for long.
  std::atomic<bool> ended_ = true;
  std::atomic<pid_t> gate_tid_ = 0;
  Semaphore asked_;    // the gate, for a step
  Semaphore granted_;  // by the gate
  std::thread thread_;
  std::thread gate_;
};

}  // namespace kvcove
