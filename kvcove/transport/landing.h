// SPDX-License-Identifier: Apache-2.0
// Counts the transfers of one asynchronous call that could not be stopped when the call ended:
// their devices may still touch its buffers. The completion queue reports the buffers as free only
// after the last one has ended (P5 of DESIGN.md).
//
// Run() finds the call's Landing in its thread, so that the session and its reads and writes need
// not pass it on. Thread-safe.
#pragma once

#include <chrono>
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
  // Waits until nothing can land any more, for at most `most`. False: something still can.
  bool AwaitQuiet(std::chrono::milliseconds most);
  // Calls `quiet` once nothing can land any more: within this call, or by the thread that ends the
  // last transfer. Call it once, after the asynchronous call has returned, so no Begin() follows.
  void Then(std::function<void()> quiet);

 private:
  mutable Mutex mutex_;
  CondVar changed_;  // notified when the last transfer has ended
  std::uint64_t transfers_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::function<void()> quiet_ KVCOVE_GUARDED_BY(mutex_);
};

// For Settle: what a lane needs for its end, many times over.
inline constexpr std::chrono::milliseconds kSettle{5000};

// Makes a synchronous call whose buffers are used again once it has returned, and waits until
// nothing can land in them any more, for at most `most`: a lane ends within milliseconds, unless
// its device does not. Null: the buffers are the caller's again. Else bytes may still land: give
// what must live as long to Then(). Within an asynchronous call, which waits for that itself, it
// returns null at once.
template <typename Call>
std::shared_ptr<Landing> Settle(std::chrono::milliseconds most, Call&& call) {
  if (Landing::Current() != nullptr) {
    call();
    return nullptr;
  }
  auto landing = std::make_shared<Landing>();
  {
    const Landing::Scope scope(landing);
    call();
  }
  if (landing->AwaitQuiet(most)) return nullptr;
  return landing;
}

}  // namespace kvcove::transport
