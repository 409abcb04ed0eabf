// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/strikes.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/posix.h"

namespace kvcove::owner {
namespace {

Status OwnerStops() { return Fail(Code::kUnavailable, "the owner stops"); }

}  // namespace

Status Strikes::Start(Write write) {
  if (thread_.joinable()) return {};
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-strike", [shared = shared_, write = std::move(write)] {
                  shared->Run(write);
                }));
  return {};
}

bool Strikes::Stop() {
  if (!thread_.joinable()) return true;
  bool over = false;
  {
    Shared& shared = *shared_;
    const MutexLock lock(shared.mutex);
    shared.stopping = true;
    shared.changed.NotifyAll();
    over = shared.Await(kStop, [&] {
      shared.mutex.AssertHeld();
      return shared.over;
    });
  }
  // A thread that is left behind owns `Shared`, and ends by itself once its call returns.
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return over;
}

std::shared_ptr<const Strike> Strikes::Begin(std::size_t disk) {
  const MutexLock lock(shared_->mutex);
  for (const auto& strike : shared_->waiting) {
    if (strike->disk == disk) return strike;
  }
  auto strike = std::make_shared<Strike>(Strike{.disk = disk, .outcome = {}});
  if (shared_->stopping) {
    strike->outcome = OwnerStops();
    return strike;
  }
  shared_->waiting.push_back(strike);
  shared_->changed.NotifyAll();
  return strike;
}

Status Strikes::Await(const Strike& strike, std::int64_t within_ns) const {
  const MutexLock lock(shared_->mutex);
  if (!shared_->Await(within_ns, [&] { return strike.outcome.has_value(); })) {
    return Fail(Code::kTimeout, "the note's file system has not answered yet");
  }
  return *strike.outcome;
}

Status Strikes::Prove(std::size_t disk, std::shared_ptr<const Strike>& strike,
                      std::int64_t within_ns) {
  if (strike == nullptr) strike = Begin(disk);
  Status struck = Await(*strike, within_ns);
  if (struck || struck.error().code != Code::kTimeout) strike = nullptr;
  return struck;
}

std::uint64_t Strikes::under_way() const {
  const MutexLock lock(shared_->mutex);
  return shared_->busy ? shared_->begun : 0;
}

bool Strikes::AwaitIdle(std::int64_t within_ns) const {
  const Shared& shared = *shared_;
  const MutexLock lock(shared.mutex);
  return shared.Await(within_ns, [&] {
    shared.mutex.AssertHeld();
    return !shared.busy && shared.waiting.empty();
  });
}

template <typename Done>
bool Strikes::Shared::Await(std::int64_t within_ns, Done done) const {
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(std::max<std::int64_t>(within_ns, 0));
  while (!done() && !Interrupt::Ended() && std::chrono::steady_clock::now() < until) {
    changed.WaitUntil(mutex, until);
  }
  return done();
}

// ---- the thread

void Strikes::Shared::Run(const Write& write) {
  while (const std::shared_ptr<Strike> strike = Next()) {
    const Status outcome = write(strike->disk);
    const MutexLock lock(mutex);
    busy = false;
    strike->outcome = outcome;
    changed.NotifyAll();
  }
}

std::shared_ptr<Strike> Strikes::Shared::Next() {
  const MutexLock lock(mutex);
  while (!stopping && waiting.empty()) changed.Wait(mutex);
  if (!stopping) {
    busy = true;
    ++begun;
    // Out of the queue before it is written: a disk that misses a removal from here on needs
    // another strike, because this one may be written without that reason (Begin).
    std::shared_ptr<Strike> next = std::move(waiting.front());
    waiting.pop_front();
    return next;
  }
  for (const auto& strike : waiting) {
    strike->outcome = OwnerStops();
  }
  waiting.clear();
  over = true;
  changed.NotifyAll();
  return nullptr;
}

}  // namespace kvcove::owner
