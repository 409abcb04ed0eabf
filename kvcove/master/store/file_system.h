// SPDX-License-Identifier: Apache-2.0
// The files of one directory, as the control store needs them. Tests put a disk under the store
// that fails, hangs and loses what was not synced (tests/sim/fake_disk.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvcove/base/posix.h"
#include "kvcove/base/result.h"

namespace kvcove::master {

// Belongs to one thread at a time. Names have no slash. After an error of a call that writes,
// nobody knows how much of it reached the disk.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // False while the next operation would not return. Only a fake can tell: with it, a simulation
  // with one thread models a disk that hangs. The real disk says true, and the operation blocks.
  virtual bool Ready() { return true; }

  // The whole file; nothing when there is none. Errors: kDenied when other users may write to it.
  virtual Result<std::optional<std::string>> Read(const std::string& name) = 0;
  virtual Result<bool> Exists(const std::string& name) = 0;
  // To the end of a file that exists. Durable after Sync.
  virtual Status Append(const std::string& name, std::string_view bytes) = 0;
  virtual Status Sync(const std::string& name) = 0;
  // Makes `name` a new file with these bytes, and syncs it. An older file of that name is lost
  // first, so write to a name that nobody reads, then Rename.
  virtual Status Write(const std::string& name, std::string_view bytes) = 0;
  // Replaces `to` at once; durable when it returns. After an error the disk has the old file under
  // `to` or the new one.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Whether `name`, if it has been appended to, is still that file, in a directory that is still
  // this process's alone. False: it was removed or replaced meanwhile, and must be written anew.
  // Errors: kUnavailable when another process has the directory now.
  virtual Result<bool> Keeps(const std::string& /*name*/) { return true; }
  // For messages: '/var/lib/kvcove/control'.
  virtual std::string PathOf(const std::string& name) const = 0;
};

// A real directory that this process alone uses (lock file `lock`), and that no other user may
// write to. It keeps the lock until it is destroyed: a directory or lock file that is removed or
// moved away meanwhile is made anew before the next write, unless another process was faster. That
// one has the directory then, and this one writes nothing more.
class PosixFileSystem final : public FileSystem {
 public:
  // Makes the directory (0700) if need be. Errors: kUnavailable when another process uses it,
  // kDenied when other users may write to it (base/directory.h), kInternal for what the file system
  // refuses.
  static Result<std::unique_ptr<PosixFileSystem>> Open(const std::string& directory);
  // The same with the lock that another process holds and has sent, so that the directory is locked
  // all the while. That process may still write, so this one writes nothing before BeginToWrite.
  // Errors: also kInvalid when the lock is another directory's.
  static Result<std::unique_ptr<PosixFileSystem>> Adopt(const std::string& directory,
                                                        UniqueFd lock);
  void BeginToWrite() { writes_ = true; }
  // To send to a successor.
  const UniqueFd& lock() const { return lock_; }

  Result<std::optional<std::string>> Read(const std::string& name) override;
  Result<bool> Exists(const std::string& name) override;
  Status Append(const std::string& name, std::string_view bytes) override;
  Status Sync(const std::string& name) override;
  Status Write(const std::string& name, std::string_view bytes) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Result<bool> Keeps(const std::string& name) override;
  std::string PathOf(const std::string& name) const override { return path_ + "/" + name; }

 private:
  PosixFileSystem(UniqueFd directory, const std::string& path);
  // The lock file, locked.
  Result<UniqueFd> TakeLock() const;
  // Locks what `lock` has open, which must be the file of that name.
  Status Lock(const UniqueFd& lock) const;
  bool Names(const std::string& name, const UniqueFd& file) const;
  bool IsAway() const;
  // An error before BeginToWrite, or when another process has the directory.
  Status MayWrite();
  // Opens the file for Append and Sync, unless it is the one that is open.
  Status Use(const std::string& name);

  // Files are opened in it, not by its path: that may be exchanged between two looks (IsAway).
  UniqueFd directory_;
  const std::string path_;  // absolute: the program may change its own directory
  bool moved_ = false;      // `directory_` is another one now, and has nothing of this process's
  UniqueFd lock_;
  std::atomic<bool> writes_ = true;
  // Append and Sync use one descriptor: a write that fails in the background is reported to those
  // descriptors that were open then.
  std::string name_;
  UniqueFd file_;
};

}  // namespace kvcove::master
