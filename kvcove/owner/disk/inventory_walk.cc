// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/inventory_walk.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace kvcove::owner {
namespace {

static_assert(kZonesFrom + ((kMaxDisks - 1) * kZonesADisk) < Core::kWalkDone);

ObjectId FirstZoneOf(std::size_t disk) {
  return kZonesFrom + (static_cast<ObjectId>(disk) * kZonesADisk);
}

}  // namespace

// ---- what it has no more

std::vector<InventoryItem> InventoryWalk::TakeGone(std::size_t at_most) {
  DiskSet& set = disks_.set();
  std::vector<TierObject> lost;
  for (std::size_t i = 0; i < set.size() && lost.size() < at_most; ++i) {
    // What it lost and got again is not found before it is open again (an upgrade).
    if (set[i].use().state().opening()) continue;
    std::ranges::move(set[i].inventory().TakeLost(at_most - lost.size()), std::back_inserter(lost));
  }
  for (std::size_t begin = 0; begin < lost.size(); begin += Memory::kSlice) {
    const MutexLock lock(memory_.mutex);
    for (std::size_t i = begin; i < std::min(begin + Memory::kSlice, lost.size()); ++i) {
      // It may be on its way down again.
      if (set.Holds(lost[i].slot, lost[i].generation, lost[i].key)) continue;
      memory_.core().NoteLost(lost[i].slot, lost[i].key);
    }
  }
  const MutexLock lock(memory_.mutex);
  return memory_.core().TakeGone(at_most);
}

bool InventoryWalk::TakeGoneOverflow() {
  bool disk = false;
  for (std::size_t i = 0; i < disks_.set().size(); ++i) {
    Tiering& tiering = disks_.set()[i];
    // Taken first: what is set aside from here on is seen by the next round.
    if (!tiering.inventory().TakeLostAll()) continue;
    // Durably, before others may store what it has: should this process end, the next one must not
    // use it. If that fails, it is tried again with the next round.
    if (tiering.use().state().away() && !disks_.Forget(i)) {
      tiering.inventory().LoseAll();
    } else {
      disk = true;
    }
  }
  const MutexLock lock(memory_.mutex);
  return memory_.core().TakeGoneOverflow() || disk;
}

// ---- what it has

std::vector<InventoryItem> InventoryWalk::Next(ObjectId& cursor, std::size_t at_most) {
  if (!opening_.settled()) return {};
  if (cursor >= kZonesFrom && cursor != Core::kWalkDone) {
    if (disks_.Opening()) return {};
    // Zones were moved, or their objects not told, when the disks were paused for an upgrade.
    if (rereads_.exchange(false)) {
      cursor = kZonesFrom;
      zone_.clear();
      told_ = 0;
    }
    return OfDisks(cursor, at_most);
  }
  std::vector<InventoryItem> items = OfMemory(cursor, at_most);
  if (cursor != Core::kWalkDone || disks_.set().size() == 0) return items;
  zone_.clear();
  told_ = 0;
  cursor = kZonesFrom;
  return items;
}

std::vector<InventoryItem> InventoryWalk::OfMemory(ObjectId& cursor, std::size_t at_most) {
  std::vector<InventoryItem> items;
  while (cursor != Core::kWalkDone && items.size() < at_most) {
    std::vector<InventoryItem> slice;
    {
      const MutexLock lock(memory_.mutex);
      slice = memory_.core().Inventory(cursor, at_most - items.size());
      // Until the master's answer it may move to a disk.
      for (InventoryItem& item : slice) {
        if (!disks_.none()) item.key = memory_.core().KeyOf(item.id, item.version);
      }
    }
    items.insert(items.end(), slice.begin(), slice.end());
    if (cursor != Core::kWalkDone && items.size() < at_most) Memory::LetOthersIn();
  }
  return items;
}

