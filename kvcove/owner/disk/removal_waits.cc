// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/removal_waits.h"

#include <bit>
#include <chrono>
#include <iterator>
#include <utility>

#include "kvcove/base/posix.h"

namespace kvcove::owner {
namespace {

Status RemovalNotProven() {
  return Fail(Code::kTimeout, "the disk has not proven the removal in time; repeat it");
}

}  // namespace

Status RemovalWaits::Start() {
  if (thread_.joinable()) return {};
  {
    const MutexLock lock(mutex_);
    stopping_ = false;
  }
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-strike", [this] { Run(); }));
  return {};
}

void RemovalWaits::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  EndAll();
  JoinIfStarted(thread_);
}

std::size_t RemovalWaits::size() const {
  const MutexLock lock(mutex_);
  return waits_.size();
}

// Looks at the wait once it is added: the disk may have proven the removal just before, and Settle
// has not met the wait then. Does not look once all waits have been ended: an owner that has left a
// disk behind looks at it no more, which would count as a proof.
void RemovalWaits::Add(std::shared_ptr<DisksRemoval> removal, std::int64_t deadline_ns, Done done) {
  std::vector<Ended> ended;
  {
    const MutexLock lock(mutex_);
    const auto added = waits_.emplace(
        next_++,
        Wait{.removal = std::move(removal), .deadline_ns = deadline_ns, .done = std::move(done)});
    const auto wait = added.first;
    std::optional<Status> outcome = RemovalNotProven();
    if (!paused_ && !stopping_) outcome = OutcomeOf(wait->second);
    if (outcome) End(wait, std::move(*outcome), ended);
  }
  Answer(std::move(ended));
}

void RemovalWaits::Settle() {
  std::vector<Ended> ended;
  {
    const MutexLock lock(mutex_);
    for (auto wait = waits_.begin(); wait != waits_.end();) {
      std::optional<Status> outcome = OutcomeOf(wait->second);
      wait = outcome ? End(wait, std::move(*outcome), ended) : std::next(wait);
    }
  }
  Answer(std::move(ended));
}

std::optional<Status> RemovalWaits::OutcomeOf(Wait& wait) {
  if (!wait.struck) return wait.struck;
  const AwaitedDisks awaited = disks_.look(*wait.removal);
  if (!awaited.open && awaited.missed == 0) return Status();
  if (const std::uint32_t missed = awaited.missed & ~wait.striking; missed != wait.missed) {
    wait.missed = missed;
    changed_.NotifyAll();
  }
  if (clock_.NowNs() >= wait.deadline_ns) return RemovalNotProven();
  return std::nullopt;
}

RemovalWaits::Waits::iterator RemovalWaits::End(Waits::iterator wait, Status outcome,
                                                std::vector<Ended>& ended) {
  ended.push_back({.done = std::move(wait->second.done), .outcome = std::move(outcome)});
  ++answering_;
  return waits_.erase(wait);
}

void RemovalWaits::TakeAll(std::vector<Ended>& ended) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    wait = End(wait, RemovalNotProven(), ended);
  }
}

// Destroys the callbacks before it counts them as answered: they own what EndAll's caller is about
// to end.
void RemovalWaits::Answer(std::vector<Ended> ended) {
  if (ended.empty()) return;
  ExpectNoLock("the answer to a removal");
  const std::size_t count = ended.size();
  for (const Ended& one : ended) one.done(one.outcome);
  ended.clear();
  const MutexLock lock(mutex_);
  answering_ -= count;
  quiet_.NotifyAll();
}

void RemovalWaits::AwaitAnswers() {
  const MutexLock lock(mutex_);
  while (answering_ > 0) quiet_.Wait(mutex_);
}

void RemovalWaits::EndAll() {
  std::vector<Ended> ended;
  {
    const MutexLock lock(mutex_);
    TakeAll(ended);
  }
  Answer(std::move(ended));
  AwaitAnswers();
}

void RemovalWaits::Pause() {
  {
    const MutexLock lock(mutex_);
    paused_ = true;
  }
  EndAll();
}

void RemovalWaits::Resume() {
  const MutexLock lock(mutex_);
  paused_ = false;
}

bool RemovalWaits::AwaitQuiet(std::int64_t wait_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
  const MutexLock lock(mutex_);
  while (strikes_) {
    if (std::chrono::steady_clock::now() >= until) return false;
    quiet_.WaitUntil(mutex_, until);
  }
  return true;
}

// ---- the thread

void RemovalWaits::Run() {
  while (const std::optional<std::size_t> disk = NextStrike()) {
    EndStrike(*disk, disks_.strike(*disk));
  }
}

// Sets `strikes_` in the hold in which it reads `paused_`: AwaitQuiet after Pause meets the strike,
// or none begins.
std::optional<std::size_t> RemovalWaits::NextStrike() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    std::uint32_t missed = 0;
    if (!paused_) {
      for (const auto& [number, wait] : waits_) missed |= wait.missed;
    }
    if (missed == 0) {
      changed_.Wait(mutex_);
      continue;
    }
    const auto disk = static_cast<std::size_t>(std::countr_zero(missed));
    const std::uint32_t bit = std::uint32_t{1} << disk;
    for (auto& [number, wait] : waits_) {
      wait.striking |= wait.missed & bit;
      wait.missed &= ~bit;
    }
    strikes_ = true;
    return disk;
  }
  return std::nullopt;
}

// Counts for the waits whose part was missed before the strike began, and for no others: the disk
// may have been used again, and named in the note, before a later removal missed it.
void RemovalWaits::EndStrike(std::size_t disk, const Status& struck) {
  const std::uint32_t bit = std::uint32_t{1} << disk;
  {
    const MutexLock lock(mutex_);
    strikes_ = false;
    quiet_.NotifyAll();
    for (auto& [number, wait] : waits_) {
      if ((wait.striking & bit) == 0) continue;
      wait.striking &= ~bit;
      if (struck) {
        wait.removal->parts[disk] = nullptr;  // the disk's thread may still write to the part
      } else {
        wait.struck =
            Fail(Code::kUnavailable, "the disk has missed a removal while it was set aside; and " +
                                         struck.error().detail);
      }
    }
  }
  Settle();
}

}  // namespace kvcove::owner
