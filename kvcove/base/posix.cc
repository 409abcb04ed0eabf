// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/posix.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <exception>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/base/mutex.h"
#include "kvcove/base/thread_room.h"

namespace kvcove {

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int UniqueFd::Aside(int fd) {
  const bool ends_at_exec = (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0;
  const int aside = fcntl(fd, ends_at_exec ? F_DUPFD_CLOEXEC : F_DUPFD, kLastStandard + 1);
  if (aside < 0) return fd;
  close(fd);
  return aside;
}

void OpenStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number, which is this one unless another thread was faster.
    const int opened = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (opened >= 0 && opened != fd) close(opened);
    if (opened == fd) fcntl(fd, F_SETFD, 0);
  }
}

Mapping::~Mapping() {
  if (data_ != nullptr && forks_ == ForkCount()) munmap(data_, size_);
}

Result<Mapping> Mapping::Map(int fd, std::size_t size, Access access) {
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  return Own(mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, fd, 0), size);
}

Result<Mapping> Mapping::MapAnonymous(std::size_t size) {
  return Own(mmap(nullptr, size, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
             size);
}

Result<Mapping> Mapping::Own(void* data, std::size_t size) {
  if (data == MAP_FAILED) return FailErrno(Code::kInternal, fmt::format("mmap of {} bytes", size));
  madvise(data, size, MADV_DONTFORK);
  // No core dump shows it: it holds users' prompts, and may be as large as the host's memory.
  madvise(data, size, MADV_DONTDUMP);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size;
  mapping.forks_ = ForkCount();
  return mapping;
}

Result<UniqueFd> CreateMemoryFile(const char* name, std::size_t size) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return FailErrno(Code::kInternal, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return FailErrno(Code::kInternal, fmt::format("ftruncate of a memory file to {} bytes", size));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return FailErrno(Code::kInternal, "F_ADD_SEALS");
  }
  return fd;
}

namespace {

std::atomic<std::int64_t> threads_allowed = -1;

bool MayStartThread() {
  std::int64_t left = threads_allowed;
  while (left > 0 && !threads_allowed.compare_exchange_weak(left, left - 1)) {
  }
  return left != 0;
}

// Blocks every signal in this thread, and so in threads that it starts, for as long as it lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Result<std::thread> StartThread(const std::string& name, std::function<void()> body) {
  ExpectNoLock("the start of a thread");
  if constexpr (kChecksLocks) {
    body = [body = std::move(body)] {
      MayStop();
      body();
    };
  }
  if (!MayStartThread()) {
    return Fail(Code::kLimit,
                fmt::format("no thread '{}' can be started: a test refuses it", name));
  }
  try {
    const SignalsBlocked blocked;
    std::thread thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
    return thread;
  } catch (const std::exception&) {
    // pthread_create answers EAGAIN, whichever limit it met.
    return Fail(Code::kLimit,
                fmt::format("no thread '{}' can be started: {}", name, WhyNoThread()));
  }
}

void JoinIfStarted(std::thread& thread) {
  if (thread.joinable()) thread.join();
}

void StartAgain(const std::function<Status()>& start) {
  LogLimit limit;
  while (true) {
    const Status started = start();
    if (started) return;
    if (limit.Due(SystemClock::Instance().NowNs()) > 0) {
      LogError("this process does not work until it has its threads again: {}",
               started.error().detail);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void RefuseThreadsAfter(std::int64_t count) { threads_allowed = count; }

namespace {
std::atomic<unsigned> fork_count{0};
}

unsigned ForkCount() {
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });
  return fork_count.load(std::memory_order_relaxed);
}

}  // namespace kvcove
