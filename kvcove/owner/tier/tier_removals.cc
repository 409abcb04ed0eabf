// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/tier_removals.h"

#include <chrono>
#include <utility>

#include "kvcove/base/glob.h"
#include "kvcove/base/interrupt.h"

namespace kvcove::owner {

// ---- under the owner's lock

void TierRemovals::SetSlots(const std::vector<SlotUpdate>& updates) {
  const MutexLock lock(parts_.mutex);
  parts_.fences.SetSlots(updates);
  // The next log of the disk, if there is one, begins with the present generations.
  if (!parts_.state.may_open()) parts_.fences.DropGenerationOrders();
}

std::vector<std::uint64_t> TierRemovals::TagsOf(const TierOrder& order) const {
  std::vector<std::uint64_t> tags;
  for (const std::string& key : order.keys) {
    tags.push_back(parts_.TagOf(order.slot, order.generation, key));
  }
  return tags;
}

void TierRemovals::Remove(SlotId slot, Generation generation,
                          std::span<const std::string_view> keys,
                          const std::shared_ptr<TierRemoval>& removal) {
  TierOrder order{.kind = TierOrder::Kind::kRemove,
                  .slot = slot,
                  .generation = generation,
                  .keys = {keys.begin(), keys.end()},
                  .removal = removal};
  const std::vector<std::uint64_t> tags = TagsOf(order);
  const MutexLock lock(parts_.mutex);
  if (!parts_.fences.Join(*removal, parts_.state.era(), parts_.state.aside())) {
    // In a cluster the note does not name the disk while it is away, so another process does not
    // use what it holds. This one remembers what is to be removed.
    if (!parts_.options.listed) parts_.fences.Miss();
    for (const std::string_view key : keys) parts_.fences.Remember(slot, generation, key);
    return;
  }
  // In the hold that queues the order: in between, a load could promote the value, or the worker
  // could write a queued one, behind a removal that is later proven.
  for (const std::uint64_t tag : tags) parts_.Fence(tag);
  parts_.fences.Remove(std::move(order), tags);
}

void TierRemovals::RemoveUnreported(SlotId slot, Generation generation, std::string_view key) {
  const MutexLock lock(parts_.mutex);
  if (parts_.state.reporting()) parts_.RemoveOlder(slot, generation, key);
}

void TierRemovals::BeginMatching(SlotId slot, std::string_view pattern) {
  const MutexLock lock(parts_.mutex);
  parts_.fences.BeginMatching(slot, pattern);
  // Loads that began before the fence: one that ends behind the walk over memory would promote a
  // value that the walk does not see.
  parts_.loads.FenceMatching(slot, pattern);
}

void TierRemovals::RemoveMatching(SlotId slot, Generation generation, std::string_view pattern,
                                  const std::shared_ptr<TierRemoval>& removal) {
  const MutexLock lock(parts_.mutex);
  if (!parts_.fences.Join(*removal, parts_.state.era(), parts_.state.aside())) {
    parts_.fences.EndMatching(slot, pattern);
    // The keys that match are not known without the disk, so none can be remembered, as Remove
    // remembers keys: the disk starts empty when it is used again.
    parts_.fences.Miss();
    return;
  }
  parts_.fences.RemoveMatching({.kind = TierOrder::Kind::kRemoveMatching,
                                .slot = slot,
                                .generation = generation,
                                .keys = {},
                                .pattern = std::string(pattern),
                                .removal = removal});
}

void TierRemovals::EndMatching(SlotId slot, std::string_view pattern) {
  const MutexLock lock(parts_.mutex);
  parts_.fences.EndMatching(slot, pattern);
}

// ---- without a lock

Status TierRemovals::Await(const TierRemoval& removal, std::int64_t deadline_ns) {
  const MutexLock lock(parts_.mutex);
  while (removal.open > 0) {
    // A part of an earlier era was queued at a log that is closed: no Proven will come for it.
    if (parts_.state.aside() || removal.missed || removal.era != parts_.state.era()) {
      return Fail(Code::kUnavailable, "the disk has missed a removal while it was set aside");
    }
    const std::int64_t left = LeftNs(deadline_ns, parts_.clock);
    if (left <= 0) {
      return Fail(Code::kTimeout, "the disk has not proven the removal in time; repeat it");
    }
    parts_.proven.WaitFor(parts_.mutex, std::chrono::nanoseconds(left));
  }
  return {};
}

std::size_t TierRemovals::Patterns() const {
  const MutexLock lock(parts_.mutex);
  return parts_.fences.patterns();
}

std::vector<disklog::SlotGeneration> TierRemovals::Generations() const {
  std::vector<disklog::SlotGeneration> all(kMaxSlots);
  for (std::size_t i = 0; i < all.size(); ++i) all[i].slot = static_cast<SlotId>(i);
  const MutexLock lock(parts_.mutex);
  for (const auto& [slot, update] : parts_.fences.slots()) {
    all[slot].generation = update.generation;
  }
  return all;
}

std::string TierRemovals::NameOf(SlotId slot) const {
  const MutexLock lock(parts_.mutex);
  return parts_.fences.NameOf(slot);
}

std::vector<SlotUpdate> TierRemovals::Slots() const {
  std::vector<SlotUpdate> slots;
  const MutexLock lock(parts_.mutex);
  for (const auto& [slot, update] : parts_.fences.slots()) slots.push_back(update);
  return slots;
}

// ---- the disk's thread

std::vector<TierOrder> TierRemovals::TakeOrders() {
  const MutexLock lock(parts_.mutex);
  return parts_.fences.TakeOrders();
}

void TierRemovals::DropGenerationOrders() {
  const MutexLock lock(parts_.mutex);
  parts_.fences.DropGenerationOrders();
}

void TierRemovals::RemoveQueued(const TierOrder& order) {
  const MutexLock lock(parts_.mutex);
  parts_.queue.EachQueued([&](Demotion& demotion) KVCOVE_REQUIRES(parts_.mutex) {
    if (demotion.slot != order.slot || demotion.generation != order.generation ||
        !GlobMatches(order.pattern, demotion.key)) {
      return;
    }
    ++order.removal->removed;
    if (order.removal->collect) order.removal->keys.push_back(demotion.key);
    parts_.DropQueued(demotion);
  });
}

void TierRemovals::Applied(const TierOrder& order) {
  const std::vector<std::uint64_t> tags = TagsOf(order);
  const MutexLock lock(parts_.mutex);
  parts_.fences.Applied(tags);
}

void TierRemovals::Proven(const TierOrder& order, std::uint64_t removed) {
  const MutexLock lock(parts_.mutex);
  parts_.fences.Proven(order, removed);
  parts_.proven.NotifyAll();
  proven_ = true;
}

void TierRemovals::ReportProven() {
  if (std::exchange(proven_, false) && parts_.common.on_proven) parts_.common.on_proven();
}

}  // namespace kvcove::owner
