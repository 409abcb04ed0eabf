// SPDX-License-Identifier: Apache-2.0
// Lets a thread's caller into the waits of a call: Python's handlers of signals must run, and may
// end the call, long before its deadline.
//
// An Interrupt belongs to the thread that makes it, and lasts for one call. Each wait of that
// thread (CondVar, rpc::Client, transport::Run, SleepNs, ...) lasts kLookNs at most, then looks:
//
//   running    the wait asks Asks() every kLookNs, without a lock, and goes on
//   ended      Asks() was true once: every deadline of this thread counts as reached (LeftNs), so
//              the call ends as it would then: transfers are aborted, reservations given back, and
//              no buffer is written afterwards. A copy to or from a device is waited for.
//
// So an interrupted call leaves behind what a late one does, and nothing else. A wait that has no
// deadline is not cut short: it ends with what it waits for, which has one. Threads without an
// Interrupt, all of the pool's own, pay one thread-local load a wait. Asks() may take long (another
// thread has the GIL): the wait then ends that much later than its deadline. It may call the pool:
// inside it the thread has no Interrupt but those that it makes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kvcove/base/clock.h"

namespace kvcove {

class Interrupt {
 public:
  static constexpr std::int64_t kLookNs = 100 * kMillisecond;

  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Of the calling thread, all of these: whether it has an Interrupt.
  static bool Set() { return current_ != nullptr; }
  // Whether its call is to end now.
  static bool Ended() { return current_ != nullptr && current_->ended_; }
  // Whether its waits must look at all.
  static bool Looks() { return current_ != nullptr && !current_->ended_; }
  // How long a wait of `left_ns` may last before it looks.
  static std::int64_t TurnNs(std::int64_t left_ns) {
    return Looks() ? std::min(left_ns, current_->DueInNs()) : left_ns;
  }
  // Asks, if it is time to. The thread holds no lock.
  static void LookIfDue() {
    if (Looks() && current_->DueInNs() == 0) current_->Look();
  }
  // Asks at once: a system call of the thread was interrupted by a signal.
  static void LookNow() {
    if (Looks()) current_->Look();
  }

  // For its scope the thread has no Interrupt: what it runs there hears of signals by itself.
  class Aside {
   public:
    Aside() : outer_(current_) { current_ = nullptr; }
    ~Aside() { current_ = outer_; }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    Interrupt* outer_;
  };

 protected:
  // Scopes nest, the inner in the outer's place. `on`: false for a thread with nothing to ask.
  explicit Interrupt(bool on = true) : outer_(current_) {
    if (on) current_ = this;
  }
  ~Interrupt() { current_ = outer_; }
  // True: the call is to end. Asked again only after false.
  virtual bool Asks() = 0;

 private:
  std::int64_t DueInNs();
  void Look();

  // constinit: an access needs no wrapper call.
  static inline constinit thread_local Interrupt* current_ = nullptr;

  Interrupt* outer_;
  std::int64_t due_ns_ = 0;  // 0: the call has not waited yet
  bool ended_ = false;
};

// Until the deadline of a call of this thread, by the clock that made it; 0 or less once it is
// reached, or the call is to end.
inline std::int64_t LeftNs(std::int64_t deadline_ns, const Clock& clock) {
  return Interrupt::Ended() ? 0 : deadline_ns - clock.NowNs();
}

// For a call that runs on another thread as a part of one that may be interrupted: it ends once
// `ends`, which must outlive it, is true.
class InterruptBy final : public Interrupt {
 public:
  explicit InterruptBy(const std::atomic<bool>& ends) : ends_(ends) {}

 private:
  bool Asks() override { return ends_.load(std::memory_order_relaxed); }

  const std::atomic<bool>& ends_;
};

// Sleeps, and looks meanwhile. Less than `ns` if the call is to end.
void SleepNs(std::int64_t ns);

}  // namespace kvcove
