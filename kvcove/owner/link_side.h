// SPDX-License-Identifier: Apache-2.0
// The side of an owner that its link to the master calls. It passes each call on to the part that
// the call is for, and keeps the facts that only the master sets.
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
    std::atomic<bool>& link_ends;  // true: no call of the link waits for a disk any more
  };
  LinkSide(const Parts& parts, std::uint64_t capacity_bytes)
      : parts_(parts), capacity_bytes_(capacity_bytes) {}

  // ---- for the owner
  bool draining() const { return draining_; }
  // Returns the number of the last removal from the master that is applied.
  std::uint64_t applied() const { return applied_; }
  // Returns the TenantTag of the slot's tenant; ~0 for an invalid slot.
  std::uint64_t TenantOfSlot(SlotId slot) const {
    return slot < kMaxSlots ? slot_tenants_[slot].load(std::memory_order_acquire) : ~0ULL;
  }
  // Stores the statistics for the next renewals. The janitor calls it each round, because a renewal
  // of the lease must not wait for the core's lock.
  void SetReport(const wire::RenewRequest& report);
  // Return and set the state that a process hands over to its successor.
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
  void SetDisksVoid(bool stored) override { parts_.opening.SetVoid(stored); }
  DirectoryOpening::Named Openings() const override { return parts_.opening.NamedOpenings(); }
  void Welcomed(const std::optional<Id128>& opening) override { parts_.opening.Welcomed(opening); }
  void OpeningStored(const Id128& opening) override { parts_.opening.OpeningStored(opening); }
  bool AwaitsOpening() const override { return parts_.opening.AwaitsOpening(); }
  void EndOpening() override { parts_.opening.EndOpening(); }
  void TableKnown() override { parts_.opening.TableKnown(); }
  bool AwaitApplied() override { return parts_.removals.AwaitApplied(); }
  void EndDiskWaits() override { parts_.link_ends = true; }
  void ApplyKeys(const wire::Removal& removal) override { parts_.removals.Apply(removal); }
  BegunPattern BeginPattern(const wire::Removal& removal) override {
    const Removals::Begun begun = parts_.removals.BeginPattern(removal);
    return {.objects = begun.objects, .open = begun.open};
  }
  std::size_t PatternRoom() const override { return parts_.removals.PatternRoom(); }
  std::vector<wire::RemovalsRequest::Count> TakeEndedPatterns() override {
    return parts_.removals.TakeEndedPatterns();
  }
  void ForgetPatterns() override { parts_.removals.ForgetPatterns(); }
  void DropSlots(std::span<const SlotId> slots) override { parts_.removals.DropSlots(slots); }
  bool BeginDrop(std::span<const SlotId> slots) override {
    return parts_.removals.BeginDrop(slots);
  }
  bool DropEnded() override { return parts_.removals.DropEnded(); }
  void DropVoidSlot(SlotId slot) override { parts_.removals.DropFromMemory(slot); }
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
  std::optional<ObjectId> ReportAgainFrom() override { return parts_.inventory.ReportAgainFrom(); }
  void WalkEnds() override { parts_.inventory.WalkEnds(); }
  void Reported() override { parts_.inventory.Reported(); }
  void DropObjects(std::span<const InventoryItem> items) override { parts_.removals.Drop(items); }

 private:
  const Parts parts_;
  const std::uint64_t capacity_bytes_;
  // By slot. Publish stores a tenant (release) before it publishes the slot's generation, and
  // TenantOfSlot loads it (acquire) for a token of that generation. So a call under a current token
  // never sees the tenant that had the slot before.
  std::vector<std::atomic<std::uint64_t>> slot_tenants_ =
      std::vector<std::atomic<std::uint64_t>>(kMaxSlots);
  std::atomic<std::uint64_t> applied_{0};
  std::atomic<bool> draining_{false};
  Mutex mutex_;
  wire::RenewRequest report_ KVCOVE_GUARDED_BY(mutex_);  // as of the janitor's last round
};

}  // namespace kvcove::owner
