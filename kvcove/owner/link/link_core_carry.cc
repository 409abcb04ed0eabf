// SPDX-License-Identifier: Apache-2.0
// Carries a link's state to a successor process (docs/upgrade.md).
#include "kvcove/owner/link/link_core.h"
#include "kvcove/wire/carry_fields.h"

namespace kvcove::owner {

template <typename Ar>
void CarryFields(Ar& ar, InventoryItem& item) {
  CarryAll(ar, item.item, item.id, item.version, item.key);
}

template <typename Ar>
void LinkCore::CarryMembers(Ar& ar) {
  CarryAll(ar, identity_.owner, hidden_, member_, table_, removals_, report_, credit_, sequence_,
           rounds_, gave_way_);
  // A List request that has no answer is repeated unchanged: the master knows its sequence number,
  // so it acts on it once.
  bool asked = batch_.has_value();
  CarryOne(ar, asked);
  if (!asked) return;
  if constexpr (Ar::kReads) batch_ = Batch{};
  std::vector<std::vector<Pending>> pending;
  for (Listing& listing : batch_->listings) pending.push_back(listing.pending);
  CarryAll(ar, batch_->sequence, batch_->body, batch_->gone, pending, batch_->inventory);
  if constexpr (Ar::kReads) {
    for (std::vector<Pending>& one : pending) {
      batch_->listings.push_back({.pending = std::move(one), .done = [](std::span<const Code>) {}});
    }
  }
}

void LinkCore::Save(StateWriter& ar) {
  const MutexLock lock(mutex_);
  CarryMembers(ar);
}

void LinkCore::Load(StateReader& ar) {
  const MutexLock lock(mutex_);
  CarryMembers(ar);
}

void LinkCore::ForgetCallers() {
  // Shards' entries are not handed over: the successor's process reports everything under a new
  // epoch, and so does this one if it continues. Listings return to the owner's queue.
  std::vector<Listing> listings;
  {
    const MutexLock lock(mutex_);
    if (shards_.active()) {
      listings = EndShards();
      report_.Begin();
      credit_ = 0;
      sequence_ = 0;
      member_.EndEpoch();
    }
  }
  for (Listing& listing : listings) listing.done = [](std::span<const Code>) {};
  if (!listings.empty()) target_.ReturnListings(std::move(listings));
  // Walks over disks end with this process's use of them, so removals from the first open one on
  // are asked for again.
  target_.ForgetPatterns();
  const MutexLock lock(mutex_);
  removals_.AskOpenAgain();
  if (!batch_) return;
  for (Listing& listing : batch_->listings) listing.done = [](std::span<const Code>) {};
}

std::set<std::uint64_t> LinkCore::Asked() const {
  std::set<std::uint64_t> asked;
  const MutexLock lock(mutex_);
  if (!batch_) return asked;
  for (const Listing& listing : batch_->listings) {
    for (const Pending& pending : listing.pending) asked.insert(pending.reservation);
  }
  return asked;
}

}  // namespace kvcove::owner
