// SPDX-License-Identifier: Apache-2.0
// One io_uring, used by one thread. The descriptor is registered, and memory too, where the limit
// of locked memory allows it. Another thread wakes the poller through an eventfd that the ring
// polls, too.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/disklog/file_device.h"
#include "kvcove/uring/uring.h"

namespace kvcove::uring {
namespace {

using disklog::Device;
using disklog::FileDevice;
using disklog::FileDeviceOptions;
using disklog::OpenFile;
using disklog::Operation;

constexpr std::uint64_t kWakeTag = ~0ULL;
// A registered buffer holds at most 1 GiB; larger regions are registered in pieces.
constexpr std::size_t kRegisteredBytes = 1ULL << 30;
// Larger transfers are cut: the kernel would split them anyway, and counts them in 32 bits.
constexpr std::size_t kTransferBytes = 64ULL << 20;

class UringDevice final : public FileDevice {
 public:
  explicit UringDevice(OpenFile file) : FileDevice(std::move(file)) {}

  ~UringDevice() override {
    if (!ready_) return;
    // The kernel may still write into the callers' memory: their completions are not run, but the
    // memory is only given back when nothing can land in it any more.
    abandoned_ = true;
    waiting_.clear();
    while (submitted_ > 0) Poll(kSecond);
    io_uring_queue_exit(&ring_);
    // The kernel gives up a ring's files some time later; the next owner must not find the lock.
    flock(fd(), LOCK_UN);
  }

  Status Start(const FileDeviceOptions& options) {
    depth_ = std::max(1U, options.depth);
    const int error = io_uring_queue_init(depth_ + 1, &ring_, 0);
    if (error != 0) {
      errno = -error;
      return FailErrno(Code::kInternal, "no io_uring here");
    }
    ready_ = true;
    wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_.valid()) return FailErrno(Code::kInternal, "making an eventfd");
    const int file = fd();
    fixed_file_ = io_uring_register_files(&ring_, &file, 1) == 0;
    operations_.resize(depth_);
    for (std::uint32_t i = 0; i < depth_; ++i) free_.push_back(i);
    ArmWake();
    return {};
  }

  std::string kind() const override { return "io_uring"; }

  void Register(std::span<std::byte> memory) override {
    std::vector<iovec> pieces = registered_;
    for (std::size_t at = 0; at < memory.size(); at += kRegisteredBytes) {
      pieces.push_back({memory.data() + at, std::min(kRegisteredBytes, memory.size() - at)});
    }
    // The kernel takes one table. Where it cannot have the new one, it keeps the old.
    if (!registered_.empty()) io_uring_unregister_buffers(&ring_);
    if (io_uring_register_buffers(&ring_, pieces.data(), pieces.size()) == 0) {
      registered_ = std::move(pieces);
    } else if (!registered_.empty() &&
               io_uring_register_buffers(&ring_, registered_.data(), registered_.size()) != 0) {
      registered_.clear();
    }
  }

  std::size_t Poll(std::int64_t wait_ns) override {
    Push();
    if (wait_ns > 0) {
      __kernel_timespec timeout{.tv_sec = wait_ns / kSecond, .tv_nsec = wait_ns % kSecond};
      io_uring_cqe* first = nullptr;
      io_uring_submit_and_wait_timeout(&ring_, &first, 1, &timeout, nullptr);
    } else {
      io_uring_submit(&ring_);
    }
    std::size_t ran = 0;
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0 && entry != nullptr) {
      const std::uint64_t tag = entry->user_data;
      const int result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      ran += Complete(tag, result);
    }
    Push();
    if (io_uring_sq_ready(&ring_) > 0) io_uring_submit(&ring_);
    return ran;
  }

  void Wake() override {
    const std::uint64_t one = 1;
    // It fails only when the counter is full, and then the poller is about to wake anyway.
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }
  std::size_t in_flight() const override { return submitted_ + waiting_.size(); }

 private:
  void Submit(Operation operation) override {
    waiting_.push_back(std::move(operation));
    Push();
  }

