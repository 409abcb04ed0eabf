// SPDX-License-Identifier: Apache-2.0
// An owner as its link to the master sees it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/owner/core/core.h"
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
  // When it returns, nothing of an older generation is found or committed.
  virtual void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) = 0;
  // Exactly these slots may not be read: removals from them may be unknown here.
  virtual void SetHidden(const std::vector<SlotId>& slots) = 0;
  virtual void SetLease(std::int64_t deadline_ns) = 0;
  // False: puts do not wait for the master's answer.
  virtual void SetMasterReachable(bool reachable) = 0;
  // What comes new goes to other owners.
  virtual void SetDraining(bool draining) = 0;
  // The statistics of a renewal.
  virtual wire::RenewRequest Report() = 0;
  virtual std::uint64_t capacity_bytes() const = 0;

  // ---- an owner with a disk, which outlives the process
  // What this owner is and follows now. Durable when it returns. Nothing on the disk counts any
  // more under another identity, pool or incarnation than before.
  virtual void Follow(const OwnerFacts& /*facts*/) {}
  // All generations of now are published: what lies on the disk may be judged by them.
  virtual void TableKnown() {}
  // What ApplyRemoval and DropSlot took away stays away from now on; false: not all, ask again.
  virtual bool AwaitApplied() { return true; }
  // The link ends: calls of it that wait for the disk return now. What they were about is not
  // acknowledged.
  virtual void EndDiskWaits() {}

  // ---- removals
  // Returns how many objects a pattern removed. Large ones are applied in slices.
  virtual std::uint64_t ApplyRemoval(const wire::Removal& removal) = 0;
  virtual void DropSlot(SlotId slot) = 0;
  // All removals up to this number are applied.
  virtual void SetApplied(std::uint64_t number) = 0;

  // ---- listings
  virtual std::vector<Listing> TakeListings(std::size_t at_most_items) = 0;
  // Back to the head of the queue: the master did not answer.
  virtual void ReturnListings(std::vector<Listing> listings) = 0;
  virtual void CompleteListing(Listing listing, std::span<const Code> codes) = 0;
  virtual std::vector<InventoryItem> TakeGone(std::size_t at_most) = 0;
  // True once more went than could be kept: the whole inventory must be told again.
  virtual bool TakeGoneOverflow() = 0;
  // Up to `at_most` objects from `cursor` on (0 at first, Core::kWalkDone at the end). None, and
  // the same cursor: what lies on its disk is not known yet.
  virtual std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) = 0;
  // From where the inventory must be told once more, though all of it was told in this epoch: a
  // disk that was set aside works again. Asked until Told.
  virtual std::optional<ObjectId> TellAgainFrom() { return std::nullopt; }
  // The walk has ended: the master has accepted all of it, but for what DropObjects has dropped.
  // WalkEnds notes what it told, before any lane begins another walk, and does not wait. Told acts
  // on it; meanwhile another lane may call Inventory for the next walk.
  virtual void WalkEnds() {}
  virtual void Told() {}
  // Another owner has another value of these keys.
  virtual void DropObjects(std::span<const InventoryItem> items) = 0;
};

}  // namespace kvcove::owner
