// SPDX-License-Identifier: Apache-2.0
// The disks below one owner's memory: their threads, and the note of those that the next start may
// use. An owner without disks has one of these over an empty set, so no caller asks whether there
// are any.
//
//   closed --Open, OpenEach--> open --Pause--> paused --StartPaused--> open --Stop--> over
//
// Threads. Thread-safe, except for opening, pausing and stopping, which belong to one thread at a
// time. Under the owner's lock only `set` and Wake may be called.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/owner/disk/disk_set.h"
#include "kvcove/owner/disk/disk_thread.h"
#include "kvcove/owner/disk/owner_facts.h"
#include "kvcove/owner/disk/strikes.h"
#include "kvcove/owner/memory/memory.h"

namespace kvcove::owner {

// How often a thread that waits for a disk checks whether the link, and so its wait, has ended.
inline constexpr std::int64_t kDiskLookNs = 100 * kMillisecond;

struct DisksOptions {
  std::vector<disklog::DiskSpec> disks;  // empty: an owner without disks
  DiskAdmit admit = DiskAdmit::kPolicy;
  std::uint64_t write_rate = 0;  // bytes per second; 0 is any rate
  DiskQuotas quotas;             // of all disks together
  TierOptions tier;
  std::uint64_t memory_bytes = 0;  // the owner's
  bool cluster = false;            // a master lists the objects on the disks
};

// The facts about an owner's disks for a successor's process (docs/upgrade.md).
struct HandedDisks {
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> shares;
  std::vector<Id128> numbers;   // Superblock::disk, by disk; zero: the disk must start empty
  std::vector<Id128> openings;  // Superblock::opening, by disk
  // In a cluster:
  std::vector<std::string> asides;  // by disk, the reason why it is set aside, or empty
  std::vector<SlotUpdate> slots;
  std::string directory;
  OwnerFacts facts;
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, seed, shares, numbers, openings, asides, slots, directory, facts);
  }
};

class OwnerDisks {
 public:
  OwnerDisks(const DisksOptions& options, Memory& memory, const Clock& clock);

  const DisksOptions& options() const { return options_; }
  bool none() const { return options_.disks.empty(); }
  // Returns the tier for the core; null without disks.
  LowerTier* lower() { return none() ? nullptr : set_.get(); }
  DiskSet& set() { return *set_; }
  const DiskSet& set() const { return *set_; }
  bool open() const { return open_; }
  // Returns the disk's thread. Null: the disk is closed, or could not be opened.
  DiskThread* ThreadOf(std::size_t disk) const;
  // Returns a count of the changes of the disks and of the note: while it is the same, a copy of
  // all of them equals them.
  std::uint64_t changes() const;
  // Wakes the threads that have work.
  void Wake() const;
  // Ends calls at their deadlines, sets disks aside that hang, and logs that. Belongs to the
  // janitor.
  void Tick();
  // Returns true once OpenEach has made no progress for TierOptions::hang_ns. Belongs to the
  // janitor.
  bool opening_hangs() const { return opening_hangs_; }
  // Sets all disks aside: memory continues alone, and values that only a disk has are misses. The
  // next start, or a successor's process, empties and uses the disks.
  void Unmount();

  // ---- one thread at a time
  // Sets the note, before the owner starts; Open does so, too.
  void SetNote(std::shared_ptr<KnownDisks> known) { known_ = std::move(known); }
  // Opens all disks, or none. Errors: those of OpenTiers.
  Status Open(const TierPlace& place, Promoter& promoter);
  // Opens each disk or sets it aside, unless `stops` becomes true.
  void OpenEach(const TierPlace& place, Promoter& promoter, const std::atomic<bool>& stops);
  // Waits until all disks have written their queued values, 10 s at most. All stop at once, so that
  // they need no more time than one.
  void Stop();
  // Ends strikes, and leaves behind the disks that hang, after Stop and after the janitor, which
  // watches them, has ended. The thread of such a disk, or of a strike that hangs, may use the set
  // and the segment's header one day, so both remain for ever.
  void LeaveHanging();

  // ---- the note
  // Returns the note; null before SetNote.
  KnownDisks* note() const { return known_.get(); }
  // Strikes all disks from the note: the next start does not use their contents. Waits for its file
  // system.
  Status ForgetAll();
  // Waits until the disk is struck from the note, by a strike that `strike` keeps from one call to
  // the next. Errors: kTimeout: not by `deadline_ns`, with 0 always, so that the call only looks;
  // kUnavailable: the note cannot be written.
  Status AwaitStruck(std::size_t disk, std::shared_ptr<const Strike>& strike,
                     std::int64_t deadline_ns);
  // Waits until each disk has proven its part of the removal, or is struck from the note. Errors:
  // kTimeout: not by `deadline_ns`, with 0 always; kUnavailable: a disk proves nothing any more,
  // and the note cannot be written.
  Status AwaitRemoval(DisksRemoval& removal, std::int64_t deadline_ns);

  // ---- an upgrade (docs/upgrade.md)
  // Writes most of the queued values before any caller waits for the upgrade, and waits for disks
  // that are being opened, and for openings that are being noted. Takes 2 s at most.
  void Drain() const;
  // Waits while the note is being written, for a moment. False: its file system hangs.
  bool AwaitNote() const;
  // Closes the disks, so that the successor, or StartPaused, can open them, and strikes them from
  // the note. The owner must be frozen. Errors: kUnavailable: a disk hangs, and is set aside;
  // kTimeout: the note's file system hangs.
  Status Pause();
  // Returns true once after each Pause.
  bool TakePaused();
  HandedDisks HandOver() const;
  // Takes over in the successor's process, before StartPaused. Takes the owner's lock.
  void Adopt(const HandedDisks& handed);
  // Starts threads that open the disks; keys on a disk are misses until it is open. Continues where
  // an earlier call failed. `voids`: what the disks hold is void until BeginAnew. Errors: those of
  // StartThread.
  Status StartPaused(const TierPlace& place, Promoter& promoter, bool voids);

 private:
  std::unique_ptr<DiskSet> MakeSet() const;
  Status StartStrikes();
  bool noting() const;
  void WatchStrikes(std::int64_t elapsed_ns);
  void WatchOpening(std::int64_t elapsed_ns);

  const DisksOptions options_;
  Memory& memory_;
  const Clock& clock_;
  std::unique_ptr<DiskSet> set_;
  // One for each disk, once `open_`; null for a disk that could not be opened.
  std::vector<std::unique_ptr<DiskThread>> threads_;
  // Set once `threads_` is complete: other threads read `threads_` only after they have seen it
  // set.
  std::atomic<bool> open_{false};
  std::atomic<bool> opens_{false};  // OpenEach has begun
  std::shared_ptr<KnownDisks> known_;
  Strikes strikes_;
  bool paused_ = false;
  std::vector<Id128> numbers_;        // HandedDisks::numbers, of this process or the one before it
  std::vector<Id128> openings_;       // HandedDisks::openings, likewise
  bool hangs_ = false;                // a thread was left behind
  std::vector<std::size_t> hanging_;  // disks whose threads hang and are not left behind yet
  // The janitor's:
  std::vector<bool> logged_aside_;  // by disk
  std::int64_t watched_ns_ = 0;     // when Tick was called last
  std::uint64_t strike_ = 0;        // the strike that was under way then
  std::int64_t strike_age_ns_ = 0;
  std::uint64_t opening_progress_ = 0;  // of the opening that is under way
  std::int64_t opening_age_ns_ = 0;     // since it has changed
  bool opening_hangs_ = false;
};

}  // namespace kvcove::owner
