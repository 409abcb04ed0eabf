// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/link_side.h"

#include <algorithm>

namespace kvcove::owner {

void LinkSide::SetReport(const wire::RenewRequest& report) {
  const MutexLock lock(mutex_);
  report_ = report;
}

std::vector<std::uint64_t> LinkSide::SlotTenants() const {
  std::vector<std::uint64_t> tenants;
  for (const auto& tenant : slot_tenants_) tenants.push_back(tenant.load());
  return tenants;
}

void LinkSide::Restore(std::span<const std::uint64_t> slot_tenants, std::uint64_t applied) {
  for (std::size_t i = 0; i < std::min<std::size_t>(slot_tenants.size(), kMaxSlots); ++i) {
    slot_tenants_[i].store(slot_tenants[i]);
  }
  applied_ = applied;
}

void LinkSide::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  // Before the generations: pairs with TenantOfSlot, see `slot_tenants_`.
  for (const SlotUpdate& update : updates) {
    slot_tenants_[update.slot].store(TenantTag(TenantOf(update.name)), std::memory_order_release);
  }
  // Disks and memory in one hold, so that no value is evicted to a disk between the two: the disk
  // would judge the value by other generations than the memory.
  const MutexLock lock(parts_.memory.mutex);
  parts_.disks.set().SetSlots(updates);
  if (!parts_.opening.HoldBack(incarnation, updates)) parts_.memory.SetSlots(incarnation, updates);
}

void LinkSide::SetHidden(const std::vector<SlotId>& slots) {
  const MutexLock lock(parts_.memory.mutex);
  parts_.memory.core().SetHidden(slots);
}

wire::RenewRequest LinkSide::Report() {
  wire::RenewRequest report;
  {
    const MutexLock lock(mutex_);
    report = report_;
  }
  // Not from the janitor's last round: a disk that was set aside since begins an epoch, which must
  // not be reported without it. Nor before the disk is struck from the note: in an epoch that
  // another reason has begun, the master would let other owners store its keys.
  report.disk_away = parts_.disks.set().Any(&DiskState::away_and_struck);
  report.disks_void = parts_.opening.wants_void();
  report.opening = parts_.opening.ToldOpening();
  return report;
}

// In one hold: a put that begins after it is numbered as begun after the removal.
void LinkSide::SetApplied(std::uint64_t number) {
  const MutexLock lock(parts_.memory.mutex);
  parts_.memory.core().SetApplied(number);
  applied_ = number;
}

void LinkSide::CompleteListing(Listing listing, std::span<const Code> codes) {
  std::vector<Code> outcomes;
  for (std::size_t begin = 0; begin < codes.size(); begin += Memory::kSlice) {
    const MutexLock lock(parts_.memory.mutex);
    for (std::size_t i = begin; i < std::min(begin + Memory::kSlice, codes.size()); ++i) {
      outcomes.push_back(parts_.memory.core().FinishListing(listing.pending[i], codes[i]));
    }
  }
  // After the lock: `done` may reply to a caller or take locks of its own.
  listing.done(outcomes);
}

}  // namespace kvcove::owner
