// SPDX-License-Identifier: Apache-2.0
// A device that calls pread and pwrite on a few threads, for kernels that forbid io_uring.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/disklog/file_device.h"

namespace kvcove::disklog {
namespace {

int Run(int fd, const Operation& operation) {
  if (operation.kind == Operation::Kind::kSync) return fdatasync(fd) == 0 ? 0 : errno;
  std::size_t moved = 0;
  while (moved < operation.size) {
    const auto offset = static_cast<off_t>(operation.offset + moved);
    const ssize_t count = operation.kind == Operation::Kind::kRead
                              ? pread(fd, operation.data + moved, operation.size - moved, offset)
                              : pwrite(fd, operation.data + moved, operation.size - moved, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    // A transfer is whole or an error, so the end of the file is one.
    if (count == 0) return operation.kind == Operation::Kind::kRead ? EIO : ENOSPC;
    moved += static_cast<std::size_t>(count);
  }
  return 0;
}

class ThreadDevice final : public FileDevice {
 public:
  explicit ThreadDevice(OpenFile file) : FileDevice(std::move(file)) {}
  Status Start(const FileDeviceOptions& options) {
    for (std::uint32_t i = 0; i < std::max(1U, options.threads); ++i) {
      KVCOVE_ASSIGN(std::thread thread, StartThread("disk-io", [this] { Work(); }));
      threads_.push_back(std::move(thread));
    }
    return {};
  }

  // Waits for all queued operations: their memory may be freed once the device has ended. Their
  // completions do not run.
  ~ThreadDevice() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    work_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string kind() const override { return "threads"; }

  std::size_t Poll(std::int64_t wait_ns) override {
    std::vector<Operation> ready;
    {
      const MutexLock lock(mutex_);
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(wait_ns);
      while (done_.empty() && !woken_ && wait_ns > 0) {
        if (!finished_.WaitUntil(mutex_, until)) break;
      }
      woken_ = false;
      ready.swap(done_);
    }
    // The lock is released, because a completion may submit further operations.
    in_flight_ -= ready.size();
    for (const Operation& operation : ready) operation.done(operation.error);
    return ready.size();
  }
  void Wake() override {
    {
      const MutexLock lock(mutex_);
      woken_ = true;
    }
    finished_.NotifyAll();
  }
  std::size_t in_flight() const override { return in_flight_; }

 private:
  void Submit(Operation operation) override {
    ++in_flight_;
    {
      const MutexLock lock(mutex_);
      queue_.push_back(std::move(operation));
    }
    work_.NotifyOne();
  }

  bool Take(Operation& operation) {
    const MutexLock lock(mutex_);
    while (queue_.empty() && !stopping_) work_.Wait(mutex_);
    if (queue_.empty()) return false;
    operation = std::move(queue_.front());
    queue_.pop_front();
    return true;
  }

  void Work() {
    Operation operation;
    while (Take(operation)) {
      operation.error = Run(fd(), operation);
      {
        const MutexLock lock(mutex_);
        done_.push_back(std::move(operation));
      }
      finished_.NotifyOne();
    }
  }

  std::size_t in_flight_ = 0;  // only used by the thread that submits and polls: needs no lock
  Mutex mutex_;
  CondVar work_;
  CondVar finished_;
  std::deque<Operation> queue_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Operation> done_ KVCOVE_GUARDED_BY(mutex_);
  bool woken_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<Device>> MakeThreadDevice(OpenFile file, const FileDeviceOptions& options) {
  auto device = std::make_unique<ThreadDevice>(std::move(file));
  KVCOVE_TRY(device->Start(options));
  return device;
}

}  // namespace kvcove::disklog
