// SPDX-License-Identifier: Apache-2.0
// The transfers of one asynchronous call that could not be stopped when the call ended: their
// devices may still touch its buffers. The one who made the call waits for them before it says that
// the buffers are free (P5 of DESIGN.md).
//
// Run() finds the call by its thread, so that what lies in between, a session and its reads and
// writes, need not pass it on. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kvcove/base/mutex.h"

namespace kvcove::transport {

class Landing {
 public:
  // Of the call that this thread makes. Null: a synchronous call, which says kBufferBusy itself.
  static std::shared_ptr<Landing> Current();
  // This thread makes a call until the scope ends.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<Landing> landing);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  // A transfer may still touch the call's buffers, and does so no more.
  void Begin();
  void End();
  bool busy() const;
  // After the call has returned, once: `quiet` is called when nothing can land any more; within
  // this call, or by the thread that ends the last transfer.
  void Then(std::function<void()> quiet);

 private:
  mutable Mutex mutex_;
  std::uint64_t transfers_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::function<void()> quiet_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::transport
