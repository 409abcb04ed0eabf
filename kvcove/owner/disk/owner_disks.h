// SPDX-License-Identifier: Apache-2.0
// The disks below one owner's memory: their threads, and the note of what the next start may use.
// An owner without disks has one of these over an empty set, so that nobody asks whether there are
// any.
//
//   closed --Open, OpenEach--> open --Pause--> paused --StartPaused--> open --Stop--> over
//
// Threads. Thread-safe, except where it says so: opening, pausing and stopping belong to one thread
// at a time. Nothing here is called under the owner's lock but `set` and Wake.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/owner/disk/disk_set.h"
#include "kvcove/owner/disk/disk_thread.h"
#include "kvcove/owner/disk/owner_facts.h"
#include "kvcove/owner/memory/memory.h"

namespace kvcove::owner {

// How often a wait for a disk looks whether the link, and with it the wait, has ended.
inline constexpr std::int64_t kDiskLookNs = 100 * kMillisecond;

struct DisksOptions {
  std::vector<disklog::DiskSpec> disks;  // none: an owner without disks
  DiskAdmit admit = DiskAdmit::kPolicy;
  std::uint64_t write_rate = 0;  // bytes a second; 0: any
  DiskQuotas quotas;             // of all disks together
  TierOptions tier;
  std::uint64_t memory_bytes = 0;  // the owner's
  bool cluster = false;            // a master lists what the disks hold
};

// What a successor's process must know of an owner's disks (docs/upgrade.md).
struct HandedDisks {
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> shares;
  std::vector<Id128> numbers;  // Superblock::disk, by disk; none: what it holds must not be used
  // In a cluster:
  std::vector<std::string> asides;  // by disk, why it is set aside; empty: it is not
  std::vector<SlotUpdate> slots;
  std::string directory;
  OwnerFacts facts;
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, seed, shares, numbers, asides, slots, directory, facts);
  }
};

class OwnerDisks {
 public:
  OwnerDisks(const DisksOptions& options, Memory& memory, const Clock& clock);

  const DisksOptions& options() const { return options_; }
  bool none() const { return options_.disks.empty(); }
  // For the core; null without disks.
  LowerTier* lower() { return none() ? nullptr : set_.get(); }
  DiskSet& set() { return *set_; }
  const DiskSet& set() const { return *set_; }
  bool open() const { return open_; }
  // Null: it is closed, or could not be opened.
  DiskThread* ThreadOf(std::size_t disk) const;
  // Some disk is being opened by its thread.
  bool Opening() const;
  // Some disk is set aside, or not told yet.
  bool Away() const;
  // Those that have something to do.
  void Wake() const;
  // The janitor's: deadlines, disks that hang, and the log.
  void Tick();
  // Memory goes on alone, and what lies on the disks only is found by nobody. The next start, or a
  // successor's process, uses them, empty.
  void Unmount();
  // Each load is answered when it returns.
  void EndLoads() { set_->EndLoads(); }

  // ---- one thread at a time
  // The note, before the owner starts; Open sets it, too.
  void SetNote(std::shared_ptr<KnownDisks> known) { known_ = std::move(known); }
  // All are open, or none. Errors: those of OpenTiers.
  Status Open(const TierPlace& place, Promoter& promoter);
  // Each is open or set aside, unless `stops` becomes true.
  void OpenEach(const TierPlace& place, Promoter& promoter, const std::atomic<bool>& stops);
  // Waits until all have written what is queued, at most 10 s. All at once, so that they take no
  // longer than one.
  void Stop();
  // After Stop, behind the janitor, which watches the disks until it ends: the thread of a disk
  // that hangs may use the set and the segment's header one day, so they remain for ever.
  void LeaveHanging();

  // ---- the note. Both wait for a file system
  // The next start does not use what the disk holds.
  Status Forget(std::size_t disk);
  Status ForgetAll();
  // Errors: kTimeout; kUnavailable: a disk proves nothing, and that cannot be noted.
  Status AwaitRemoval(DisksRemoval& removal, std::int64_t deadline_ns);

  // ---- an upgrade (docs/upgrade.md)
  // Much of what is queued is written before anybody waits, and a disk that is being opened is
  // waited for.
  void Drain() const;
  // Closes the disks, so that the successor, or StartPaused, can open them. The owner is frozen.
  // Errors: kUnavailable: one hangs; it is set aside.
  Status Pause();
  // True once after each Pause.
  bool TakePaused();
  HandedDisks HandOver() const;
  // In the successor's process, before StartPaused. Takes the owner's lock.
  void Adopt(const HandedDisks& handed);
  // They open by themselves; their keys are misses until then. Continues where it failed before.
  // `voids`: what they hold is void, until BeginAnew. Errors: as StartThread.
  Status StartPaused(const TierPlace& place, Promoter& promoter, bool voids);

 private:
  std::unique_ptr<DiskSet> MakeSet() const;

  const DisksOptions options_;
  Memory& memory_;
  const Clock& clock_;
  std::unique_ptr<DiskSet> set_;
  // As many as there are disks, once `open_`; null where one could not be opened.
  std::vector<std::unique_ptr<DiskThread>> threads_;
  std::atomic<bool> open_{false};
  std::shared_ptr<KnownDisks> known_;
  bool paused_ = false;
  std::vector<Id128> numbers_;        // HandedDisks::numbers, of this process or the one before it
  bool hangs_ = false;                // a thread was left behind
  std::vector<std::size_t> hanging_;  // that are not left behind yet
  std::vector<bool> logged_aside_;    // by disk; the janitor's
};

}  // namespace kvcove::owner
