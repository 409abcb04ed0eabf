// SPDX-License-Identifier: Apache-2.0
// A file system of a test's own, on a loop device or in memory, which fails or hangs on demand.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "kvcove/base/posix.h"
#include "tests/becomes.h"

namespace kvcove {

class MountedFileSystem {
 public:
  // `type`: ext4, xfs, btrfs or tmpfs. `image` is the file that keeps the contents.
  MountedFileSystem(std::string type, std::string image, std::string place)
      : type_(std::move(type)), image_(std::move(image)), place_(std::move(place)) {}
  ~MountedFileSystem() {
    Thaw();
    if (mounted_) (void)umount2(place_.c_str(), MNT_DETACH);
  }
  MountedFileSystem(const MountedFileSystem&) = delete;
  MountedFileSystem& operator=(const MountedFileSystem&) = delete;

  // Makes the file system and mounts it, for this process and its children alone: the kernel
  // unmounts it and detaches the loop device when the last of them has ended, however that ends.
  bool Make() {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return false;
    }
    // The smallest size that mkfs.xfs accepts. The file is sparse.
    if (type_ != "tmpfs" &&
        !Run(fmt::format("truncate -s 300M {0} && mkfs.{1} -q {0}", image_, type_))) {
      return false;
    }
    if (!Mount()) return false;
    // Files are compressed, as on many machines with btrfs, unless a file's owner prevents that.
    return type_ != "btrfs" || Run("chattr +c " + place_);
  }
  bool Mount() {
    std::filesystem::create_directories(place_);
    const std::string what = type_ == "tmpfs" ? "-o size=16M tmpfs" : "-o loop " + image_;
    mounted_ = Run(fmt::format("mount -t {} {} {}", type_, what, place_));
    return mounted_;
  }
  // The last file may be closed some time after its process has ended: io_uring is slow to end.
  bool Unmount() {
    root_ = UniqueFd();
    mounted_ = !Becomes([&] { return umount2(place_.c_str(), 0) == 0; });
    return !mounted_;
  }

  // False: this kernel cannot do that to such a file system. It would refuse the argument.
  bool CanShutDown() { return Control(kShutDown, ~0U) != 0 && errno == EINVAL; }
  // No operation writes anything more, and what no sync has written is lost.
  bool ShutDown() { return Control(kShutDown, kWithoutJournal) == 0; }
  // A file system remains frozen when its last mount has ended, and no process that waits for it
  // can be killed. So another process thaws it when this one has ended, or hangs.
  bool Freeze() {
    const std::string commands =
        fmt::format("cd {}; trap '' INT TERM; timeout -s KILL 300 cat; fsfreeze -u .", place_);
    guard_ = popen(Shell(commands).c_str(), "we");
    return guard_ != nullptr && Control(FIFREEZE, 0) == 0;
  }
  bool Thaw() {
    if (guard_ == nullptr) return true;
    const bool thawed = Control(FITHAW, 0) == 0;
    (void)pclose(std::exchange(guard_, nullptr));
    return thawed;
  }
  // While a file is open for writing, as a disk is, only an error makes a file system read-only.
  bool MakeReadOnly(bool by_error) {
    return Run(fmt::format("mount -o remount,{} {}", by_error ? "abort" : "ro", place_));
  }
  bool MakeWritable() { return Run("mount -o remount,rw " + place_); }
  // Occupies all room. False: there is some left.
  bool Fill() {
    const UniqueFd fd(open(Filler().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    off_t end = 0;
    for (off_t step = off_t{64} << 20; step >= 4096;) {
      if (fallocate(fd.get(), 0, end, step) == 0) {
        end += step;
      } else {
        step /= 2;
      }
    }
    // btrfs keeps small files in blocks of metadata, which have room of their own.
    const std::string probe = place_ + "/probe";
    std::ofstream more(probe);
    more << std::string(1 << 20, 'x') << std::flush;
    std::filesystem::remove(probe);
    return end > 0 && !more;
  }
  bool Empty() { return std::filesystem::remove(Filler()); }

 private:
  static constexpr unsigned long kShutDown = _IOR('X', 125, std::uint32_t);  // of ext4 and xfs
  static constexpr std::uint32_t kWithoutJournal = 2;

  static std::string Shell(const std::string& commands) {
    return "exec >/dev/null 2>&1; PATH=$PATH:/sbin:/usr/sbin; " + commands;
  }
  static bool Run(const std::string& commands) { return std::system(Shell(commands).c_str()) == 0; }
  std::string Filler() const { return place_ + "/filler"; }
  int Control(unsigned long request, std::uint32_t argument) {
    if (!root_.valid()) root_ = UniqueFd(open(place_.c_str(), O_RDONLY | O_CLOEXEC));
    return ioctl(root_.get(), request, &argument);
  }

  const std::string type_;
  const std::string image_;
  const std::string place_;
  bool mounted_ = false;
  FILE* guard_ = nullptr;  // its standard input, while the file system is frozen
  UniqueFd root_;
};

}  // namespace kvcove
