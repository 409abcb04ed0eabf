// SPDX-License-Identifier: Apache-2.0
// Formatting, with its refusals. check_file.cc has the commands that read.
#include "kvcove/disklog/disk_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"

namespace kvcove::disklog {
namespace {

constexpr long kNfsMagic = 0x6969;

struct Signature {
  std::size_t offset;
  std::string_view bytes;
  const char* name;
};
constexpr Signature kSignatures[] = {
    {1080, std::string_view("\x53\xEF", 2), "an ext file system"},
    {0, "XFSB", "an XFS file system"},
    {65600, "_BHRfS_M", "a btrfs file system"},
    {512, "EFI PART", "a GPT partition table"},
    {510, std::string_view("\x55\xAA", 2), "a partition table or boot record"},
    {0, std::string_view("LUKS\xBA\xBE", 6), "a LUKS volume"},
    {536, "LVM2 001", "an LVM volume"},
    {4086, "SWAPSPACE2", "swap space"},
};

// Names the contents of the file's first 128 KiB; empty if these are all zero.
std::string Contents(int fd) {
  std::string start(128 << 10, '\0');
  const ssize_t got = pread(fd, start.data(), start.size(), 0);
  start.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  if (SuperblockVersion(start)) return "a disk of kvcove";
  for (const Signature& signature : kSignatures) {
    if (start.size() >= signature.offset + signature.bytes.size() &&
        start.substr(signature.offset, signature.bytes.size()) == signature.bytes) {
      return signature.name;
    }
  }
  const bool zero = std::ranges::all_of(start, [](char c) { return c == 0; });
  return zero ? "" : "data";
}

// A file system that copies on write (btrfs) needs new room for each write to a block that it has
// written before, and has none when it is full, unless a file was marked so while it was empty.
// Other file systems refuse.
void WriteInPlace(int fd) {
  constexpr int kCompression = FS_COMPR_FL | FS_NOCOMP_FL;
  int flags = 0;
  if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return;
  // First, in a call of its own: btrfs refuses the mark for a file that has a rule of compression,
  // as it has from its directory, also if the same call ends that rule.
  if ((flags & kCompression) != 0) {
    flags &= ~kCompression;
    (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
  }
  flags |= FS_NOCOW_FL;
  (void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

Status Allocate(int fd, const DiskSpec& spec, const std::string& file) {
  // Compares first, so that a disk that does not fit fails before the file is changed.
  struct statfs room{};
  if (fstatfs(fd, &room) == 0) {
    const std::uint64_t free = room.f_bavail * static_cast<std::uint64_t>(room.f_bsize);
    struct stat status{};
    const std::uint64_t has =
        fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
    if (free + has < spec.size_bytes) {
      return Fail(Code::kNoSpace, "the file system of " + file + " has " + FormatSize(free) +
                                      " free, a disk of " + FormatSize(spec.size_bytes) +
                                      " does not fit");
    }
  }
  WriteInPlace(fd);
  if (ftruncate(fd, static_cast<off_t>(spec.size_bytes)) != 0 ||
      fallocate(fd, 0, 0, static_cast<off_t>(spec.size_bytes)) != 0) {
    return FailErrno(errno == ENOSPC ? Code::kNoSpace : Code::kInvalid, "allocating " + file);
  }
  return {};
}

Status RefuseWhatIsThere(int fd, const std::string& file, bool yes) {
  const std::string contents = Contents(fd);
  if (contents.empty() || yes) return {};
  return Fail(Code::kDenied, file + " holds " + contents +
                                 "; everything on it will be lost: add --yes if that is meant");
}

}  // namespace

Status CheckFileSystem(const std::string& path) {
  struct statfs status{};
  if (statfs(path.c_str(), &status) != 0) return FailErrno(Code::kInvalid, "looking at " + path);
  const auto type = static_cast<long>(status.f_type);
  if (type == TMPFS_MAGIC || type == RAMFS_MAGIC) {
    return Fail(Code::kInvalid, path + " is in memory (tmpfs); use a directory on a disk");
  }
  if (type == kNfsMagic || type == static_cast<long>(SMB_SUPER_MAGIC)) {
    return Fail(Code::kInvalid,
                path + " is on a network file system; use a directory on a local disk");
  }
  return {};
}

Result<DiskSpec> ParseDiskSpec(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  DiskSpec spec{.path = text.substr(0, colon)};
  if (spec.path.empty()) return Fail(Code::kInvalid, "a disk is PATH:SIZE, like /mnt/nvme0:500GiB");
  if (colon == std::string::npos) return spec;
  KVCOVE_ASSIGN(spec.size_bytes, ParseSize(text.substr(colon + 1)));
  return spec;
}

std::string DiskFileOf(const std::string& path) {
  struct stat status{};
  if (stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return path;
  return path + (path.ends_with('/') ? "" : "/") + kDiskFileName;
}

Status FormatFile(const DiskSpec& spec, const FormatFileOptions& options) {
  const std::string file = DiskFileOf(spec.path);
  struct stat status{};
  const bool exists = stat(file.c_str(), &status) == 0;
  // A file system that has failed says so of each file, also of one that is there: no mistake of
  // the caller, and no file to be made, or to be unlinked below.
  if (!exists && errno == EIO) return FailErrno(Code::kUnavailable, "looking at " + file);
  const bool device = exists && S_ISBLK(status.st_mode);
  if (!device && spec.size_bytes == 0) {
    return Fail(Code::kInvalid, file + " is a file: say its size, like " + spec.path + ":500GiB");
  }
  const std::uint64_t least = kZonesStart + (kMinZones * options.format.zone_bytes);
  if (!device && spec.size_bytes < least) {
    return Fail(Code::kInvalid, "a disk of " + FormatSize(spec.size_bytes) +
                                    " is too small: with zones of " +
                                    FormatSize(options.format.zone_bytes) + " it needs at least " +
                                    FormatSize(least));
  }
  {
    // O_EXCL of a block device: the kernel refuses one that is mounted, or that swap, LVM or RAID
    // uses, or a partition of it, whatever name `file` has for it (/dev/disk/by-id).
    const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC | (device ? O_EXCL : O_CREAT), 0600));
    if (!fd.valid() && device && errno == EBUSY) {
      return Fail(Code::kDenied,
                  file + " is mounted or in use, or a partition of it is; unmount " + "it first");
    }
    if (!fd.valid()) return FailErrno(Code::kInvalid, "opening " + file);
    const auto undo = [&](Status failed) {
      if (!exists) unlink(file.c_str());
      return failed;
    };
    if (!device) {
      if (auto sound = CheckFileSystem(file); !sound) return undo(std::move(sound));
    }
    KVCOVE_TRY(RefuseWhatIsThere(fd.get(), file, options.yes));
    // Locks before anything is changed, because an owner may be using the disk. Each OpenDevice has
    // an open file of its own, so the lock ends here and is taken again below.
    if (auto locked = OpenDevice(file); !locked) {
      return undo(std::unexpected(std::move(locked).error()));
    }
    if (!device) {
      if (auto room = Allocate(fd.get(), spec, file); !room) return undo(std::move(room));
    }
  }
  KVCOVE_ASSIGN(const auto opened, OpenDevice(file));
  return Format(*opened, options.format);
}

}  // namespace kvcove::disklog