// `cursor` counts the zones that were read. What was evicted since the walk over memory, or comes
// up meanwhile, is told as moved (Listings).
std::vector<InventoryItem> InventoryWalk::OfDisks(ObjectId& cursor, std::size_t at_most) {
  DiskSet& set = disks_.set();
  std::vector<InventoryItem> items;
  // A walk that begins: what is left of another one's zone is told by it.
  if ((cursor - kZonesFrom) % kZonesADisk == 0) zone_.clear();
  while (items.size() < at_most) {
    if (told_ < zone_.size()) {
      TellZone(items, at_most);
      continue;
    }
    const std::size_t disk = (cursor - kZonesFrom) / kZonesADisk;
    const std::uint32_t zone = (cursor - kZonesFrom) % kZonesADisk;
    if (zone >= set[disk].inventory().zones()) {
      const bool last = disk + 1 == set.size();
      cursor = last ? Core::kWalkDone : FirstZoneOf(disk + 1);
      if (last) break;
      continue;
    }
    if (zone == 0) {
      told_eras_.resize(set.size());
      told_eras_[disk] = set[disk].use().state().telling_in();
    }
    if (!ReadZone(disk, zone)) break;
    ++cursor;
  }
  return items;
}

bool InventoryWalk::ReadZone(std::size_t disk, std::uint32_t number) {
  DiskInventory& inventory = disks_.set()[disk].inventory();
  const auto zone = inventory.Ask(number);
  if (DiskThread* const thread = disks_.ThreadOf(disk); thread != nullptr) thread->Wake();
  while (!inventory.Await(*zone, kDiskLookNs)) {
    if (link_ends_) return false;
  }
  zone_ = std::move(zone->objects);
  told_ = 0;
  returns_ = disks_.set()[disk].use().state().away();
  return true;
}

// What was lost since the zone was read is not told: the master has heard that it is gone.
void InventoryWalk::TellZone(std::vector<InventoryItem>& items, std::size_t at_most) {
  DiskSet& set = disks_.set();
  const std::size_t end = std::min(told_ + Memory::kSlice, zone_.size());
  const MutexLock lock(memory_.mutex);
  Core& core = memory_.core();
  for (; told_ < end && items.size() < at_most; ++told_) {
    const TierObject& object = zone_[told_];
    Tiering& disk = set.Of(object.slot, object.generation, object.key);
    if (core.GenerationOf(object.slot) != object.generation ||
        !disk.Listable(object.slot, object.generation, object.key) ||
        core.StatObject(object.slot, object.key)) {
      continue;
    }
    // Its listing may be in the same batch, before this one.
    if (returns_ && core.BeingPut(object.slot, object.key)) {
      disk.removals().RemoveUnreported(object.slot, object.generation, object.key);
      continue;
    }
    const PutOf put = UnpackPut(object.put);
    items.push_back({.item = {.hash = DirectoryHash(object.slot, object.key),
                              .generation = object.generation,
                              .size_bytes = object.size_bytes,
                              .group = put.group,
                              .slot = object.slot,
                              .inventory = true,
                              .returns = returns_,
                              .copies = put.copies,
                              .tier = kvcove::Tier::kDisk,
                              .removals = core.applied()},
                     .key = object.key});
  }
}

// ---- disks that come back

std::optional<ObjectId> InventoryWalk::TellAgainFrom() const {
  for (std::size_t i = 0; disks_.open() && i < disks_.set().size(); ++i) {
    if (disks_.set()[i].use().state().telling_in()) return FirstZoneOf(i);
  }
  return std::nullopt;
}

void InventoryWalk::WalkEnds() {
  const MutexLock lock(mutex_);
  ended_eras_.resize(told_eras_.size());
  for (std::size_t i = 0; i < told_eras_.size(); ++i) {
    if (const auto era = std::exchange(told_eras_[i], std::nullopt)) ended_eras_[i] = era;
  }
}

void InventoryWalk::Told() {
  std::vector<std::optional<std::uint64_t>> eras;
  {
    const MutexLock lock(mutex_);
    eras.swap(ended_eras_);
  }
  for (std::size_t i = 0; i < eras.size(); ++i) {
    if (eras[i]) UseTold(i, *eras[i]);
  }
}

void InventoryWalk::UseTold(std::size_t disk, std::uint64_t era) {
  Tiering& tiering = disks_.set()[disk];
  DiskThread* const thread = disks_.ThreadOf(disk);
  if (thread == nullptr) return;
  thread->Wake();
  while (!link_ends_) {
    const Status quiet = tiering.use().AwaitTold(era, clock_.NowNs() + kDiskLookNs);
    if (!quiet && quiet.error().code == Code::kTimeout) continue;
    if (quiet) (void)tiering.use().SetOnTold(era);
    return;
  }
}

}  // namespace kvcove::owner
