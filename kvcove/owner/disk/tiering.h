// SPDX-License-Identifier: Apache-2.0
// One disk below an owner's memory, without its I/O. It orders the calls of the owner and of the
// disk's thread over its parts, under the one lock of all of them:
//
//   DiskState       whether the disk is used, and whether the owner's note names it
//   DiskFences      removals and resets that it must apply, what they fence, and what it has missed
//   DiskLoads       who waits for which of its values
//   DemotionQueue   evicted values that wait for its log
//   DiskShares      what namespaces may have of it
//
// A step that concerns several parts is one hold. docs/ssd.md has the prose.
//
//   memory --evicted--> queued (bytes copied) --> in the log --> on disk --read, verified--> memory
//                         \ queue full, removed:    \ failed:       \ removed, reset, damaged,
//                           dropped                   dropped         its zone freed: gone
//
// From its eviction on, before memory forgets it, a key is in the shared table: no look-up falls
// between the tiers. A load of what is queued takes the queue's copy; of what the log is writing,
// it waits for the end of that. What is dropped leaves the table.
//
// An object may be in memory and on disk at the same time, with one value: a put of a key that is
// queued or on disk is answered `exists`, so no older record lies under a newer value. To replace a
// value is to remove it, and a removal is answered when its tombstone is synced.
//
// Fences. A reset is in the generation: tags, records and promotions carry it. A removal fences
// under the owner's lock, in the same hold in which memory forgets the key: it drops what is
// queued, cancels what is being read, and refuses new reads of these keys until the log has
// forgotten them. A removal by pattern does so for its whole slot. A promotion commits as an
// ordinary put, so what comes between its reservation and its commit fences it as it fences every
// put.
//
// Set aside and used again. A disk that fails is off: nothing goes down or comes up. It is opened
// again with what it holds unless it has missed a removal, or more keys were stored meanwhile than
// are remembered: then it starts empty. What was stored meanwhile under a key that it holds is
// removed from it, as the newer value is the one that was seen last. Removals and copies into the
// queue that began before belong to the former era, and are not taken for the new one's.
//
// In a cluster, where a master lists what the disk has (TieringOptions::listed), a disk that works
// again is reported first (inventory_walk.h). What is stored meanwhile is removed from it at once.
//
// Threads. Thread-safe. `mutex_` comes after the owner's lock. The owner's side calls LowerTier and
// "under the owner's lock" below; the disk's side belongs to the disk's thread. Nothing here waits
// but AwaitRemoval. Nobody holds a lock while the disk is asked.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/disklog/log.h"
#include "kvcove/model/disk_stat.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/disk/demotion_queue.h"
#include "kvcove/owner/disk/disk_fences.h"
#include "kvcove/owner/disk/disk_inventory.h"
#include "kvcove/owner/disk/disk_loads.h"
#include "kvcove/owner/disk/disk_shared.h"
#include "kvcove/owner/disk/disk_shares.h"
#include "kvcove/owner/disk/disk_state.h"
#include "kvcove/owner/disk/tier_times.h"
#include "kvcove/owner/disk/watched_device.h"
#include "kvcove/segment/view.h"

namespace kvcove::owner {

struct TieringOptions {
  std::uint64_t queue_bytes = 64ULL << 20;  // evicted values that wait for the log
  std::size_t queue_objects = 16384;
  std::size_t loads = 8192;              // keys being read, or waiting for that
  std::uint64_t batch_bytes = 64 << 20;  // that one call brings up at a time; one value always may
  // A read, write or sync without an answer for so long sets the disk aside.
  std::int64_t hang_ns = 3 * kSecond;
  DiskQuotas quotas;                // of all disks together
  std::size_t remembered = 65'536;  // keys stored or removed while the disk is set aside
  bool listed = false;              // a master hears what the disk has no more
};

// A value that the log is to write, with all that it asks of its Tiering.
struct HandedDemotion {
  std::shared_ptr<Demotion> demotion;  // null: none waits
  std::string name;                    // of its namespace
  // Its own, as of the hold: a removal clears it there while the disk's thread copies.
  disklog::ShareNumber share = disklog::kNoShare;
};

// What a namespace or tenant with a quota has of one disk, and may have.
struct ShareFigures {
  std::uint64_t held_bytes = 0;  // with what waits to be written
  std::uint64_t read_bytes = 0;
  disklog::ShareLimits limits;
};

class Tiering final : public LowerTier, public disklog::Presence {
 public:
  Tiering(const TieringOptions& options, DiskShared& common, const segment::HeaderView& header,
          const segment::Payload& payload, const Clock& clock);
  // The keys that lie here and on no other disk: at first all. Before it is on.
  void SetShares(std::uint64_t shares);
  std::uint64_t shares() const { return shares_; }
  std::uint64_t hash_seed() const { return common_.tags.seed(); }

