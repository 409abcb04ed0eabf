// SPDX-License-Identifier: Apache-2.0
// What `kvcove doctor --disk` says of a disk tier's place. Writes nothing that stays.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/cli/doctor.h"
#include "kvcove/disklog/disk_file.h"
#include "kvcove/server/daemon.h"

namespace kvcove::cli {
namespace {

Finding Failed(const std::string& what, std::string seen, std::string change) {
  return {.what = what,
          .verdict = Verdict::kFail,
          .seen = std::move(seen),
          .change = std::move(change)};
}

// The directory in which the disk's file would be made.
std::string ParentOf(const std::string& file) {
  const std::filesystem::path parent = std::filesystem::path(file).parent_path();
  return parent.empty() ? "." : parent.string();
}

Status TryDirect(const std::string& directory) {
  const std::string name = fmt::format("{}/.kvcove-doctor-{}", directory, getpid());
  const UniqueFd fd(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600));
  const int error = errno;
  unlink(name.c_str());
  if (fd.valid()) return {};
  errno = error;
  return FailErrno(Code::kInvalid, "opening a file there with O_DIRECT");
}

// It is made by the first start.
Finding NewDisk(const std::string& what, const std::string& file, std::uint64_t size_bytes) {
  const std::string directory = ParentOf(file);
  struct statvfs space{};
  if (statvfs(directory.c_str(), &space) != 0) {
    return Failed(what, fmt::format("{}: {}", directory, std::strerror(errno)),
                  "make the directory, or name another one");
  }
  if (const Status system = disklog::CheckFileSystem(directory); !system) {
    return Failed(what, system.error().detail, "name a directory on a local disk");
  }
  if (const Status direct = TryDirect(directory); !direct) {
    return Failed(what, direct.error().detail,
                  "give the directory to this user, or use another file system, such as ext4 or "
                  "xfs, or a block device");
  }
  const std::uint64_t free = std::uint64_t{space.f_bavail} * space.f_frsize;
  if (free < size_bytes) {
    return Failed(what, fmt::format("{} free in {}", FormatSize(free), directory),
                  fmt::format("the file is allocated ahead: make room, or give less than {}",
                              FormatSize(free)));
  }
  return {.what = what,
          .seen = fmt::format("nothing there yet; {} free, O_DIRECT works", FormatSize(free))};
}

// A file or a block device that is there.
Finding FoundDisk(const std::string& what, const std::string& file, const disklog::DiskSpec& spec) {
  struct stat status{};
  const bool block = stat(file.c_str(), &status) == 0 && S_ISBLK(status.st_mode);
  const Status system = block ? Status() : disklog::CheckFileSystem(file);
  if (!system) return Failed(what, system.error().detail, "name a file on a local disk");
  const auto device = disklog::OpenDevice(file, {.read_only = true});
  if (!device) {
    const bool used = device.error().code == Code::kUnavailable;
    Finding finding = Failed(what, device.error().detail,
                             used ? "an owner that runs has it; another one needs another disk"
                                  : "use another file system, or a block device");
    if (used) finding.verdict = Verdict::kWarn;
    return finding;
  }
  const std::string by =
      (*device)->kind() == "threads" ? "by threads, as io_uring is not allowed" : "by io_uring";
  const auto super = disklog::Log::ReadSuperblock(**device);
  if (!super && super.error().code == Code::kInvalid) {
    return {
        .what = what,
        .verdict = Verdict::kNote,
        .seen = fmt::format("{}, {}; no disk of kvcove", FormatSize((*device)->size_bytes()), by),
        .change = "a start formats it if it is empty, and else names the command that does"};
  }
  if (!super) {
    return Failed(what, super.error().detail,
                  "use the version that wrote it, or lose what it holds: kvcove disk format");
  }
  if (super->device_bytes != spec.size_bytes) {
    return Failed(what,
                  fmt::format("a disk of {} B, not of {} B", super->device_bytes, spec.size_bytes),
                  "give its size, or remove it and lose what it holds");
  }
  return {.what = what,
          .seen = fmt::format("a disk of pool {}, {} in zones of {}, used {}", ToHex(super->pool),
                              FormatSize(super->device_bytes), FormatSize(super->zone_bytes), by)};
}

Finding FindingOf(const disklog::DiskSpec& spec) {
  const std::string what = fmt::format("disk {}:{}", spec.path, FormatSize(spec.size_bytes));
  const std::string file = disklog::DiskFileOf(spec.path);
  struct stat status{};
  const std::uint64_t least = disklog::kZonesStart + (disklog::kMinZones * owner::kLeastZoneBytes);
  if (spec.size_bytes < least) {
    return Failed(what, "too small", "give it " + FormatSize(least + kMiB) + " at least");
  }
  if (stat(file.c_str(), &status) != 0) return NewDisk(what, file, spec.size_bytes);
  return FoundDisk(what, file, spec);
}

}  // namespace

Status AddDiskFindings(const DoctorOptions& options, std::vector<Finding>& findings) {
  KVCOVE_ASSIGN(const auto disks, owner::ParseDisks("--disk", options.disks));
  for (const disklog::DiskSpec& disk : disks) findings.push_back(FindingOf(disk));
  return {};
}

}  // namespace kvcove::cli
