// SPDX-License-Identifier: Apache-2.0
// The calls of an owner's link to its owner: to `LinkSide`, or to the simulation's owner.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/owner/core/core.h"
#include "kvcove/owner/disk/directory_opening.h"
#include "kvcove/owner/disk/owner_facts.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

// Puts that are stored and wait for the master's answer.
struct Listing {
  std::vector<Pending> pending;
  std::function<void(std::span<const Code>)> done;  // called once, with the final outcomes
};

// Thread-safe.
class LinkTarget {
 public:
  virtual ~LinkTarget() = default;

  // ---- generations and lease
  // Publishes generations and names. When it returns, no object of an older generation is found,
  // and no put of one is committed.
  virtual void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) = 0;
  // Hides exactly these slots from readers: removals from them may be unknown here.
  virtual void SetHidden(const std::vector<SlotId>& slots) = 0;
  virtual void SetLease(std::int64_t deadline_ns) = 0;
  // False: puts do not wait for the master's answer any more.
  virtual void SetMasterReachable(bool reachable) = 0;
  // True: the owner refuses new puts (kNoSpace), so that sessions store at other owners.
  virtual void SetDraining(bool draining) = 0;
  // Returns the statistics for a renewal. Must not wait for the owner's lock.
  virtual wire::RenewRequest Report() = 0;
  virtual std::uint64_t capacity_bytes() const = 0;

  // ---- an owner with a disk, which outlives the process
  // Keeps this owner's identity and the master's position that it follows; durable soon, for no
  // lane waits for a file. With another identity, pool or incarnation than before, the disk's
  // objects are void when it returns.
  virtual void Follow(const OwnerFacts& /*facts*/) {}
  // Notes whether the master has stored that the next process must not use this owner's disks, as
  // Report asked (wire::RenewRequest::disks_void).
  virtual void SetDisksVoid(bool /*stored*/) {}
  // Return the openings of the data directory, for a hello, and follow the master's answers (see
  // DirectoryOpening). Report names the opening that the master is to store.
  virtual DirectoryOpening::Named Openings() const { return {}; }
  virtual void Welcomed(const std::optional<Id128>& /*opening*/) {}
  virtual void OpeningStored(const Id128& /*opening*/) {}
  // Returns true if the disks wait for renewals, because of their opening.
  virtual bool AwaitsOpening() const { return false; }
  // Draws the opening of the clean end, which Report names once it is durable. Waits for that, but
  // for a moment only.
  virtual void EndOpening() {}
  // Notes that all current generations are published: the disk's objects may be judged by them.
  virtual void TableKnown() {}
  // Waits until the disks cannot restore objects that ApplyKeys removed, also after a restart;
  // false: EndDiskWaits came first, so the removals must not be acknowledged.
  virtual bool AwaitApplied() { return true; }
  // Ends the link's calls that wait for a disk: they return now, and their removals are not
  // acknowledged.
  virtual void EndDiskWaits() {}

  // ---- removals
  // Removes the keys of a removal, in slices of the owner's lock.
  virtual void ApplyKeys(const wire::Removal& removal) = 0;
  // The beginning of a removal by pattern.
  struct BegunPattern {
    std::uint64_t objects = 0;  // that memory had
    bool open = false;          // disks are walked until TakeEndedPatterns returns the removal
  };
  // Applies the pattern of a removal to memory, and begins to apply it to disks. Call it while
  // PatternRoom is not 0.
  virtual BegunPattern BeginPattern(const wire::Removal& removal) = 0;
  // Returns how many removals by pattern may be begun now. TakeEndedPatterns makes room.
  virtual std::size_t PatternRoom() const { return wire::kMaxOpenRemovals; }
  // Returns the removals that disks have proven since the last call, with the number of objects
  // that disks had. TakeGone has their keys from then on.
  virtual std::vector<wire::RemovalsRequest::Count> TakeEndedPatterns() { return {}; }
  // Forgets open removals and drops, which are applied again: by this process, or by its successor.
  virtual void ForgetPatterns() {}
  // Removes all objects of the slots. May wait for a walk over disks.
  virtual void DropSlots(std::span<const SlotId> slots) = 0;
  // Removes all objects of the slots from memory, and begins to remove them from disks. True: disks
  // are walked until DropEnded.
  virtual bool BeginDrop(std::span<const SlotId> slots) {
    DropSlots(slots);
    return false;
  }
  // Returns true once disks have proven all that BeginDrop has begun. TakeGone has the keys from
  // then on.
  virtual bool DropEnded() { return true; }
  // Removes the objects of a slot that has no generation any more, under another identity than the
  // one that stored them: Follow has voided those on a disk. Waits for no disk and no file, for the
  // lane of the lease calls it.
  virtual void DropVoidSlot(SlotId slot) { DropSlots({&slot, 1}); }
  // Notes that all removals up to this number are applied.
  virtual void SetApplied(std::uint64_t number) = 0;

  // ---- listings
  virtual std::vector<Listing> TakeListings(std::size_t at_most_items) = 0;
  // Puts listings back to the head of the queue: the master has not answered them.
  virtual void ReturnListings(std::vector<Listing> listings) = 0;
  virtual void CompleteListing(Listing listing, std::span<const Code> codes) = 0;
  virtual std::vector<InventoryItem> TakeGone(std::size_t at_most) = 0;
  // Returns true once if TakeGone has lost entries: the whole inventory must be reported again.
  virtual bool TakeGoneOverflow() = 0;
  // Returns up to `at_most` objects from `cursor` on (0 at first, Core::kWalkDone at the end).
  // None, and the same cursor: the objects on its disk are not known yet.
  virtual std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) = 0;
  // Returns the cursor from which the inventory must be reported once more, although all of it was
  // reported in this epoch: a disk that was set aside works again. Asked until Reported.
  virtual std::optional<ObjectId> ReportAgainFrom() { return std::nullopt; }
  // End a walk: the master has accepted all of it, except for the objects that DropObjects dropped.
  // WalkEnds notes the walk's reports, before any lane begins another walk, and does not wait.
  // Reported acts on them; meanwhile another lane may call Inventory for the next walk.
  virtual void WalkEnds() {}
  virtual void Reported() {}
  // Drops objects that the directory refused: another owner has another value of the key, or the
  // tenant's share of the directory is used up.
  virtual void DropObjects(std::span<const InventoryItem> items) = 0;
};

}  // namespace kvcove::owner