  // ---- under the owner's lock
  bool Holds(SlotId slot, Generation generation, std::string_view key) const override;
  bool Covers(SlotId slot, Generation generation, std::string_view key) override;
  bool Evicted(const EvictedObject& object) override;
  // With DiskAdmit::kKeep puts may fill half of the queue; the rest is for what gives way to values
  // that come up, so that no read waits for puts.
  std::uint64_t SpareBytes() const override;
  void Stored(SlotId slot, Generation generation, std::string_view key,
              const policy::PutEvent& event, bool comes_up) override;
  void Asked(policy::ObjectId id) override { common_.rules.OnHit(id); }
  void Forgotten(policy::ObjectId id) override { common_.rules.OnRemove(id); }
  void SetSlots(const std::vector<SlotUpdate>& updates);
  // Removes the key from a disk whose inventory is being told, because a put of it is under way.
  void Forsake(SlotId slot, Generation generation, std::string_view key);
  // Waits for the key with one more item of the batch. False: it is not on the disk, the item's
  // result says why not.
  bool AddLoad(const std::shared_ptr<LoadBatch>& batch, const Load& wanted);
  // A promotion may begin: nothing has fenced its key since it was asked for.
  bool Wanted(const Load& load) const;
  void Remove(SlotId slot, Generation generation, std::span<const std::string_view> keys,
              const std::shared_ptr<TierRemoval>& removal);
  // Before the first slice of a walk over memory, and behind the last one. Between them, and until
  // the removal is proven, nothing that matches comes up behind the walk.
  void BeginMatching(SlotId slot, std::string_view pattern);
  void RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                      const std::shared_ptr<TierRemoval>& removal);
  // Instead of RemoveMatching, when the walk ends early.
  void EndMatching(SlotId slot, std::string_view pattern);

  // ---- without a lock
  // The batch is complete, no load is added any more. Answers at once what waits for nothing.
  void Begin(const std::shared_ptr<LoadBatch>& batch);
  // Nobody waits for the batch any more: `done` is not called.
  void Cancel(const std::shared_ptr<LoadBatch>& batch);
  // For the master: what lies on the disk, and what does no more.
  DiskInventory& inventory() { return inventory_; }
  // May the object be told: it is there, and nothing removes it just now. Under the owner's lock.
  bool Tells(SlotId slot, Generation generation, std::string_view key) const;
  // What was told is accepted, or removed: waits until removals from it are proven, up to
  // `deadline_ns`. Errors: kTimeout; kUnavailable: that era is over.
  Status AwaitTold(std::uint64_t era, std::int64_t deadline_ns);
  // False: that era is over.
  bool SetOnTold(std::uint64_t era);
  // Errors: kTimeout; kUnavailable: the disk is set aside, and proves nothing any more.
  Status AwaitRemoval(const TierRemoval& removal, std::int64_t deadline_ns);
  // From time to time: ends calls at their deadlines, and notices that the disk hangs. True when
  // the disk's thread should be woken.
  bool Tick(std::int64_t now_ns);
  // Nothing more goes down or comes up, until the disk is used again. The first reason is kept;
  // false for another one.
  bool SetAside(const std::string& why);
  // The same, and it is not tried again.
  void Unmount(const std::string& why);
  // While it is set aside: not before this time. By the disk's thread.
  void SetRetryAt(std::int64_t at_ns) { retry_at_ns_.store(at_ns, std::memory_order_relaxed); }
  // What it holds counts no more: it is set aside, and not tried again before UseAnew. Under a lock
  // of the caller's: who waits is answered with the next Tick.
  void Void(const std::string& why);
  // Another master does not know what others have stored while this disk was away, so what it holds
  // is not used again. Under a lock of the caller's. True: it was away.
  bool MissAll(const std::string& why);
  // As it is now.
  DiskState state() const;
  // The owner ends: what is evicted from now on is dropped.
  void Close();
  // The note names it no more, durably.
  void Struck();
  // The disk's thread has ended, and another one opens the disk again, here or in a successor's
  // process. Until then nothing is found on it, removals wait, and what is stored is remembered.
  // False: what the disk holds must not be used, so it must be forgotten durably.
  bool Pause();
  // Every call that waits is answered when it returns, and none is taken any more.
  void EndLoads();
  DiskStat Stat() const;
  // By share.
  std::vector<ShareFigures> ByShare() const;
  // For its thread, which may sleep.
  bool HasWork() const;

