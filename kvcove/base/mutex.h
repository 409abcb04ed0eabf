// SPDX-License-Identifier: Apache-2.0
// std::mutex with clang's thread-safety annotations. The lock order is in docs/threads.md.
//
// A thread that holds a lock neither waits for another process nor runs code that it does not know:
// no I/O, no call of the pool, no callback, no reply, no log line. Whatever such code takes next
// (another lock, Python's GIL) would otherwise be ordered after the lock, and a slow peer would
// stop every thread that wants the lock. Clang cannot see this through interfaces, so the places
// that call out say ExpectNoLock(); builds with KVCOVE_CHECK_LOCKS (debug and the sanitizers) count
// the locks of each thread and abort there.
//
// The same builds search over schedules: with KVCOVE_SCHEDULE_SEED=N (not 0) in the environment, a
// thread stops now and then before it takes a lock, after it gives one back, and where it starts.
// That finds a check in one hold of a lock whose answer is used in another one, and threads that
// meet in an order that is rare. Each thread's stops follow from N and from how many threads had
// one before it, so a seed fails again often, but not always.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "kvcove/base/interrupt.h"

#if defined(__clang__)
#define KVCOVE_ATTRIBUTE(x) __attribute__((x))
#else
#define KVCOVE_ATTRIBUTE(x)
#endif
#define KVCOVE_CAPABILITY(x) KVCOVE_ATTRIBUTE(capability(x))
#define KVCOVE_SCOPED_CAPABILITY KVCOVE_ATTRIBUTE(scoped_lockable)
#define KVCOVE_GUARDED_BY(x) KVCOVE_ATTRIBUTE(guarded_by(x))
#define KVCOVE_REQUIRES(...) KVCOVE_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define KVCOVE_EXCLUDES(...) KVCOVE_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define KVCOVE_ACQUIRE(...) KVCOVE_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define KVCOVE_TRY_ACQUIRE(...) KVCOVE_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define KVCOVE_RELEASE(...) KVCOVE_ATTRIBUTE(release_capability(__VA_ARGS__))
#define KVCOVE_ASSERT_HELD() KVCOVE_ATTRIBUTE(assert_capability())

namespace kvcove {

#ifdef KVCOVE_CHECK_LOCKS
inline constexpr bool kChecksLocks = true;
#else
inline constexpr bool kChecksLocks = false;
#endif

// What this thread holds. Only builds that check locks count.
class HeldLocks {
 public:
  static void Add(int change) {
    if constexpr (kChecksLocks) count_ += change;
  }
  static int count() { return count_; }

 private:
  static inline thread_local int count_ = 0;
};

// Prints what is about to be done and the stack, and aborts.
void AbortUnderLock(const char* act);

// The caller is about to leave its own code: `act` names what for ("a log line"). Aborts when the
// thread holds a Mutex, in builds that check; costs nothing in others.
inline void ExpectNoLock(const char* act) {
  if constexpr (kChecksLocks) {
    if (HeldLocks::count() != 0) AbortUnderLock(act);
  }
}

// Stops for a moment, or not, as the seed says. Without one it does nothing.
void StopBySeed();

inline void MayStop() {
  if constexpr (kChecksLocks) StopBySeed();
}

class KVCOVE_CAPABILITY("mutex") Mutex {
 public:
  void lock() KVCOVE_ACQUIRE() {
    MayStop();
    mutex_.lock();
    HeldLocks::Add(1);
  }
  void unlock() KVCOVE_RELEASE() {
    HeldLocks::Add(-1);
    mutex_.unlock();
    MayStop();
  }
  bool try_lock() KVCOVE_TRY_ACQUIRE(true) {
    const bool locked = mutex_.try_lock();
    if (locked) HeldLocks::Add(1);
    return locked;
  }
  // Tells the analysis that the caller holds it, where caller and callee name it differently:
  // through an object that they share. Does nothing when it runs.
  void AssertHeld() const KVCOVE_ASSERT_HELD() {}

 private:
  std::mutex mutex_;
};

class KVCOVE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KVCOVE_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() KVCOVE_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // False when `until` came first. Spurious wake-ups happen: call it in a loop, and ask LeftNs or
  // Interrupt::Ended there (base/interrupt.h). In a thread with an Interrupt they come every
  // 100 ms: its looks are made without the lock.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point until) KVCOVE_REQUIRES(mutex) {
    if (Interrupt::Set()) return WaitTurn(mutex, until);
    return condition_.wait_until(mutex, until) == std::cv_status::no_timeout;
  }
  bool WaitFor(Mutex& mutex, std::chrono::nanoseconds duration) KVCOVE_REQUIRES(mutex) {
    return WaitUntil(mutex, std::chrono::steady_clock::now() + duration);
  }
  // A wait without an end would need a libstdc++ newer than manylinux_2_34 has.
  void Wait(Mutex& mutex) KVCOVE_REQUIRES(mutex) { WaitFor(mutex, std::chrono::hours(1)); }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  bool WaitTurn(Mutex& mutex, std::chrono::steady_clock::time_point until) KVCOVE_REQUIRES(mutex);

  std::condition_variable_any condition_;
};

}  // namespace kvcove
