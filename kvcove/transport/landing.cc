// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/landing.h"

#include <utility>

namespace kvcove::transport {
namespace {

thread_local std::shared_ptr<Landing> current;

}  // namespace

std::shared_ptr<Landing> Landing::Current() { return current; }

Landing::Scope::Scope(std::shared_ptr<Landing> landing) { current = std::move(landing); }
Landing::Scope::~Scope() { current.reset(); }

void Landing::Begin() {
  const MutexLock lock(mutex_);
  ++transfers_;
}

void Landing::End() {
  std::function<void()> quiet;
  {
    // Then() stores `quiet_` under this lock only while transfers are left. So either this End()
    // finds it, or Then() finds no transfer and calls it: exactly one of them does.
    const MutexLock lock(mutex_);
    if (--transfers_ == 0) {
      quiet = std::exchange(quiet_, nullptr);
      changed_.NotifyAll();
    }
  }
  if (quiet) quiet();
}

bool Landing::busy() const {
  const MutexLock lock(mutex_);
  return transfers_ > 0;
}

bool Landing::AwaitQuiet(std::chrono::milliseconds most) {
  const auto until = std::chrono::steady_clock::now() + most;
  const MutexLock lock(mutex_);
  while (transfers_ > 0) {
    if (!changed_.WaitUntil(mutex_, until) && transfers_ > 0) return false;
  }
  return true;
}

void Landing::Then(std::function<void()> quiet) {
  {
    const MutexLock lock(mutex_);
    if (transfers_ > 0) {
      quiet_ = std::move(quiet);  // the last End() calls it
      return;
    }
  }
  quiet();
}

}  // namespace kvcove::transport
