// SPDX-License-Identifier: Apache-2.0
// An owner as its link to the master sees it: passes each call of the link on to the part that it
// is for, and keeps what only the master sets.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/owner/disk/disk_opening.h"
#include "kvcove/owner/disk/inventory_walk.h"
#include "kvcove/owner/disk/owner_disks.h"
#include "kvcove/owner/disk/removals.h"
#include "kvcove/owner/link/link_target.h"
#include "kvcove/owner/link/outbox.h"
#include "kvcove/owner/memory/memory.h"

namespace kvcove::owner {

// Thread-safe.
class LinkSide final : public LinkTarget {
 public:
  struct Parts {
    Memory& memory;
    OwnerDisks& disks;
    DiskOpening& opening;
    Removals& removals;
    InventoryWalk& inventory;
    Outbox& outbox;
    std::atomic<bool>& link_ends;  // no call of the link waits for a disk
  };
  LinkSide(const Parts& parts, std::uint64_t capacity_bytes)
      : parts_(parts), capacity_bytes_(capacity_bytes) {}

  // ---- what the owner asks
  bool draining() const { return draining_; }
  // The last removal from the master that is applied.
  std::uint64_t applied() const { return applied_; }
  // TenantTag of the slot's tenant.
  std::uint64_t TenantOfSlot(SlotId slot) const {
    return slot < kMaxSlots ? slot_tenants_[slot].load(std::memory_order_acquire) : ~0ULL;
  }
  // The janitor's, each round: a renewal of the lease must not wait for the core's lock.
  void SetReport(const wire::RenewRequest& report);
  // Carries over to the process that takes over, and back.
  std::vector<std::uint64_t> SlotTenants() const;
  void Restore(std::span<const std::uint64_t> slot_tenants, std::uint64_t applied);

  // ---- LinkTarget
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override;
  void SetHidden(const std::vector<SlotId>& slots) override;
  void SetLease(std::int64_t deadline_ns) override { parts_.memory.SetLease(deadline_ns); }
  void SetMasterReachable(bool reachable) override { parts_.outbox.SetMasterReachable(reachable); }
  void SetDraining(bool draining) override { draining_ = draining; }
  wire::RenewRequest Report() override;
  std::uint64_t capacity_bytes() const override { return capacity_bytes_; }
  void Follow(const OwnerFacts& facts) override { parts_.opening.Follow(facts); }
  void TableKnown() override { parts_.opening.TableKnown(); }
  bool AwaitApplied() override { return parts_.removals.AwaitApplied(); }
  void EndDiskWaits() override { parts_.link_ends = true; }
  std::uint64_t ApplyRemoval(const wire::Removal& removal) override {
    return parts_.removals.Apply(removal);
  }
  void DropSlot(SlotId slot) override { parts_.removals.DropSlot(slot); }
  void SetApplied(std::uint64_t number) override;
  std::vector<Listing> TakeListings(std::size_t at_most_items) override {
    return parts_.outbox.Take(at_most_items);
  }
  void ReturnListings(std::vector<Listing> listings) override {
    parts_.outbox.Return(std::move(listings));
  }
  void CompleteListing(Listing listing, std::span<const Code> codes) override;
  std::vector<InventoryItem> TakeGone(std::size_t at_most) override {
    return parts_.inventory.TakeGone(at_most);
  }
  bool TakeGoneOverflow() override { return parts_.inventory.TakeGoneOverflow(); }
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) override {
    return parts_.inventory.Next(cursor, at_most);
  }
  std::optional<ObjectId> TellAgainFrom() override { return parts_.inventory.TellAgainFrom(); }
  void WalkEnds() override { parts_.inventory.WalkEnds(); }
  void Told() override { parts_.inventory.Told(); }
  void DropObjects(std::span<const InventoryItem> items) override { parts_.removals.Drop(items); }

 private:
  const Parts parts_;
  const std::uint64_t capacity_bytes_;
  // Written before the slot's generation is published, and read behind a token of it: a call under
  // a token that is current never meets the tenant that had the slot before.
  std::vector<std::atomic<std::uint64_t>> slot_tenants_ =
      std::vector<std::atomic<std::uint64_t>>(kMaxSlots);
  std::atomic<std::uint64_t> applied_{0};
  std::atomic<bool> draining_{false};
  Mutex mutex_;
  wire::RenewRequest report_ KVCOVE_GUARDED_BY(mutex_);  // as of the janitor's last round
};

}  // namespace kvcove::owner
