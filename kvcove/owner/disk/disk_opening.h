// SPDX-License-Identifier: Apache-2.0
// When an owner's disks open in a cluster, and what the owner follows meanwhile. docs/ssd.md has
// the prose.
//
//   wait for all generations --> may open --> open (their objects are found)
//         --> settled: each is open, or set aside
//
// Until they are settled the core knows no generation: nothing can be put that a disk may have, and
// nothing is told to the master. The generations that come meanwhile are kept here.
//
// Another identity, pool or incarnation than before voids what the disks hold. So does another
// master, for those that were away: it does not know what they have missed.
//
//   Follow: disks are void in memory --> facts_writer.h: the note names no disk, then the facts are
//         durable --> Tick: the disks open, or are emptied and used again
//
// Threads. The link calls Follow and TableKnown, which wait for no file, and AwaitSettled, which
// may wait; the janitor calls Tick, which starts the opener.
#pragma once

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/owner/disk/facts_writer.h"
#include "kvcove/owner/disk/owner_disks.h"

namespace kvcove::owner {

class DiskOpening {
 public:
  // `link_ends`: while it is true no call of the link waits. All outlive this.
  DiskOpening(OwnerDisks& disks, Memory& memory, Promoter& promoter,
              const std::atomic<bool>& link_ends, const Clock& clock)
      : disks_(disks), memory_(memory), promoter_(promoter), link_ends_(link_ends), clock_(clock) {}

  // Before the owner starts: the disks open once the master has told all generations. `directory`
  // keeps what outlives the process. Errors: those of FindDisk; kUnavailable when another process
  // uses the directory; kIncompatible when it and the disks belong to two pools.
  Result<OwnerFacts> Prepare(const std::string& directory);
  // Under the owner's lock. Keeps the generations until the disks are settled. False: they are, and
  // the core takes them.
  bool HoldBack(const Id128& incarnation, const std::vector<SlotUpdate>& updates);

  // ---- the link
  // All generations of now are published.
  void TableKnown();
  // In memory when it returns, durable soon.
  void Follow(const OwnerFacts& facts);
  // The master should store that the disks are void; and it has.
  bool wants_void() const { return known_ != nullptr && known_->wants_void(); }
  void SetVoid(bool stored) {
    if (known_ != nullptr) known_->SetVoid(stored);
  }
  bool settled() const;
  // False: the link ends.
  bool AwaitSettled();

  // ---- the janitor
  void Tick();
  // Joins the opener, and writes what is not durable yet: waits FactsWriter::kStop for that at
  // most.
  void Stop();

  // ---- an upgrade
  // The facts are being written, or wait for that.
  bool saving() const { return writer_.busy(); }
  // From here until Resume nothing is written. Errors: kInProgress: a write is under way.
  Status Pause();
  void Resume() { writer_.Resume(); }
  void HandOver(HandedDisks& handed) const;
  // In the successor's process: settled from the start, for the core knows all generations. Errors:
  // those of StartThread.
  Status Adopt(const HandedDisks& handed);
  Result<UniqueFd> CopyLock() const;
  void SetLock(UniqueFd lock) { lock_ = std::move(lock); }
  // As the facts are now.
  TierPlace Place() const;
  // What the disks hold counts no more, and the note may still name them.
  bool voids() const {
    const MutexLock lock(mutex_);
    return Voids();
  }

 private:
  enum class State : std::uint8_t { kWaits, kMayOpen, kOpens, kSettled };
  Result<Id128> CheckDisks(const std::string& directory) const;
  Status StartWriter();
  void Run();
  bool Voids() const KVCOVE_REQUIRES(mutex_) { return voided_ != struck_; }
  // Nobody opens a disk as another owner's than the one that the file will name: a process that is
  // killed would come back as a former one, and find a disk of this one.
  bool MayOpen() const KVCOVE_REQUIRES(mutex_);
  void Save() KVCOVE_REQUIRES(mutex_);
  void TakeSaved();

  OwnerDisks& disks_;
  Memory& memory_;
  Promoter& promoter_;
  const std::atomic<bool>& link_ends_;
  const Clock& clock_;
  std::string directory_;
  UniqueFd lock_;  // of the directory; locked while a process has it open
  std::shared_ptr<KnownDisks> known_;
  std::atomic<bool> stops_{false};
  LogLimit refused_;
  LogLimit unsaved_;
  FactsWriter writer_;
  std::thread opener_;  // joined once nobody starts it any more

  mutable Mutex mutex_;
  CondVar changed_;
  State state_ KVCOVE_GUARDED_BY(mutex_) = State::kSettled;
  OwnerFacts facts_ KVCOVE_GUARDED_BY(mutex_);
  // The facts of the last attempt to write them.
  OwnerFacts saved_ KVCOVE_GUARDED_BY(mutex_);
  // How often the facts have voided what the disks hold, and for how many of these the note names
  // no disk any more.
  std::uint64_t voided_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t struck_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool starts_opener_ KVCOVE_GUARDED_BY(mutex_) = false;

  // What the master has published, until the disks are settled.
  bool holds_back_ KVCOVE_GUARDED_BY(memory_.mutex) = false;
  Id128 held_incarnation_ KVCOVE_GUARDED_BY(memory_.mutex);
  std::map<SlotId, SlotUpdate> held_ KVCOVE_GUARDED_BY(memory_.mutex);
};

}  // namespace kvcove::owner
