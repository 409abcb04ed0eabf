// SPDX-License-Identifier: Apache-2.0
// One disk below an owner's memory, without its I/O: the owner's side (LowerTier) and the parts for
// all other callers. A Tiering has one lock, and five states under it (tier_parts.h):
//
//   DiskState       whether the disk is used, and whether the owner's note names it
//   DiskFences      resets and removals that it must apply, the keys that they fence, and what it
//                   has missed
//   DiskLoads       the keys that are read, and the calls that wait for them
//   DemotionQueue   evicted values that wait for its log
//   DiskShares      the bytes that namespaces may have on it, and have
//
// Five classes change them, each for one kind of caller:
//
//   DiskUse         use()        changes of the disk's state: its thread, the owner, the link
//   TierRemovals    removals()   resets and removals: the owner, then the disk's thread
//   TierLoads       loads()      from the disk into memory: calls, the disk's thread, promotions
//   TierDemotions   demotions()  from the queue into the log: the disk's thread
//   TierLog         log()        the log's questions and reports: the disk's thread
//
// A step that concerns several states is one hold of the lock. docs/ssd.md has the prose.
//
//   memory --evicted--> queued (bytes copied) --> in the log --> on disk --read, verified--> memory
//                         \ queue full, removed:    \ failed:       \ removed, reset, damaged,
//                           dropped                   dropped         its zone freed: gone
//
// A key is in the shared table from its eviction on, before memory forgets it, so no look-up misses
// it in between. A value that is dropped leaves the table.
//
// An object may be in memory and on the disk at the same time, with one value: a put of a key that
// is queued or on the disk is answered `exists`, so the disk never has an older record of a newer
// value. To replace a value is to remove it, and a removal is answered once its tombstone is
// synced.
//
// Threads. Thread-safe. The lock comes after the owner's. The owner's side calls LowerTier and
// "under the owner's lock" of the parts; "the disk's thread" belongs to that thread. Only
// TierRemovals::Await, TierLoads::End and DiskUse::AwaitReported wait. Nobody holds a lock while
// the disk is asked.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kvcove/owner/tier/disk_use.h"
#include "kvcove/owner/tier/tier_loads.h"
#include "kvcove/owner/tier/tier_log.h"
#include "kvcove/owner/tier/tier_parts.h"
#include "kvcove/owner/tier/tier_removals.h"

namespace kvcove::owner {

// What a namespace or tenant with a quota has of one disk, and may have.
struct ShareFigures {
  std::uint64_t held_bytes = 0;  // with queued values
  std::uint64_t read_bytes = 0;
  disklog::ShareLimits limits;
};

class Tiering final : public LowerTier {
 public:
  Tiering(const TieringOptions& options, DiskShared& common, const segment::HeaderView& header,
          const segment::Payload& payload, const Clock& clock);

  // ---- the parts
  DiskUse& use() { return use_; }
  const DiskUse& use() const { return use_; }
  TierRemovals& removals() { return removals_; }
  TierLoads& loads() { return loads_; }
  TierDemotions& demotions() { return demotions_; }
  TierLog& log() { return log_; }
  const TierLog& log() const { return log_; }
  // Returns the reports about the objects on the disk, for the master.
  DiskInventory& inventory() { return parts_.inventory; }

  // ---- the keys of this disk
  // Sets the shares of the keys that are on this disk and on no other one; at first all. Called
  // before the disk is on.
  void SetShares(std::uint64_t shares);
  std::uint64_t shares() const { return parts_.shares; }
  // Returns the seed of the hashes of all disks' keys (Superblock::hash_seed).
  std::uint64_t hash_seed() const { return parts_.common.tags.seed(); }

  // ---- under the owner's lock: LowerTier
  bool Holds(SlotId slot, Generation generation, std::string_view key) const override;
  bool Covers(SlotId slot, Generation generation, std::string_view key) override;
  bool Evicted(const EvictedObject& object) override;
  // With DiskAdmit::kKeep puts may fill half of the queue. The rest is for values that promotions
  // evict, so that no read waits for puts.
  std::uint64_t SpareBytes() const override;
  void Stored(SlotId slot, Generation generation, std::string_view key,
              const policy::PutEvent& event, bool comes_up) override;
  void Asked(policy::ObjectId id) override { parts_.common.rules.OnHit(id); }
  void Forgotten(policy::ObjectId id) override { parts_.common.rules.OnRemove(id); }
  // True if the master may list the object on this disk: the disk has it, and no removal is about
  // to take it.
  bool Listable(SlotId slot, Generation generation, std::string_view key) const;

  // ---- figures; thread-safe
  DiskStat Stat() const;
  // Returns the figures of each share, by ShareNumber.
  std::vector<ShareFigures> ByShare() const;
  // True if the disk's thread, which may sleep, has orders, loads or demotions to work on.
  bool HasWork() const;
  // True if no value and no removal waits for the disk, or if the disk is set aside.
  bool Idle() const;

 private:
  enum class Admission { kQueued, kKept, kRefused };
  Admission Admit(const EvictedObject& object, const std::shared_ptr<Demotion>& demotion);
  // Returns the counter of the reason for which the queue does not take the value; null: it has
  // taken the value.
  std::uint64_t* Refusal(const EvictedObject& object, const std::shared_ptr<Demotion>& demotion)
      KVCOVE_REQUIRES(parts_.mutex);
  // True if the value would take its namespace beyond its maximum on this disk.
  bool BeyondShare(const Demotion& demotion) const KVCOVE_REQUIRES(parts_.mutex);

  const segment::Payload payload_;
  TierParts parts_;
  DiskUse use_{parts_};
  TierRemovals removals_{parts_};
  TierLoads loads_{parts_};
  TierDemotions demotions_{parts_};
  TierLog log_{parts_};
};

}  // namespace kvcove::owner
