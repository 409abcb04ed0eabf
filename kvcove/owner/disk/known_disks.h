// SPDX-License-Identifier: Apache-2.0
// The note: which disks have seen every removal of a pool. The note is the file `disk` beside the
// pool's generations or, in a cluster, beside the owner's identity. Values on any other disk may
// have been removed or replaced meanwhile, so such a disk starts empty.
//
// Each owner of a process has a note of its own: `disk`, then `disk-1` and so on.
//
// If the file cannot be written, or its file system hangs, the master of a cluster stores instead
// that no process but this one may use the disks (wire::RenewRequest::disks_void). That covers all
// disks of the owner.
//
// The note has a line for each disk: its number, the shares of the keys that this disk alone holds
// (segment/tier_table.h), and the number of its last opening, by which a copy of the disk is known
// (disklog::Superblock::opening has the crash points). Earlier versions wrote no opening, and no
// shares for a disk that has them all; they take a note with openings for a damaged one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"
#include "kvcove/base/result.h"

namespace kvcove::owner {

struct KnownDisk {
  Id128 disk;  // Superblock::disk
  std::uint64_t shares = 0;
  Id128 opening;  // Superblock::opening; zero: not known, any is accepted
  bool operator==(const KnownDisk&) const = default;
};

// Thread-safe. A change is durable when its call returns. Errors: kUnavailable.
class KnownDisks {
 public:
  // `owner`: the owner's index in its process. `lock`: the directory's, which this object holds,
  // too. A thread that a stop has left behind in a write may end it late: until then, no other
  // process may have the directory.
  explicit KnownDisks(std::string directory, std::size_t owner = 0, UniqueFd lock = {});
  // Deletes the notes of owners from this index on, which the pool does not have any more: their
  // disks miss all that happens from now on.
  static Status ForgetOwners(const std::string& directory, std::size_t from);
  // Returns true if a note may have this name, so that no disk's file in the directory may.
  static bool IsNote(std::string_view name);
  const std::string& directory() const { return directory_; }
  // Returns the named disks; none if the note is damaged.
  Result<std::vector<KnownDisk>> Read() const;
  // Called under the lock, once the note is written: state that `then` sets follows the note when
  // several threads write it.
  using Then = std::function<void()>;
  // Names these disks and no others.
  Status Write(std::span<const KnownDisk> disks, const Then& then = [] {});
  // Names this disk, and no longer those that had its shares.
  Status Note(const KnownDisk& disk);
  // Names this disk if `holds` returns true. `holds` is called under the lock, so a strike whose
  // reason it has not seen is written after this note, and is not undone. False: the disk is not
  // named.
  Result<bool> NoteIf(const KnownDisk& disk, const std::function<bool()>& holds);
  // Notes another opening of this disk. False: the note does not name the disk with these shares.
  Result<bool> NoteOpening(const KnownDisk& disk);
  // Strikes the disks that have these shares: durably in the file, or because the master has stored
  // that all of the owner's disks are void.
  Status Forget(std::uint64_t shares, const Then& then = [] {});

  // Returns true once a Forget could not be written, or took too long: the link asks the master
  // from then on, for as long as this process lives. Also while the opening of the disks hangs.
  bool wants_void() const { return wants_void_ || opening_hangs_; }
  // Notes that the file system does not answer a Forget.
  void WantVoid() { wants_void_ = true; }
  // Notes whether the opening of the disks hangs. If it continues before the master has stored that
  // the disks are void, nothing has relied on that, and the next start keeps what they hold.
  void SetOpeningHangs(bool hangs) { opening_hangs_ = hangs; }
  // Returns true while the master has stored that the disks are void: then each of them counts as
  // struck, whatever the file says.
  bool is_void() const { return void_; }
  // Notes whether the master has stored that the disks are void.
  void SetVoid(bool stored) { void_ = stored; }
  // Returns how often the file was written, also in vain.
  std::uint64_t writes() const { return writes_; }

 private:
  Result<std::vector<KnownDisk>> ReadLocked() const KVCOVE_REQUIRES(mutex_);
  Status NoteLocked(const KnownDisk& disk) KVCOVE_REQUIRES(mutex_);
  Status ForgetLocked(std::uint64_t shares) KVCOVE_REQUIRES(mutex_);
  Status WriteLocked(std::span<const KnownDisk> disks) KVCOVE_REQUIRES(mutex_);
  const std::string directory_;
  const std::string name_;
  const UniqueFd lock_;
  mutable Mutex mutex_;
  // A change failed: the file may have changed, but not durably.
  bool unsynced_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Atomic: the link reads and sets these while another thread holds the lock for a write of the
  // file.
  std::atomic<bool> wants_void_{false};
  std::atomic<bool> opening_hangs_{false};
  std::atomic<bool> void_{false};
  std::atomic<std::uint64_t> writes_{0};
};

inline constexpr std::size_t kMaxDisks = 16;
// Returns the shares of each disk: in proportion to its size, one at least, and as few as possible
// that move. `before`: the current shares, none for an empty disk. Takes at most kMaxDisks.
std::vector<std::uint64_t> AssignShares(std::span<const std::uint64_t> sizes,
                                        std::span<const std::uint64_t> before);

}  // namespace kvcove::owner
