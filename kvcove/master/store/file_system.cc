// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/file_system.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "kvcove/base/directory.h"

namespace kvcove::master {
namespace {

constexpr int kLockTries = 10;

// Another user may have left a file in the directory while it was still open to others.
Status CheckOwnFile(int fd, const std::string& path) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return FailErrno(Code::kInternal, fmt::format("'{}'", path));
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0022) != 0) {
    return Fail(Code::kDenied,
                fmt::format("'{}' must be a file of this user's that no other may write to: "
                            "somebody else may have put it there; move it away or name another "
                            "data directory",
                            path));
  }
  return {};
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return FailErrno(Code::kInternal, fmt::format("writing '{}'", path));
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  std::string bytes;
  char buffer[65536];
  while (true) {
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FailErrno(Code::kInternal, fmt::format("reading '{}'", path));
    if (count == 0) return bytes;
    bytes.append(buffer, static_cast<std::size_t>(count));
  }
}

}  // namespace

PosixFileSystem::PosixFileSystem(UniqueFd directory, const std::string& path)
    : directory_(std::move(directory)), path_(std::filesystem::absolute(path)) {}

Result<std::unique_ptr<PosixFileSystem>> PosixFileSystem::Open(const std::string& directory) {
  KVCOVE_ASSIGN(UniqueFd opened, OpenOwnDirectory(directory, DirectoryUse::kData));
  std::unique_ptr<PosixFileSystem> disk(new PosixFileSystem(std::move(opened), directory));
  KVCOVE_ASSIGN(disk->lock_, disk->TakeLock());
  return disk;
}

Result<UniqueFd> PosixFileSystem::TakeLock() const {
  for (int tries = 0; tries < kLockTries; ++tries) {
    UniqueFd lock(
        openat(directory_.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!lock.valid()) return FailErrno(Code::kInternal, fmt::format("opening '{}/lock'", path_));
    KVCOVE_TRY(Lock(lock));
    // Another process may have made the file anew between open and flock. The lock counts only on
    // the file that has the name now.
    if (Names("lock", lock)) return lock;
  }
  return Fail(Code::kUnavailable,
              fmt::format("'{}/lock' is removed again and again; look who does it", path_));
}

bool PosixFileSystem::Names(const std::string& name, const UniqueFd& file) const {
  struct stat there{};
  struct stat open{};
  return fstatat(directory_.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         fstat(file.get(), &open) == 0 && there.st_dev == open.st_dev &&
         there.st_ino == open.st_ino;
}

Status PosixFileSystem::Lock(const UniqueFd& lock) const {
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return {};
  return Fail(Code::kUnavailable, fmt::format("the data directory '{}' is in use by another "
                                              "kvcove; stop it or name another directory",
                                              path_));
}

Status PosixFileSystem::MayWrite() {
  if (IsAway()) {
    KVCOVE_ASSIGN(directory_, OpenOwnDirectory(path_, DirectoryUse::kData));
    // The directory at this path now has none of this process's writes.
    file_.Reset();
    moved_ = true;
  }
  if (Names("lock", lock_)) return {};
  KVCOVE_ASSIGN(lock_, TakeLock());
  return {};
}

// Returns true if the directory was removed or moved: a process that starts with this path would
// find another one.
bool PosixFileSystem::IsAway() const {
  struct stat there{};
  struct stat open{};
  if (fstat(directory_.get(), &open) != 0) return false;
  if (lstat(path_.c_str(), &there) != 0) return errno == ENOENT || errno == ENOTDIR;
  return there.st_dev != open.st_dev || there.st_ino != open.st_ino;
}

Result<bool> PosixFileSystem::Keeps(const std::string& name) {
  KVCOVE_TRY(MayWrite());
  if (std::exchange(moved_, false)) return false;
  if (file_.valid() && name_ == name) return Names(name, file_);
  return Exists(name);
}

Result<std::optional<std::string>> PosixFileSystem::Read(const std::string& name) {
  const std::string path = PathOf(name);
  // O_NONBLOCK: the open must not block on a pipe of that name.
  const UniqueFd file(
      openat(directory_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) return std::nullopt;
    return FailErrno(Code::kInternal, fmt::format("opening '{}'", path));
  }
  KVCOVE_TRY(CheckOwnFile(file.get(), path));
  KVCOVE_ASSIGN(std::string bytes, ReadAll(file.get(), path));
  return bytes;
}

Result<bool> PosixFileSystem::Exists(const std::string& name) {
  struct stat status{};
  if (fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno == ENOENT) return false;
  return FailErrno(Code::kInternal, fmt::format("'{}'", PathOf(name)));
}

Status PosixFileSystem::Use(const std::string& name) {
  KVCOVE_TRY(MayWrite());
  if (moved_) {
    return Fail(Code::kUnavailable, fmt::format("'{}' was removed or moved away", path_));
  }
  if (file_.valid() && name_ == name) return {};
  const std::string path = PathOf(name);
  UniqueFd file(openat(directory_.get(), name.c_str(),
                       O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return FailErrno(Code::kInternal, fmt::format("opening '{}'", path));
  KVCOVE_TRY(CheckOwnFile(file.get(), path));
  file_ = std::move(file);
  name_ = name;
  return {};
}

Status PosixFileSystem::Append(const std::string& name, std::string_view bytes) {
  KVCOVE_TRY(Use(name));
  return WriteAll(file_.get(), bytes, PathOf(name));
}

Status PosixFileSystem::Sync(const std::string& name) {
  KVCOVE_TRY(Use(name));
  if (fdatasync(file_.get()) == 0) return {};
  return FailErrno(Code::kInternal, fmt::format("syncing '{}'", PathOf(name)));
}

Status PosixFileSystem::Write(const std::string& name, std::string_view bytes) {
  KVCOVE_TRY(MayWrite());
  moved_ = false;
  const std::string path = PathOf(name);
  const int at = directory_.get();
  unlinkat(at, name.c_str(), 0);  // a rest of a process that was killed, or of a failed attempt
  const UniqueFd file(
      openat(at, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return FailErrno(Code::kInternal, fmt::format("creating '{}'", path));
  Status status = WriteAll(file.get(), bytes, path);
  if (status && fsync(file.get()) != 0) {
    status = FailErrno(Code::kInternal, fmt::format("syncing '{}'", path));
  }
  if (!status) unlinkat(at, name.c_str(), 0);  // frees its room, on a full disk
  return status;
}

Status PosixFileSystem::Rename(const std::string& from, const std::string& to) {
  KVCOVE_TRY(MayWrite());
  if (name_ == from || name_ == to) file_.Reset();
  const int at = directory_.get();
  if (renameat(at, from.c_str(), at, to.c_str()) != 0) {
    return FailErrno(Code::kInternal, fmt::format("renaming '{}' to '{}'", PathOf(from), to));
  }
  // The rename is durable only once the directory is synced.
  if (fsync(at) != 0) return FailErrno(Code::kInternal, fmt::format("syncing '{}'", path_));
  return {};
}

}  // namespace kvcove::master
