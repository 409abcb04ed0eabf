// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/removal_waits.h"

#include <iterator>
#include <utility>

namespace kvcove::owner {
namespace {

Status RemovalNotProven() {
  return Fail(Code::kTimeout, "the disk has not proven the removal in time; repeat it");
}

}  // namespace

void RemovalWaits::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  EndAll();
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

std::optional<Status> RemovalWaits::OutcomeOf(const Wait& wait) const {
  Status looked = look_(*wait.removal);
  if (looked || looked.error().code != Code::kTimeout) return looked;
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

}  // namespace kvcove::owner
