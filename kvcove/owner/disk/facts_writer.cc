// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/facts_writer.h"

#include <utility>

#include "kvcove/base/posix.h"

namespace kvcove::owner {

Status FactsWriter::Start(Files files) {
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-facts", [shared = shared_, files = std::move(files)] {
                  shared->Run(files);
                }));
  return {};
}

void FactsWriter::Write(const Job& job) {
  const MutexLock lock(shared_->mutex);
  shared_->next = job;
  shared_->not_before = {};
  shared_->changed.NotifyAll();
}

std::optional<FactsWriter::Ended> FactsWriter::TakeEnded() {
  const MutexLock lock(shared_->mutex);
  return std::exchange(shared_->ended, std::nullopt);
}

bool FactsWriter::busy() const {
  const MutexLock lock(shared_->mutex);
  return shared_->busy;
}

bool FactsWriter::AwaitIdle() const {
  Shared& shared = *shared_;
  const MutexLock lock(shared.mutex);
  return shared.Await(kPause, [&] {
    shared.mutex.AssertHeld();
    return !shared.busy;
  });
}

template <typename Done>
bool FactsWriter::Shared::Await(std::chrono::nanoseconds within, Done done) {
  const Time until = std::chrono::steady_clock::now() + within;
  while (!done() && std::chrono::steady_clock::now() < until) changed.WaitUntil(mutex, until);
  return done();
}

bool FactsWriter::Pause() {
  Shared& shared = *shared_;
  const MutexLock lock(shared.mutex);
  shared.paused = true;
  return shared.Await(kPause, [&] {
    shared.mutex.AssertHeld();
    return !shared.busy;
  });
}

void FactsWriter::Resume() {
  const MutexLock lock(shared_->mutex);
  shared_->paused = false;
  shared_->changed.NotifyAll();
}

bool FactsWriter::Stop() {
  if (!thread_.joinable()) return true;
  bool over = false;
  {
    Shared& shared = *shared_;
    const MutexLock lock(shared.mutex);
    shared.stopping = true;
    // Makes one more attempt, even if the last one failed just now.
    shared.not_before = {};
    shared.changed.NotifyAll();
    over = shared.Await(kStop, [&] {
      shared.mutex.AssertHeld();
      return shared.over;
    });
  }
  // A thread that is left behind owns `Shared` and `Files`, and ends by itself once the call
  // returns.
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return over;
}

// ---- the thread

void FactsWriter::Shared::Run(const Files& files) {
  std::uint64_t struck = 0;
  while (const std::optional<Job> job = Next()) {
    Status outcome;
    // Strikes the disks before it writes facts that void them. After a crash in between, a start
    // finds the former facts and empty disks; in the other order it would use void disks under the
    // new facts.
    if (job->voided > struck) {
      outcome = files.strike();
      if (outcome) struck = job->voided;
    }
    if (outcome) outcome = files.write(job->facts);
    NoteEnded(*job, {.facts = job->facts, .struck = struck, .outcome = outcome});
  }
  const MutexLock lock(mutex);
  over = true;
  changed.NotifyAll();
}

std::optional<FactsWriter::Job> FactsWriter::Shared::Next() {
  const MutexLock lock(mutex);
  while (true) {
    // Sets `busy` in the hold in which it reads `paused`: Pause either prevents the write or waits
    // for it.
    const bool waits = next && !paused;
    if (waits && std::chrono::steady_clock::now() >= not_before) {
      busy = true;
      return std::exchange(next, std::nullopt);
    }
    if (stopping) return std::nullopt;
    if (waits) {
      changed.WaitUntil(mutex, not_before);
    } else {
      changed.Wait(mutex);
    }
  }
}

void FactsWriter::Shared::NoteEnded(const Job& job, const Ended& attempt) {
  const MutexLock lock(mutex);
  busy = false;
  ended = attempt;
  // Newer facts replace those that failed.
  if (!attempt.outcome && !next) {
    next = job;
    not_before = std::chrono::steady_clock::now() + kRetry;
  }
  changed.NotifyAll();
}

}  // namespace kvcove::owner
