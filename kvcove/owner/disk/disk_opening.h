// SPDX-License-Identifier: Apache-2.0
// Opens an owner's disks in a cluster, and keeps the facts about the master that the owner follows.
// docs/ssd.md describes the whole.
//
//   wait for all generations --> may open --> open (their objects are found)
//         --> settled: each is open, or set aside
//
// Until the disks are settled the core knows no generation, so no value can be put that a disk may
// hold, nothing is reported to the master, and no removal is proven. Generations that are published
// meanwhile are kept here.
//
// That must not last as long as a file system hangs: no owner of the cluster could remove anything.
// An opening, or a write of the facts before it, that makes no progress for TierOptions::hang_ns is
// given up. The master stores that no later process may use the disks; then they are set aside, and
// memory serves alone. Should the file system answer after all, the disks are emptied and used.
//
// An identity, pool or incarnation other than before voids what the disks hold. Another master
// voids what disks that were away hold, because that master does not know what they have missed.
//
// Before they open, the master has stored the number of this opening (directory_opening.h).
//
//   Follow: disks are void in memory --> facts_writer.h: the note names no disk, then the facts are
//         durable --> Tick: the disks open, or are emptied and used again
//
// Threads. The link calls Follow and TableKnown, which wait for no file, and AwaitSettled, which
// waits until the disks are settled or given up. The janitor calls Tick, which starts the opener.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/owner/disk/directory_opening.h"
#include "kvcove/owner/disk/facts_writer.h"
#include "kvcove/owner/disk/owner_disks.h"

namespace kvcove::owner {

class DiskOpening {
 public:
  // `link_ends`: while true, no call of the link waits. All arguments outlive this object.
  DiskOpening(OwnerDisks& disks, Memory& memory, Promoter& promoter,
              const std::atomic<bool>& link_ends, const Clock& clock)
      : disks_(disks),
        memory_(memory),
        promoter_(promoter),
        link_ends_(link_ends),
        clock_(clock),
        opening_(disks.options().tier.opening_again_ns, disks.options().tier.opening_await_ns) {}

  // Reads or creates the owner's facts, before the owner starts. The disks open once the master has
  // published all generations. `directory`: keeps what outlives the process. Errors: those of
  // FindDisk; kUnavailable: another process uses the directory; kIncompatible: the directory and
  // the disks belong to two pools.
  Result<OwnerFacts> Prepare(const std::string& directory);
  // Keeps the generations until the disks are settled. False: the disks are settled, and the core
  // takes the generations. Under the owner's lock.
  bool HoldBack(const Id128& incarnation, const std::vector<SlotUpdate>& updates);

  // ---- the link
  // Notes that all current generations are published.
  void TableKnown();
  // Follows new facts. Disks that they void are void in memory at return; the facts are durable
  // soon.
  void Follow(const OwnerFacts& from_link);
  // Returns true if the master should store that the disks are void.
  bool wants_void() const { return known_ != nullptr && known_->wants_void(); }
  // Notes whether the master has stored that.
  void SetVoid(bool stored) {
    if (known_ != nullptr) known_->SetVoid(stored);
  }
  // ---- the openings of the data directory: see DirectoryOpening
  DirectoryOpening::Named NamedOpenings() const;
  void Welcomed(const std::optional<Id128>& opening);
  void OpeningStored(const Id128& opening);
  Id128 ToldOpening() const;
  bool AwaitsOpening() const;
  // Draws the number of the clean end, and waits for a moment until it is durable.
  void EndOpening();

  bool settled() const;
  // Returns true until the disks are settled or given up.
  bool waits() const;
  // Waits until then. False: the link ends.
  bool AwaitSettled();

  // ---- the janitor
  // Starts the opener once it may start, and acts on facts that were written.
  void Tick();
  // Joins the opener, and writes facts that are not durable yet, for FactsWriter::kStop at most.
  void Stop();

