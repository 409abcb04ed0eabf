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
void LowerThisThread() {
  const sched_param none{};
  (void)sched_setscheduler(0, SCHED_BATCH, &none);
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);
}

Status BackgroundWork::Start(const std::string& name, Priority priority, Step step,
                             const std::vector<int>& cpus) {
  Stop();
  stopping_ = false;
  ended_ = false;
  asked_.Drain();
  granted_.Drain();
  Status started;
  if (priority == Priority::kIdle) {
    auto gate = StartThread("kvcove-idle", [this, cpus] { RunGate(cpus); });
    if (gate) gate_ = std::move(*gate);
    if (!gate) started = std::unexpected(gate.error());
  }
  if (started) {
    auto thread = StartThread(name, [this, priority, cpus, step = std::move(step)] {
      Run(priority, cpus, step);
      ended_ = true;
      asked_.Post();  // the gate ends, too
    });
    if (thread) thread_ = std::move(*thread);
    if (!thread) started = std::unexpected(thread.error());
  }
  if (!started) {
    ended_ = true;
    asked_.Post();
    Stop();
  }
  return started;
}

void BackgroundWork::Stop() {
  End();
  JoinIfStarted(thread_);
  JoinIfStarted(gate_);
}

bool BackgroundWork::StopWithin(std::int64_t wait_ns) {
  End();
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
  while (!ended_) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kLook);
  }
  JoinIfStarted(thread_);
  return true;
}

// The step that runs is the last one.
void BackgroundWork::End() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  granted_.Post();
  const pid_t gate = gate_tid_;
  if (gate == 0) return;
  const sched_param none{};
  (void)sched_setscheduler(gate, SCHED_OTHER, &none);
}

void BackgroundWork::Run(Priority priority, const std::vector<int>& cpus, const Step& step) {
  RunOn(cpus);
  LowerThisThread();
  while (!stopping_) {
    if (priority == Priority::kIdle) {
      asked_.Post();
      granted_.Wait();
      if (stopping_) return;
    }
    const std::int64_t rest_ns = step();
    if (rest_ns < 0) return;
    Rest(rest_ns);
  }
}

void BackgroundWork::RunGate(const std::vector<int>& cpus) {
  RunOn(cpus);
  const sched_param none{};
  (void)sched_setscheduler(0, SCHED_IDLE, &none);
  gate_tid_ = gettid();
  while (true) {
    asked_.Wait();
    if (stopping_ || ended_) break;
    granted_.Post();
  }
  gate_tid_ = 0;  // another thread may be given it
}

void BackgroundWork::Rest(std::int64_t rest_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(rest_ns);
  const MutexLock lock(mutex_);
  while (!stopping_ && std::chrono::steady_clock::now() < until) {
    changed_.WaitUntil(mutex_, until);
  }
}

}  // namespace kvcove
