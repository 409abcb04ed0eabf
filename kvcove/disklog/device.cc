// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/device.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "kvcove/base/clock.h"
#include "kvcove/base/log.h"
#include "kvcove/disklog/file_device.h"

namespace kvcove::disklog {
namespace {

constexpr std::int64_t kAwaitNs = 30 * kSecond;

std::atomic<MakeDevice> uring_maker{nullptr};

Result<std::uint64_t> SizeOf(int fd, const std::string& path) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return FailErrno(Code::kUnavailable, "reading the size of " + path);
  if (S_ISREG(status.st_mode)) return static_cast<std::uint64_t>(status.st_size);
  if (!S_ISBLK(status.st_mode)) {
    return Fail(Code::kInvalid, path + " is neither a file nor a block device");
  }
  std::uint64_t bytes = 0;
  if (ioctl(fd, BLKGETSIZE64, &bytes) != 0) {
    return FailErrno(Code::kUnavailable, "reading the size of " + path);
  }
  return bytes;
}

// A killed process may hold the lock for a while: the kernel tears its io_uring down, which holds
// the file, some time after the process has ended.
constexpr auto kLockPatience = std::chrono::seconds(2);

bool Lock(int fd) {
  const auto until = std::chrono::steady_clock::now() + kLockPatience;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

Result<OpenFile> OpenLocked(const std::string& path, const FileDeviceOptions& options) {
  const int flags =
      (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | (options.direct ? O_DIRECT : 0);
  OpenFile file;
  file.fd = UniqueFd(open(path.c_str(), flags));
  if (!file.fd.valid() && errno == EINVAL && options.direct) {
    return Fail(Code::kInvalid, path +
                                    " is on a file system without O_DIRECT (tmpfs, some network "
                                    "file systems); use a directory on a local disk");
  }
  if (!file.fd.valid()) return FailErrno(Code::kUnavailable, "opening " + path);
  if (!Lock(file.fd.get())) {
    return Fail(Code::kUnavailable,
                path + " is in use by another process; `fuser " + path + "` names it");
  }
  KVCOVE_ASSIGN(file.size_bytes, SizeOf(file.fd.get(), path));
  return file;
}

}  // namespace

int Await(Device& device, const std::function<void(Device::Done)>& start) {
  // On the heap: a device may never complete, and then it outlives this frame.
  struct Outcome {
    bool done = false;
    int error = 0;
  };
  const auto outcome = std::make_shared<Outcome>();
  start([outcome](int error) { *outcome = {.done = true, .error = error}; });
  const std::int64_t end = SystemClock::Instance().NowNs() + kAwaitNs;
  while (!outcome->done) {
    // Nothing in flight and not done: the completion is lost, as with a test's device without
    // power.
    if (device.in_flight() == 0) return EIO;
    if (SystemClock::Instance().NowNs() > end) return ETIMEDOUT;
    device.Poll(kSecond);
  }
  return outcome->error;
}

void SetUringMaker(MakeDevice maker) { uring_maker.store(maker); }

Result<std::unique_ptr<Device>> OpenDevice(const std::string& path,
                                           const FileDeviceOptions& options) {
  KVCOVE_ASSIGN(OpenFile file, OpenLocked(path, options));
  const MakeDevice make_uring = uring_maker.load();
  if (make_uring == nullptr && options.backend == Backend::kUring) {
    return Fail(Code::kInternal, "this program is built without io_uring");
  }
  if (make_uring == nullptr || options.backend == Backend::kThreads) {
    return MakeThreadDevice(std::move(file), options);
  }
  // A duplicate shares the open file, and so the flock: if io_uring fails and closes its copy, the
  // lock stays with `file` for the threads.
  OpenFile copy{.fd = UniqueFd(fcntl(file.fd.get(), F_DUPFD_CLOEXEC, 0)),
                .size_bytes = file.size_bytes};
  auto device = make_uring(std::move(copy), options);
  if (device || options.backend == Backend::kUring) return device;
  LogInfo("disk {}: {}; threads read and write it instead", path, device.error().detail);
  return MakeThreadDevice(std::move(file), options);
}

}  // namespace kvcove::disklog
