// SPDX-License-Identifier: Apache-2.0
// The changes of one disk's state (DiskState), each with all that it does to the other parts: a
// disk is used, set aside, reported to the master, used again, voided, and paused for an upgrade.
//
// Set aside and used again. A disk that fails is set aside: nothing is demoted to it or promoted
// from it. It is used again with what it holds, unless it has missed a removal, or more keys were
// stored meanwhile than are remembered; it starts empty then. A key that it holds and that was
// stored meanwhile is removed from it, because the stored value is the one that was seen last.
// Removals, and copies into the queue, that began before belong to the former era, and have no
// effect on the new one.
//
// In a cluster, where a master lists the objects of the disk (TieringOptions::listed), a disk that
// works again is reported first (inventory_walk.h). Keys that are stored meanwhile are removed from
// it at once.
//
// Each change is one hold of the lock: the disk's thread may use the disk again as soon as the lock
// is free. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "kvcove/owner/tier/tier_parts.h"
#include "kvcove/owner/tier/watched_device.h"

namespace kvcove::owner {

class DiskUse {
 public:
  explicit DiskUse(TierParts& parts) : parts_(parts) {}

  // Returns a copy of the present state.
  DiskState state() const;
  // True if a master lists the objects of the disk.
  bool listed() const { return parts_.options.listed; }

  // ---- a disk that is opened; called by its thread once the log has found its objects
  // Uses it for the first time; the note names it. It is not used if it was set aside, voided or
  // unmounted meanwhile.
  void SetOn();
  // True if the content of a disk that was not on may be used, by what is known so far.
  bool MayReuse() const;
  // Uses it again, with its content or `empty`. False: it was voided or unmounted meanwhile; or its
  // content may not be used, or must be reported first (BeginReport).
  bool SetOnAgain(bool empty);
  // Opens it for removals and for its report to the master, and not for look-ups yet. False: as
  // SetOnAgain.
  bool BeginReport();

  // ---- a disk that is reported to the master, by era (DiskState::reporting_in)
  // Waits until the removals from it are proven, once the master has answered the whole report.
  // Errors: kTimeout: `deadline_ns` has passed; kUnavailable: that era is over.
  Status AwaitReported(std::uint64_t era, std::int64_t deadline_ns);
  // Uses it, after AwaitReported. False: that era is over.
  bool SetOnReported(std::uint64_t era);

  // ---- the owner's note (known_disks.h)
  // True if the disk is on in that era, and all values that are older than those stored while it
  // was not on are removed from it, durably.
  bool Settled(std::uint64_t era) const;
  // Lets the note name a disk that is settled. The disk counts as named from here on, before the
  // note is written: if it is set aside meanwhile, a put of a key that it holds waits until the
  // note is written without it. False: it is not settled in that era.
  bool BeginNote(std::uint64_t era);
  // Does the same for an empty disk, before it is on. False: it was voided or unmounted.
  bool BeginNoteEmpty();
  // Records that the note may name the disk, because it could not be written at the start.
  void MayBeNamed();
  // Records that the note does not name the disk any more, durably.
  void Struck();

  // ---- its end
  // Ends its use, and has it tried again from time to time. False: it was set aside before, and the
  // first reason is kept. Answers its loads.
  bool SetAside(const std::string& why);
  // Ends its use for the life of this process. Answers its loads.
  void Unmount(const std::string& why);
  // Ends its use, and its content counts no more: it is not tried again before UseAnew. The caller
  // may hold a lock, so the next Tick answers its loads.
  void Void(const std::string& why);
  // Has a disk that was voided tried again, and emptied. The caller is the disk's thread between
  // two attempts to open it: one that began before Void knows another pool, and must fail.
  void UseAnew();
  // Has a disk that is away start empty: another master does not know which keys others have stored
  // since, so its content must not be used. The caller may hold a lock, as for Void. False: the
  // disk is not away.
  bool MissAll(const std::string& why);
  // Ends its use until another thread opens it, in this process or in its successor; its own thread
  // has ended. Until then nothing is found on it, removals wait, and stored keys are remembered.
  // False: its content must not be used, so the caller must forget it durably.
  bool Pause();

  // ---- time
  // Ends loads at their deadlines, and sets aside a disk that hangs. The owner's janitor calls it.
  // True: values wait for the log, so the caller wakes the disk's thread.
  bool Tick(std::int64_t now_ns);
  // Shows Tick that the disk's thread hangs in no call.
  void NoteProgress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  // Returns true if the device has not answered an operation for TieringOptions::hang_ns.
  bool DeviceHangs() const;
  // Returns the ages of the operations under way, for the WatchedDevice of this disk.
  const std::shared_ptr<OperationAges>& ages() const { return ages_; }
  // Adds to the count of writes that have changed the disk. The disk's thread calls it.
  void AddChanges(std::uint64_t count) { changes_.fetch_add(count, std::memory_order_relaxed); }
  // Returns that count: while it is the same, a copy of the disk equals the disk.
  std::uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }
  // Sets the time at which a disk that is set aside is tried again. The disk's thread calls it.
  void SetRetryAt(std::int64_t at_ns) { retry_at_ns_.store(at_ns, std::memory_order_relaxed); }
  std::int64_t retry_at_ns() const { return retry_at_ns_.load(std::memory_order_relaxed); }

 private:
  bool IsSettled(std::uint64_t era) const KVCOVE_REQUIRES(parts_.mutex);
  void UseAgain() KVCOVE_REQUIRES(parts_.mutex);
  // After DiskState has ended an era because the disk is set aside.
  void EndUse() KVCOVE_REQUIRES(parts_.mutex);
  // After DiskState has ended an era for any reason.
  void EndEra() KVCOVE_REQUIRES(parts_.mutex);
  // Returns the reason why the disk counts as hanging, else nothing.
  std::optional<std::string> Hangs() const KVCOVE_REQUIRES(parts_.mutex);

  TierParts& parts_;
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<std::int64_t> retry_at_ns_{0};
  // A device that hangs may outlive this.
  const std::shared_ptr<OperationAges> ages_ = std::make_shared<OperationAges>();
  // Tick's:
  std::uint64_t seen_progress_ KVCOVE_GUARDED_BY(parts_.mutex) = 0;
  std::int64_t last_tick_ns_ KVCOVE_GUARDED_BY(parts_.mutex) = 0;
  std::int64_t stalled_ns_ KVCOVE_GUARDED_BY(parts_.mutex) = 0;  // since `progress_` has changed
};

}  // namespace kvcove::owner