  // Moves what waits into the ring; the kernel learns of it at the next submission, so that many
  // operations cost one system call.
  void Push() {
    while (!waiting_.empty() && !free_.empty()) {
      const std::uint32_t index = free_.back();
      free_.pop_back();
      operations_[index] = std::move(waiting_.front());
      waiting_.pop_front();
      ++submitted_;
      Prepare(index);
    }
  }

  void Prepare(std::uint32_t index) {
    Operation& operation = operations_[index];
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {  // the ring holds what the kernel has not been told
      io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
    }
    const int file = fixed_file_ ? 0 : fd();
    if (operation.kind == Operation::Kind::kSync) {
      io_uring_prep_fsync(entry, file, IORING_FSYNC_DATASYNC);
    } else {
      PrepareTransfer(operation, entry, file);
    }
    if (fixed_file_) entry->flags |= IOSQE_FIXED_FILE;
    entry->user_data = index;
  }

  void PrepareTransfer(const Operation& operation, io_uring_sqe* entry, int file) const {
    std::byte* const data = operation.data + operation.moved;
    const std::uint64_t offset = operation.offset + operation.moved;
    const auto size =
        static_cast<unsigned>(std::min(kTransferBytes, operation.size - operation.moved));
    const auto found = std::ranges::find_if(registered_, [&](const iovec& piece) {
      auto* const begin = static_cast<std::byte*>(piece.iov_base);
      return data >= begin && data + size <= begin + piece.iov_len;
    });
    const bool fixed = found != registered_.end();
    const int piece = static_cast<int>(found - registered_.begin());
    const bool read = operation.kind == Operation::Kind::kRead;
    if (fixed && read) {
      io_uring_prep_read_fixed(entry, file, data, size, offset, piece);
    } else if (fixed) {
      io_uring_prep_write_fixed(entry, file, data, size, offset, piece);
    } else if (read) {
      io_uring_prep_read(entry, file, data, size, offset);
    } else {
      io_uring_prep_write(entry, file, data, size, offset);
    }
  }

  void ArmWake() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return;
    io_uring_prep_poll_add(entry, wake_.get(), POLLIN);
    entry->user_data = kWakeTag;
  }

  std::size_t Complete(std::uint64_t tag, int result) {
    if (tag == kWakeTag) {
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
      ArmWake();
      return 0;
    }
    const auto index = static_cast<std::uint32_t>(tag);
    Operation& operation = operations_[index];
    int error = 0;
    if (result == -EINTR || result == -EAGAIN) {
      Prepare(index);
      return 0;
    }
    if (result < 0) {
      error = -result;
    } else if (operation.kind != Operation::Kind::kSync) {
      operation.moved += static_cast<std::size_t>(result);
      if (result > 0 && operation.moved < operation.size) {
        Prepare(index);
        return 0;
      }
      if (operation.moved < operation.size) {
        error = operation.kind == Operation::Kind::kRead ? EIO : ENOSPC;
      }
    }
    // The completion may submit: the place is free before it runs.
    const Done done = std::move(operation.done);
    operation = {};
    free_.push_back(index);
    --submitted_;
    if (!abandoned_) done(error);
    return 1;
  }

  UniqueFd wake_;
  io_uring ring_{};
  bool ready_ = false;
  bool fixed_file_ = false;
  bool abandoned_ = false;
  std::uint32_t depth_ = 0;
  std::vector<iovec> registered_;
  std::vector<Operation> operations_;  // by the tag of their completion
  std::vector<std::uint32_t> free_;
  std::deque<Operation> waiting_;
  std::size_t submitted_ = 0;
};

Result<std::unique_ptr<Device>> MakeUringDevice(OpenFile file, const FileDeviceOptions& options) {
  auto device = std::make_unique<UringDevice>(std::move(file));
  KVCOVE_TRY(device->Start(options));
  return device;
}

}  // namespace

void UseUring() { disklog::SetUringMaker(MakeUringDevice); }

}  // namespace kvcove::uring