  // ---- the disk's thread
  // After Void, else nothing: it is tried again from now on, and emptied. Not while it is being
  // opened: an attempt that began before Void fails, for it opens the disk as whatever it was.
  void UseAnew();
  // Its log is about to be opened: what the table has of it is of before.
  void Attach();
  // Its objects are known.
  void SetOn();
  // After SetAside: may its content be used, as far as is known now?
  bool MayReuse() const;
  // Its objects are known again, or it is `empty`. False: its content may not be used.
  bool SetOnAgain(bool empty);
  // In that era, still: what was stored before it was on is removed from it, durably.
  bool Settled(std::uint64_t era) const;
  // May the note name it, in that era, as it is settled? If so, it counts as named from here on: if
  // it is set aside while the note is being written, a put of what it holds waits until it is
  // struck. If the note cannot be written, it is not tried again.
  bool BeginNote(std::uint64_t era);
  // The same of a disk that is empty, before it is on. False: it was unmounted, or voided.
  bool BeginNoteEmpty();
  bool listed() const { return options_.listed; }
  // Its objects are known again, and the master is to hear of them. False: as above.
  bool BeginTelling();
  std::vector<disklog::SlotGeneration> Generations() const;
  std::string NameOf(SlotId slot) const;
  std::vector<SlotUpdate> Slots() const;
  std::vector<TierOrder> TakeOrders();
  // The log that is about to be opened knows the generations of now. Removals are for it.
  void DropGenerationOrders();
  // Before the walk over the log: removes what waits for the log, and matches.
  void RemoveQueued(const TierOrder& order);
  // The log has forgotten the order's keys: they may be asked for again.
  void Applied(const TierOrder& order);
  // Its tombstones are synced.
  void Proven(const TierOrder& order, std::uint64_t removed);
  // The load that is next, or null. It stays so until TakeLoad, or until one of another share is.
  std::shared_ptr<Load> FirstLoad();
  // Some loads wait for nothing but the rate of their namespace or tenant.
  bool Paced();
  // How many bytes may be on their way up at once, so that what they evict finds room in this
  // disk's queue.
  std::uint64_t RoomToComeUp() const;
  // Reserves `bytes` of what may come up at once, until EndComing. False: the objects that they
  // would evict might find no room in the queue of some disk of the owner.
  bool TakeComing(std::uint64_t bytes);
  void EndComing(std::uint64_t bytes) { coming_.fetch_sub(bytes, std::memory_order_relaxed); }
  // False: the batch has brought up as much as it may; it asks again. Or nobody waits any more, for
  // the disk has been set aside since FirstLoad. The load is over then.
  bool TakeLoad(const std::shared_ptr<Load>& load, std::uint64_t bytes);
  void FinishLoad(const std::shared_ptr<Load>& load, const wire::LoadResult& result);
  // The load's value, if it still waits to go down: nothing needs to be read. The ring keeps it
  // until the disk's thread takes it from there. Sets load.put.
  std::optional<std::span<const std::byte>> Queued(Load& load) const;
  // The value that is to be written next.
  HandedDemotion FirstDemotion();
  // The log has copied it, or never will. Returns the next one, in the same hold of the lock.
  HandedDemotion TakeDemotion(Demotion& demotion, bool copied);
  // What the log has copied is `written` and found there, or it is not.
  void Landed(Demotion& demotion, bool written);
  // Its thread hangs in no call.
  void NoteProgress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  // For its device.
  const std::shared_ptr<OperationAges>& ages() const { return ages_; }
  // `held`: Log::HeldByShare.
  void NoteLog(const disklog::Space& space, const disklog::Counters& counters,
               std::vector<std::uint64_t> held);
  // What namespaces may have here, for a log.
  disklog::DiskShares Shares() const;
  // The log has the key no more: the cleaner dropped it, or it is damaged.
  void Lost(TierObject object);
  void Dropped(TierObject object);
  // The log asks before it drops the object with its zone.
  bool WorthMoving(const disklog::LiveObject& object, const disklog::MoveFacts& facts) const;
  // Who wants the key to stay in memory for a while, and until when.
  std::vector<std::pair<SessionNumber, std::int64_t>> HoldersOf(const Load& load) const;
  // Thread-safe.
  TierTimes& times() { return times_; }
  const TierTimes& times() const { return times_; }
  // All that was queued has been written or dropped, and the log's counters are not noted yet.
  bool Drained() const;
  // What was handed down and is not written yet, of one slot or of all, in no order.
  std::vector<std::shared_ptr<const Demotion>> PendingOf(std::optional<SlotId> slot) const;
  // Nothing that was handed down is waiting for the disk.
  bool Idle() const;

