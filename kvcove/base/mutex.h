// SPDX-License-Identifier: Apache-2.0
// std::mutex with clang's thread-safety annotations. The lock order is in docs/threads.md.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

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

namespace kvcove {

class KVCOVE_CAPABILITY("mutex") Mutex {
 public:
  void lock() KVCOVE_ACQUIRE() { mutex_.lock(); }
  void unlock() KVCOVE_RELEASE() { mutex_.unlock(); }
  bool try_lock() KVCOVE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

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
  // False when `until` came first. Spurious wake-ups happen: call it in a loop.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point until) KVCOVE_REQUIRES(mutex) {
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
  std::condition_variable_any condition_;
};

}  // namespace kvcove
