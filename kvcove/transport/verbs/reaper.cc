// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/reaper.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/log.h"

namespace kvcove::transport::verbs {

// The list is never destroyed, so that no memory is reused while static objects end, either.
void Reaper::KeepForEver(Dying dying) {
  static Mutex mutex;
  static auto* const kept = new std::vector<Dying>();
  const MutexLock lock(mutex);
  kept->push_back(std::move(dying));
}

Result<std::unique_ptr<Reaper>> Reaper::Start(const ReaperOptions& options, const Clock& clock) {
  std::unique_ptr<Reaper> reaper(new Reaper(options, clock));
  if (options.thread) {
    KVCOVE_ASSIGN(reaper->thread_,
                  StartThread("kvcove-reaper", [raw = reaper.get()] { raw->Loop(); }));
  }
  return reaper;
}

Reaper::~Reaper() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  JoinIfStarted(thread_);
  (void)Advance();  // lanes that came behind the thread's last look
  const auto until = std::chrono::steady_clock::now() + options_.close;
  while (stats().dying > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(options_.first_pause);
    (void)Advance();
  }
  std::vector<Dying> left;
  {
    const MutexLock lock(mutex_);
    left.swap(dying_);
  }
  if (!left.empty()) {
    LogError("{} RDMA queue pairs do not end; the memory that they use is kept", left.size());
  }
  for (Dying& dying : left) KeepForEver(std::move(dying));
}

void Reaper::Take(std::unique_ptr<Lane> lane, std::function<void()> on_quiet) {
  if (forks_ != ForkCount()) {
    // A thread of the parent may have held the mutex at the fork, so it is not taken.
    (void)lane.release();
    (void)new std::function<void()>(std::move(on_quiet));  // NOLINT: never freed
    return;
  }
  const std::int64_t now_ns = clock_.NowNs();
  const MutexLock lock(mutex_);
  dying_.push_back({.lane = std::move(lane), .on_quiet = std::move(on_quiet), .since_ns = now_ns});
  added_ = true;
  work_.NotifyAll();
}

ReaperStats Reaper::stats() const {
  const MutexLock lock(mutex_);
  return {.dying = dying_.size() + looked_at_, .stuck = stuck_, .gone = gone_};
}

void Reaper::Loop() {
  std::chrono::microseconds pause = options_.first_pause;
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (!stopping_ && dying_.empty()) work_.Wait(mutex_);
      if (stopping_) return;
    }
    if (Advance()) {
      pause = options_.first_pause;
      continue;
    }
    const MutexLock lock(mutex_);
    if (!stopping_ && !added_) work_.WaitFor(mutex_, pause);
    // Most devices confirm an end within microseconds. One that does not is asked ten times a
    // second in the end, since nobody waits for it any more but memory that stays busy. A new lane
    // is looked at soon, however long others have been stuck.
    pause =
        std::exchange(added_, false) ? options_.first_pause : std::min(2 * pause, options_.pause);
  }
}

bool Reaper::Advance() {
  // Looked at outside of the list: Take() must not wait for a device. `looked_at_` counts them
  // meanwhile, so that nobody takes an empty list for the end of all lanes.
  std::vector<Dying> looked;
  {
    const MutexLock lock(mutex_);
    looked.swap(dying_);
    looked_at_ = looked.size();
  }
  std::vector<std::function<void()>> quiet;
  std::erase_if(looked, [&](Dying& dying) {
    if (!Look(dying)) return false;
    quiet.push_back(std::move(dying.on_quiet));
    return true;
  });
  const auto stuck = std::count_if(looked.begin(), looked.end(),
                                   [this](const Dying& dying) { return IsStuck(dying); });
  {
    const MutexLock lock(mutex_);
    for (Dying& dying : looked) dying_.push_back(std::move(dying));
    looked_at_ = 0;
    stuck_ = static_cast<std::size_t>(stuck);
    gone_ += quiet.size();
  }
  // Behind the counts, so that one who is notified does not find the lane among the dying.
  for (const std::function<void()>& notify : quiet) {
    if (notify) notify();
  }
  return !quiet.empty();
}

bool Reaper::IsStuck(const Dying& dying) const {
  return clock_.NowNs() - dying.since_ns > std::chrono::nanoseconds(options_.stuck).count();
}

// Returns true, and destroys the lane, if it is gone. The lane ends before `on_quiet` is called,
// which may end the memory that it refers to.
bool Reaper::Look(Dying& dying) {
  const auto gone = dying.lane->Retire();
  if (gone && *gone) {
    dying.lane.reset();
    return true;
  }
  if (IsStuck(dying) && !std::exchange(dying.logged, true)) {
    LogWarn("an RDMA queue pair does not end, so its buffers stay busy: {}",
            gone ? "its device has not reported the end of all work" : gone.error().ToString());
  }
  return false;
}

}  // namespace kvcove::transport::verbs