  // ---- disklog::Presence
  bool Add(const Id128& hash, Generation generation) override;
  void Remove(const Id128& hash, Generation generation) override;

 private:
  std::uint64_t TagOf(SlotId slot, Generation generation, std::string_view key) const;
  enum class Admission { kQueued, kKept, kRefused };
  Admission Admit(const EvictedObject& object, const std::shared_ptr<Demotion>& demotion);
  bool IsSettled(std::uint64_t era) const KVCOVE_REQUIRES(mutex_);
  // Bytes that are being promoted; 0 of a disk that is set aside.
  std::uint64_t coming() const;
  std::vector<std::uint64_t> TagsOf(const TierOrder& order) const;
  void UseAgain() KVCOVE_REQUIRES(mutex_);
  void Fence(std::uint64_t tag) KVCOVE_REQUIRES(mutex_);
  void RemoveOlder(SlotId slot, Generation generation, std::string_view key)
      KVCOVE_REQUIRES(mutex_);
  // After DiskState has ended an era: the disk is set aside.
  void EndUse() KVCOVE_REQUIRES(mutex_);
  // After DiskState has ended an era, also for a pause.
  void EndEra() KVCOVE_REQUIRES(mutex_);
  void DropQueued(Demotion& demotion) KVCOVE_REQUIRES(mutex_);
  disklog::ShareNumber ShareOf(SlotId slot) const KVCOVE_REQUIRES(mutex_);
  std::uint64_t Held(disklog::ShareNumber share) const KVCOVE_REQUIRES(mutex_) {
    return quotas_.held(share) + queue_.HeldBy(share);
  }
  // The value would take its namespace beyond its maximum on this disk.
  bool BeyondShare(const Demotion& demotion) const KVCOVE_REQUIRES(mutex_);
  // It is pending no more; unless it is `written`, the table forgets it.
  void EndPending(Demotion& demotion, bool written) KVCOVE_REQUIRES(mutex_);
  HandedDemotion HandFirst() KVCOVE_REQUIRES(mutex_);
  // Calls `done` of what was taken in the hold that has ended.
  void Answer(const DiskLoads::Ready& ready);

  const TieringOptions options_;
  const segment::HeaderView header_;
  const segment::Payload payload_;
  const Clock& clock_;
  DiskShared& common_;
  std::atomic<std::uint64_t> shares_{segment::kAllTierShares};
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::int64_t> retry_at_ns_{0};
  std::atomic<std::uint64_t> coming_{0};  // bytes on their way up
  TierTimes times_;
  // A device that hangs may outlive this.
  const std::shared_ptr<OperationAges> ages_ = std::make_shared<OperationAges>();

  DiskInventory inventory_;

  mutable Mutex mutex_;
  CondVar proven_;
  CondVar answered_;
  DiskState state_ KVCOVE_GUARDED_BY(mutex_);
  DiskFences fences_ KVCOVE_GUARDED_BY(mutex_);
  DiskShares quotas_ KVCOVE_GUARDED_BY(mutex_);
  // What Void and MissAll end is answered by the next call that answers anything.
  DiskLoads loads_ KVCOVE_GUARDED_BY(mutex_);
  DemotionQueue queue_ KVCOVE_GUARDED_BY(mutex_);
  disklog::Counters former_ KVCOVE_GUARDED_BY(mutex_);  // of logs that were open before
  // Returns why the disk counts as hanging, else nothing.
  std::optional<std::string> Hangs() const KVCOVE_REQUIRES(mutex_);
  // Of Tick: since when its thread has not gone on. A process that was stopped counts little.
  std::uint64_t seen_progress_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t last_tick_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t stalled_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  DiskStat stat_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t dropped_ KVCOVE_GUARDED_BY(mutex_) = 0;  // by the cleaner, with their keys
};

}  // namespace kvcove::owner
