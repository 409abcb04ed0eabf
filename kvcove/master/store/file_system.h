// SPDX-License-Identifier: Apache-2.0
// The files of one directory, as the control store needs them. Tests use a disk that fails, hangs
// and loses unsynced bytes (tests/sim/fake_disk.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvcove/base/posix.h"
#include "kvcove/base/result.h"

namespace kvcove::master {

// Belongs to one thread at a time. Names have no slash. After an error of a call that writes, any
// part of its bytes may be on the disk.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Returns false while the next operation would not return. Only a fake can know: so a simulation
  // with one thread models a disk that hangs. The real disk returns true, and the operation blocks.
  virtual bool Ready() { return true; }

  // Returns the whole file; nothing when there is none. Errors: kDenied when other users may write
  // to it.
  virtual Result<std::optional<std::string>> Read(const std::string& name) = 0;
  virtual Result<bool> Exists(const std::string& name) = 0;
  // Appends to a file that exists. Durable after Sync.
  virtual Status Append(const std::string& name, std::string_view bytes) = 0;
  virtual Status Sync(const std::string& name) = 0;
  // Makes `name` a new file with these bytes, and syncs it. Deletes an older file of that name
  // first, so write to a name that no start reads, then Rename.
  virtual Status Write(const std::string& name, std::string_view bytes) = 0;
  // Replaces `to` atomically; durable when it returns. After an error `to` is the old file or the
  // new one.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // Returns true while `name`, if it was appended to, is still that file, in a directory that only
  // this process uses. False: the file was removed or replaced, and must be written anew. Errors:
  // kUnavailable when another process has the directory now.
  virtual Result<bool> Keeps(const std::string& /*name*/) { return true; }
  // Returns a path for messages: '/var/lib/kvcove/control'.
  virtual std::string PathOf(const std::string& name) const = 0;
};

// A real directory that only this process uses (lock file `lock`), and that no other user may write
// to. Keeps the lock until it is destroyed. If the directory or lock file is removed or moved away
// meanwhile, this class makes it anew before the next write, unless another process was faster.
// That process has the directory then, and this one writes nothing more.
class PosixFileSystem final : public FileSystem {
 public:
  // Opens the directory, makes it (0700) if it is missing, and locks it. Errors: kUnavailable when
  // another process uses it, kDenied when other users may write to it (base/directory.h), kInternal
  // when the file system refuses.
  static Result<std::unique_ptr<PosixFileSystem>> Open(const std::string& directory);

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
  // Opens and locks the lock file.
  Result<UniqueFd> TakeLock() const;
  // Locks the open file of `lock`, which must be the file of that name.
  Status Lock(const UniqueFd& lock) const;
  bool Names(const std::string& name, const UniqueFd& file) const;
  bool IsAway() const;
  // An error when another process has the directory.
  Status MayWrite();
  // Opens the file for Append and Sync, unless it is the one that is open.
  Status Use(const std::string& name);

  // Files are opened relative to this descriptor: another directory may get the path (IsAway).
  UniqueFd directory_;
  const std::string path_;  // absolute: the program may change its own directory
  bool moved_ = false;      // `directory_` is a new one, without this process's files
  UniqueFd lock_;
  // Append and Sync use one descriptor: the kernel reports a write that fails in the background
  // only to descriptors that were open then.
  std::string name_;
  UniqueFd file_;
};

}  // namespace kvcove::master
