// SPDX-License-Identifier: Apache-2.0
// Owned descriptors and mappings, and threads with names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "kvcove/base/result.h"

namespace kvcove {

// Never standard input, output or error: where the program has closed one of them, the next
// descriptor gets its number, and what any code prints would go there, into a pool's memory or a
// file of the control plane.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd >= 0 && fd <= kLastStandard ? Aside(fd) : fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  static constexpr int kLastStandard = 2;
  // The same file under a higher number; `fd` itself where there is no room for it.
  static int Aside(int fd);

  int fd_ = -1;
};

// Opens /dev/null for each of them that is closed, which covers the descriptors of libraries, too.
// For the beginning of a program, and before the first descriptor of a pool.
void OpenStandardStreams();

// A memory mapping that a forked child does not inherit (MADV_DONTFORK).
class Mapping {
 public:
  enum class Access { kReadOnly, kReadWrite };

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        forks_(other.forks_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(forks_, other.forks_);
    return *this;
  }
  ~Mapping();

  // Maps the first `size` bytes of `fd`. Errors: kInternal with errno's text.
  static Result<Mapping> Map(int fd, std::size_t size, Access access);
  // Private memory, all zero, whose pages are there once they are touched. Errors: as Map.
  static Result<Mapping> MapAnonymous(std::size_t size);

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  // Of what mmap has returned.
  static Result<Mapping> Own(void* data, std::size_t size);

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  unsigned forks_ = 0;  // in a forked child there is nothing to unmap
};

// A sealed memory file of `size` bytes: it can neither shrink nor grow, so no reader can be hit by
// SIGBUS.
Result<UniqueFd> CreateMemoryFile(const char* name, std::size_t size);

// Starts a thread whose name (at most 15 characters) shows in `top -H` and in gdb. Every signal is
// blocked in it, so that signals go to the main thread; those of the caller remain as they were.
// Errors: kLimit, with the limit that was reached. No exception.
Result<std::thread> StartThread(const std::string& name, std::function<void()> body);

// Waits for the end of a thread that may never have been started.
void JoinIfStarted(std::thread& thread);

// Calls `start` until it succeeds, and says meanwhile that it waits: for threads that this process
// had before and cannot work without.
void StartAgain(const std::function<Status()>& start);

// For tests: StartThread succeeds `count` times more and then fails; a negative count: no more
// failures.
void RefuseThreadsAfter(std::int64_t count);

// A counter that differs in a forked child: code that keeps an earlier value sees that the process
// was forked. No system call.
unsigned ForkCount();

}  // namespace kvcove
