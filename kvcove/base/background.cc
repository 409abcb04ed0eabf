// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

#include "kvcove/base/posix.h"

namespace kvcove {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);

void RunOn(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<unsigned>(cpu), &set);
  }
  (void)sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

// The short steps and the rests remain where it is refused.
void LowerThisThread(Priority priority) {
  const sched_param none{};
  if (priority == Priority::kIdle) {
    (void)sched_setscheduler(0, SCHED_IDLE, &none);
    return;
  }
  (void)sched_setscheduler(0, SCHED_BATCH, &none);
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

void BackgroundWork::Start(const std::string& name, Priority priority, Step step,
                           const std::vector<int>& cpus) {
  Stop();
  {
    const MutexLock lock(mutex_);
    stopping_ = false;
  }
  ended_ = false;
  tid_ = 0;  // of the thread before, it may be another one's by now
  thread_ = StartThread(name, [this, priority, cpus, step = std::move(step)] {
    Run(priority, cpus, step);
    ended_ = true;
  });
}

void BackgroundWork::Stop() {
  End();
  if (thread_.joinable()) thread_.join();
}

bool BackgroundWork::StopWithin(std::int64_t wait_ns) {
  End();
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
  while (!ended_) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kLook);
  }
  if (thread_.joinable()) thread_.join();
  return true;
}

// The step that runs is the last one, and gets a core soon.
void BackgroundWork::End() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  const pid_t tid = tid_;
  if (ended_ || tid == 0) return;
  const sched_param none{};
  (void)sched_setscheduler(tid, SCHED_OTHER, &none);
}

void BackgroundWork::Run(Priority priority, const std::vector<int>& cpus, const Step& step) {
  RunOn(cpus);
  LowerThisThread(priority);
  tid_ = gettid();
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const std::int64_t rest_ns = step();
    if (rest_ns < 0) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(rest_ns);
    const MutexLock lock(mutex_);
    while (!stopping_ && std::chrono::steady_clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
  }
}

}  // namespace kvcove
