// SPDX-License-Identifier: Apache-2.0
// The note of which disks have seen every removal of a pool: the file `disk` beside the pool's
// generations, or beside an owner's identity in a cluster. What is on any other disk may have been
// removed or replaced meanwhile, so such a disk starts empty.
//
// Each owner of a process has a note of its own: `disk`, then `disk-1` and so on.
//
// Where the file cannot be written, the master of a cluster keeps instead that no process but this
// one may use the disks (wire::RenewRequest::disks_void). It does so for all of the owner's disks.
//
// A line for each disk: its number, and the shares of the keys that it holds and no other one does
// (segment/tier_table.h). A disk alone has all of them, and its line no shares.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/random.h"
#include "kvcove/base/result.h"
#include "kvcove/model/ids.h"

namespace kvcove::owner {

struct KnownDisk {
  Id128 disk;  // Superblock::disk
  std::uint64_t shares = 0;
  bool operator==(const KnownDisk&) const = default;
};

// Thread-safe. What is written is durable when a call returns. Errors: kUnavailable.
class KnownDisks {
 public:
  // `owner`: which of a process's owners.
  explicit KnownDisks(std::string directory, std::size_t owner = 0);
  // The pool has no owners from this one on: whatever disks they had miss what happens from now on.
  static Status ForgetOwners(const std::string& directory, std::size_t from);
  // A name that a disk's file cannot have in that directory.
  static bool IsNote(std::string_view name);
  const std::string& directory() const { return directory_; }
  // What is damaged names no disk.
  Result<std::vector<KnownDisk>> Read() const;
  // `then` is called under the lock, once it is written: what it sets follows the note when several
  // threads write it.
  using Then = std::function<void()>;
  // These and no others.
  Status Write(std::span<const KnownDisk> disks, const Then& then = [] {});
  // Instead of what had its shares.
  Status Note(const KnownDisk& disk);
  // The same, if `holds` says so while no other call comes between: a Forget that begins after it
  // said no more is not undone. False: it is not noted. `holds` is called under the lock.
  Result<bool> NoteIf(const KnownDisk& disk, const std::function<bool()>& holds);
  // What has these shares is known no more: durably here, or at the master.
  Status Forget(std::uint64_t shares, const Then& then = [] {});

  // Some Forget could not be written here. The link asks the master then, for as long as this
  // process lives.
  bool wants_void() const { return wants_void_; }
  // Whether the master has stored that the disks are void.
  void SetVoid(bool stored) { void_ = stored; }

 private:
  Result<std::vector<KnownDisk>> ReadLocked() const KVCOVE_REQUIRES(mutex_);
  Status NoteLocked(const KnownDisk& disk) KVCOVE_REQUIRES(mutex_);
  Status ForgetLocked(std::uint64_t shares) KVCOVE_REQUIRES(mutex_);
  Status WriteLocked(std::span<const KnownDisk> disks) KVCOVE_REQUIRES(mutex_);
  const std::string directory_;
  const std::string name_;
  mutable Mutex mutex_;
  // A change failed, and may be done all the same, but not durable.
  bool unsynced_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::atomic<bool> wants_void_{false};
  std::atomic<bool> void_{false};
};

// Which shares each disk has: in proportion to its size, one at least, with as few as possible that
// change their disk. `before`: those of now, none for a disk that is empty. Needs at most
// kMaxDisks.
inline constexpr std::size_t kMaxDisks = 16;
std::vector<std::uint64_t> AssignShares(std::span<const std::uint64_t> sizes,
                                        std::span<const std::uint64_t> before);

}  // namespace kvcove::owner
