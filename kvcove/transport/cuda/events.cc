// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/cuda/events.h"

namespace kvcove::transport::cuda {

Events::~Events() {
  const MutexLock lock(mutex_);
  if (kept_ || free_.empty()) return;
  const Scope scope(driver_, context_);
  for (CuEvent event : free_) (void)driver_.event_destroy(event);
}

Result<CuEvent> Events::Take() {
  {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      CuEvent event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  CuEvent event = nullptr;
  KVCOVE_TRY(CheckResult(driver_.event_create(&event, flags_), "an event"));
  return event;
}

void Events::Give(CuEvent event) {
  const MutexLock lock(mutex_);
  free_.push_back(event);
}

void Events::Keep() {
  const MutexLock lock(mutex_);
  kept_ = true;
}

}  // namespace kvcove::transport::cuda
