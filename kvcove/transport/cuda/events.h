// SPDX-License-Identifier: Apache-2.0
// Events of a GPU that are used again and again: to make one costs microseconds and a lock of the
// driver. Thread-safe. Its marks keep it.
#pragma once

#include <memory>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/cuda/driver.h"

namespace kvcove::transport::cuda {

class Events {
 public:
  // cuda.h: without CU_EVENT_DISABLE_TIMING they would cost more; CU_EVENT_BLOCKING_SYNC marks
  // those that the host looks at.
  static constexpr unsigned kBetweenStreams = 2;
  static constexpr unsigned kForHost = 3;

  Events(const Driver& driver, CuContext context, unsigned flags)
      : driver_(driver), context_(context), flags_(flags) {}
  // Nothing may be left outside, unless Keep was called.
  ~Events();
  // The caller works in the context. Errors: kInternal.
  Result<CuEvent> Take();
  void Give(CuEvent event);
  // The device may still use them: they stay for as long as the process.
  void Keep();

 private:
  const Driver& driver_;
  CuContext context_;
  const unsigned flags_;
  Mutex mutex_;
  std::vector<CuEvent> free_ KVCOVE_GUARDED_BY(mutex_);
  bool kept_ KVCOVE_GUARDED_BY(mutex_) = false;
};

// A recorded event. It is taken back with the mark: a wait for it that was enqueued before keeps
// what it waits for, whatever is recorded later.
class EventMark final : public DeviceMark {
 public:
  EventMark(std::shared_ptr<Events> events, CuEvent event)
      : events_(std::move(events)), event_(event) {}
  ~EventMark() override { events_->Give(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;
  CuEvent event() const { return event_; }

 private:
  std::shared_ptr<Events> events_;
  CuEvent event_;
};

}  // namespace kvcove::transport::cuda