  // ---- an upgrade
  // Returns true if the facts are being written and that does not end soon: a position is written
  // each second, and must not have an upgrade refused. May wait for a moment.
  bool saving() const { return !writer_.AwaitIdle(); }
  // Stops writes until Resume. Errors: kInProgress: a write is under way.
  Status Pause();
  void Resume() { writer_.Resume(); }
  void HandOver(HandedDisks& handed) const;
  // Takes over in the successor's process. The disks are settled from the start, because the core
  // knows all generations. Errors: those of StartThread and CopyLock.
  Status Adopt(const HandedDisks& handed);
  // Returns a duplicate of the directory's lock, invalid without one. Errors: kLimit.
  Result<UniqueFd> CopyLock() const;
  void SetLock(UniqueFd lock) { lock_ = std::move(lock); }
  // Returns the ids and the note under which a disk is opened now.
  TierPlace Place() const;
  // Returns true if what the disks hold is void while the note may still name them.
  bool voids() const {
    const MutexLock lock(mutex_);
    return Voids();
  }

 private:
  enum class State : std::uint8_t { kWaits, kMayOpen, kOpens, kSettled };
  bool Waits() const KVCOVE_REQUIRES(mutex_) { return state_ != State::kSettled && !gave_up_; }
  bool Hangs() KVCOVE_REQUIRES(mutex_);
  void GiveUpIfItHangs();
  void ReleaseGenerations();
  Result<Id128> CheckDisks(const std::string& directory) const;
  Status OpenNote(const std::string& directory);
  Status StartWriter();
  void Run();
  bool Voids() const KVCOVE_REQUIRES(mutex_) { return voided_ != struck_; }
  // Returns true if all generations are known, the master has stored this opening, and a write of
  // the current ids has been tried. Otherwise a process that is killed would return under its
  // former ids, and find a disk of the new ones.
  bool MayOpen() const KVCOVE_REQUIRES(mutex_);
  void Save() KVCOVE_REQUIRES(mutex_);
  void SaveOpening() KVCOVE_REQUIRES(mutex_);
  void TakeSaved();

  OwnerDisks& disks_;
  Memory& memory_;
  Promoter& promoter_;
  const std::atomic<bool>& link_ends_;
  const Clock& clock_;
  std::string directory_;
  UniqueFd lock_;  // flock on the directory, while a process has it open
  std::shared_ptr<KnownDisks> known_;
  std::atomic<bool> stops_{false};  // ends the opening of each disk, too (TierPlace::stopping)
  LogLimit refused_;
  LogLimit unsaved_;
  FactsWriter writer_;
  std::thread opener_;  // joined once no thread starts it any more

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ KVCOVE_GUARDED_BY(mutex_) = State::kSettled;
  OwnerFacts facts_ KVCOVE_GUARDED_BY(mutex_);
  DirectoryOpening opening_ KVCOVE_GUARDED_BY(mutex_);
  // OwnerDisks::changes() when a running owner has drawn an opening last.
  std::uint64_t drawn_changes_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // The facts of the last attempt to write them, whether or not it succeeded.
  OwnerFacts saved_ KVCOVE_GUARDED_BY(mutex_);
  // How often the facts have voided the disks, and the last of these numbers for which the note
  // names no disk.
  std::uint64_t voided_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t struck_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool starts_opener_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool gave_up_ KVCOVE_GUARDED_BY(mutex_) = false;
  // The janitor's: how long kMayOpen has lasted for the facts alone, and the time of the last look.
  std::int64_t unsaved_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t looked_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;

  // Generations that the master has published, until the disks are settled.
  bool holds_back_ KVCOVE_GUARDED_BY(memory_.mutex) = false;
  Id128 held_incarnation_ KVCOVE_GUARDED_BY(memory_.mutex);
  std::map<SlotId, SlotUpdate> held_ KVCOVE_GUARDED_BY(memory_.mutex);
};

}  // namespace kvcove::owner
