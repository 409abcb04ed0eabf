// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/engine_ends.h"

#include <algorithm>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"

namespace kvcove::pool {
namespace {

constexpr std::size_t kBatch = 256;
// A master has as many bindings at most, so further entries would be of no use.
constexpr std::size_t kMaxWaiting = 65536;
constexpr std::int64_t kFirstPauseNs = 50 * kMillisecond;
constexpr std::int64_t kMaxPauseNs = kSecond;

}  // namespace

EngineEnds::EngineEnds(Tell tell) : tell_(std::move(tell)) {}

Status EngineEnds::Start() {
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-ends", [this] { Run(); }));
  return {};
}

EngineEnds::~EngineEnds() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  JoinIfStarted(thread_);
  if (const std::size_t left = waiting(); left > 0) {
    LogWarn("the master does not know that {} engines have ended: it did not answer", left);
  }
}

void EngineEnds::Add(const Engine& engine) {
  const MutexLock lock(mutex_);
  if (waiting_.size() >= kMaxWaiting) return;
  waiting_.insert(engine);
  changed_.NotifyAll();
}

bool EngineEnds::AwaitTold(const Engine& engine, std::int64_t deadline_ns) {
  const MutexLock lock(mutex_);
  if (waiting_.contains(engine)) {
    hurry_ = true;
    changed_.NotifyAll();
  }
  while (waiting_.contains(engine) || telling_.contains(engine)) {
    const std::int64_t left_ns = deadline_ns - SystemClock::Instance().NowNs();
    if (left_ns <= 0) return false;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(left_ns));
  }
  return true;
}

std::size_t EngineEnds::waiting() const {
  const MutexLock lock(mutex_);
  return waiting_.size() + telling_.size();
}

bool EngineEnds::TellSome() {
  std::vector<Engine> batch;
  {
    const MutexLock lock(mutex_);
    hurry_ = false;
    while (!waiting_.empty() && telling_.size() < kBatch) {
      telling_.insert(waiting_.extract(waiting_.begin()));
    }
    batch.assign(telling_.begin(), telling_.end());
  }
  const std::size_t told = tell_(batch);
  const MutexLock lock(mutex_);
  // Unanswered ends return to the queue under the same lock under which they leave the batch, so
  // that AwaitTold never finds an engine in neither of them before the master has answered.
  telling_.clear();
  for (std::size_t i = told; i < batch.size(); ++i) waiting_.insert(std::move(batch[i]));
  changed_.NotifyAll();
  return told >= batch.size();
}

void EngineEnds::Run() {
  std::int64_t pause_ns = kFirstPauseNs;
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;  // stopping, and all is reported
    }
    if (TellSome()) {
      pause_ns = kFirstPauseNs;
      continue;
    }
    if (!Pause(pause_ns)) return;
    pause_ns = std::min(2 * pause_ns, kMaxPauseNs);
  }
}

bool EngineEnds::Pause(std::int64_t pause_ns) {
  const std::int64_t until_ns = SystemClock::Instance().NowNs() + pause_ns;
  const MutexLock lock(mutex_);
  while (!stopping_ && !hurry_) {
    const std::int64_t left_ns = until_ns - SystemClock::Instance().NowNs();
    if (left_ns <= 0) return true;
    changed_.WaitFor(mutex_, std::chrono::nanoseconds(left_ns));
  }
  return !stopping_;
}

}  // namespace kvcove::pool
