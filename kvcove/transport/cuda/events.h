// SPDX-License-Identifier: Apache-2.0
// A pool of a GPU's events: the driver takes microseconds and a lock of its own to make one.
// Thread-safe. Marks share the ownership, so they may outlive the device's use of it.
#pragma once

#include <memory>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/transport/cuda/driver.h"

namespace kvcove::transport::cuda {

class Events {
 public:
  // Flags of cuda.h. Both have CU_EVENT_DISABLE_TIMING, as timing costs more; events that the host
  // queries have CU_EVENT_BLOCKING_SYNC, too.
  static constexpr unsigned kBetweenStreams = 2;
  static constexpr unsigned kForHost = 3;

  Events(const Driver& driver, CuContext context, unsigned flags)
      : driver_(driver), context_(context), flags_(flags) {}
  // Destroys the events. All must have been returned, unless Keep was called.
  ~Events();
  // Returns a free or a new event. The context must be current (Scope). Errors: kInternal.
  Result<CuEvent> Take();
  void Give(CuEvent event);
  // Leaves the events undestroyed, as the device may still use them.
  void Keep();

 private:
  const Driver& driver_;
  CuContext context_;
  const unsigned flags_;
  Mutex mutex_;
  std::vector<CuEvent> free_ KVCOVE_GUARDED_BY(mutex_);
  bool kept_ KVCOVE_GUARDED_BY(mutex_) = false;
};

// A recorded event. The destructor returns it to its pool, where it may be recorded again: a wait
// that was enqueued before keeps the recording that it found.
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
