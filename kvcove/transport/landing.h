// SPDX-License-Identifier: Apache-2.0
// Counts the transfers of one asynchronous call that could not be stopped when the call ended:
// their devices may still touch its buffers. The completion queue reports the buffers as free only
// after the last one has ended (P5 of DESIGN.md).
//
// Run() finds the call's Landing in its thread, so that the session and its reads and writes need
// not pass it on. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kvcove/base/mutex.h"

namespace kvcove::transport {

class Landing {
 public:
  // Returns the Landing of the call that this thread makes. Null: a synchronous call, whose caller
  // learns of kBufferBusy and is not notified of the end.
  static std::shared_ptr<Landing> Current();
  // Makes `landing` the current one of this thread until the scope ends. Scopes do not nest.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<Landing> landing);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  // Counts a transfer that may still touch the call's buffers.
  void Begin();
  // Ends a counted transfer; calls `quiet` of Then(), without a lock, if it was the last one.
  void End();
  bool busy() const;
  // Calls `quiet` once nothing can land any more: within this call, or by the thread that ends the
  // last transfer. Call it once, after the asynchronous call has returned, so no Begin() follows.
  void Then(std::function<void()> quiet);

 private:
  mutable Mutex mutex_;
  std::uint64_t transfers_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::function<void()> quiet_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::transport
