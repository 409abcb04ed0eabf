// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_fences.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/glob.h"

namespace kvcove::owner {

// ---- generations

void DiskFences::SetSlots(const std::vector<SlotUpdate>& updates) {
  for (const SlotUpdate& update : updates) {
    SlotUpdate& known = slots_[update.slot];
    if (known.generation != update.generation) {
      orders_.push_back({.slot = update.slot, .generation = update.generation});
    }
    known = update;
  }
}

std::string DiskFences::NameOf(SlotId slot) const {
  const auto known = slots_.find(slot);
  return known == slots_.end() ? std::string() : known->second.name;
}

void DiskFences::DropGenerationOrders() {
  std::erase_if(orders_,
                [](const TierOrder& order) { return order.kind == TierOrder::Kind::kGeneration; });
}

// ---- removals

bool DiskFences::Join(TierRemoval& removal, std::uint64_t era, bool aside) {
  // Parts that were ordered in an earlier era ended with it, and nothing proves them any more.
  if (removal.open > 0 && removal.era != era) removal.missed = true;
  ++removal.open;
  removal.era = era;
  if (!aside) {
    ++unproven_;
    return true;
  }
  removal.missed = true;
  return false;
}

void DiskFences::Remove(TierOrder order, std::span<const std::uint64_t> tags) {
  for (const std::uint64_t tag : tags) ++removing_[tag];
  orders_.push_back(std::move(order));
}

// Counts as unproven, like a part of a removal: if the era ends first, EndEra notes that the disk
// may still have the older value.
void DiskFences::RemoveOlder(StoredKey stored, std::uint64_t tag) {
  ++unproven_;
  ++older_->open;
  Remove({.kind = TierOrder::Kind::kRemove,
          .slot = stored.slot,
          .generation = stored.generation,
          .keys = {std::move(stored.key)},
          .removal = older_},
         {&tag, 1});
}

void DiskFences::BeginMatching(SlotId slot, std::string_view pattern) {
  matching_.push_back({.slot = slot, .pattern = std::string(pattern)});
}

// The entry exists: EndEra keeps those that are not ordered.
void DiskFences::EndMatching(SlotId slot, std::string_view pattern) {
  matching_.erase(Find(slot, pattern, /*ordered=*/false));
}

void DiskFences::RemoveMatching(TierOrder order) {
  Find(order.slot, order.pattern, /*ordered=*/false)->ordered = true;
  orders_.push_back(std::move(order));
}

std::vector<DiskFences::Matching>::iterator DiskFences::Find(SlotId slot, std::string_view pattern,
                                                             bool ordered) {
  return std::ranges::find_if(matching_, [&](const Matching& one) {
    return one.slot == slot && one.pattern == pattern && one.ordered == ordered;
  });
}

bool DiskFences::Hides(SlotId slot, std::string_view key) const {
  return std::ranges::any_of(matching_, [&](const Matching& one) {
    return one.slot == slot && GlobMatches(one.pattern, key);
  });
}

// A tag may be unknown: EndEra has dropped the fences of earlier orders.
void DiskFences::Applied(std::span<const std::uint64_t> tags) {
  for (const std::uint64_t tag : tags) {
    const auto one = removing_.find(tag);
    if (one != removing_.end() && --one->second == 0) removing_.erase(one);
  }
}

// The entry of a pattern, and the count of this part, may have ended with their era.
void DiskFences::Proven(const TierOrder& order, std::uint64_t removed) {
  if (order.kind == TierOrder::Kind::kRemoveMatching) {
    const auto ordered = Find(order.slot, order.pattern, /*ordered=*/true);
    if (ordered != matching_.end()) matching_.erase(ordered);
  }
  if (unproven_ > 0) --unproven_;
  order.removal->removed += removed;
  --order.removal->open;
}

// ---- what the disk misses

void DiskFences::Remember(SlotId slot, Generation generation, std::string_view key) {
  if (stored_.size() > remembered_) return;
  stored_.push_back({.slot = slot, .generation = generation, .key = std::string(key)});
}

// Takes a new `older_`: an old one with parts that their era cut off never becomes 0, and would
// keep the disk out of the note for ever.
std::vector<DiskFences::StoredKey> DiskFences::UseAgain() {
  missed_ = false;
  older_ = std::make_shared<TierRemoval>();
  return std::exchange(stored_, {});
}

void DiskFences::EndEra() {
  // A tombstone that is not synced may be on the disk or not, so the contents are not trusted.
  if (unproven_ > 0) missed_ = true;
  unproven_ = 0;
  // Orders that set generations remain: a log that is being opened may have begun before them.
  std::erase_if(orders_,
                [](const TierOrder& order) { return order.kind != TierOrder::Kind::kGeneration; });
  removing_.clear();
  std::erase_if(matching_, [](const Matching& one) { return one.ordered; });
}

}  // namespace kvcove::owner
