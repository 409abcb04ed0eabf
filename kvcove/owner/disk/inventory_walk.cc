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

// ---- lost objects

std::vector<InventoryItem> InventoryWalk::TakeGone(std::size_t at_most) {
  DiskSet& set = disks_.set();
  std::vector<TierObject> lost;
  for (std::size_t i = 0; i < set.size() && lost.size() < at_most; ++i) {
    // An object that was lost and demoted again is not found before the disk is open (an upgrade).
    if (set[i].use().state().opening()) continue;
    std::ranges::move(set[i].inventory().TakeLost(at_most - lost.size()), std::back_inserter(lost));
  }
  for (std::size_t begin = 0; begin < lost.size(); begin += Memory::kSlice) {
    const MutexLock lock(memory_.mutex);
    for (std::size_t i = begin; i < std::min(begin + Memory::kSlice, lost.size()); ++i) {
      // The value may have been demoted again since.
      if (set.Holds(lost[i].slot, lost[i].generation, lost[i].key)) continue;
      memory_.core().NoteLost(lost[i].slot, lost[i].key);
    }
  }
  const MutexLock lock(memory_.mutex);
  return memory_.core().TakeGone(at_most);
}

// Each disk that is away is struck from the note before a new epoch, in which other owners may
// store its keys: after a kill, the next start must not find the older values. Looks again with the
// next round: listings must not wait for the note's file system.
bool InventoryWalk::TakeGoneOverflow() {
  DiskSet& set = disks_.set();
  std::vector<std::size_t> lost;
  bool waits = false;
  away_.resize(set.size());
  for (std::size_t i = 0; i < set.size(); ++i) {
    // Takes the mark first: a disk that is set aside from here on is seen by the next round.
    const bool marked = set[i].inventory().TakeLostAll();
    if (marked) lost.push_back(i);
    const DiskState state = set[i].use().state();
    // It was named in the note again since.
    if (away_[i].era != state.era()) away_[i] = {.era = state.era(), .strike = nullptr};
    if (!(marked && state.away()) && !state.unstruck()) continue;
    if (!disks_.AwaitStruck(i, away_[i].strike, /*deadline_ns=*/0)) waits = true;
  }
  if (waits) {
    for (const std::size_t i : lost) set[i].inventory().LoseAll();
    return false;
  }
  const MutexLock lock(memory_.mutex);
  return memory_.core().TakeGoneOverflow() || !lost.empty();
}

// ---- the inventory

std::vector<InventoryItem> InventoryWalk::Next(ObjectId& cursor, std::size_t at_most) {
  if (opening_.waits()) return {};
  // Another reason began this epoch while a disk was away. It ends with the strike
  // (TakeGoneOverflow).
  if (disks_.set().Any(&DiskState::unstruck)) return {};
  if (cursor >= kZonesFrom && cursor != Core::kWalkDone) {
    if (disks_.set().Any(&DiskState::opening)) return {};
    // The disks were paused for an upgrade: objects may have moved between zones, or were not
    // reported.
    if (rereads_.exchange(false)) {
      cursor = kZonesFrom;
      zone_.clear();
      reported_ = 0;
    }
    return OfDisks(cursor, at_most);
  }
  std::vector<InventoryItem> items = OfMemory(cursor, at_most);
  if (cursor != Core::kWalkDone || disks_.set().size() == 0) return items;
  zone_.clear();
  reported_ = 0;
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
      // Adds keys, because an object may be demoted before the master answers, and must be found
      // then.
      for (InventoryItem& item : slice) {
        if (!disks_.none()) item.key = memory_.core().KeyOf(item.id, item.version);
      }
    }
    items.insert(items.end(), slice.begin(), slice.end());
    if (cursor != Core::kWalkDone && items.size() < at_most) Memory::LetOthersIn();
  }
  return items;
}

// Reads zones from the cursor on. A value that was evicted since the walk over memory, or is
// promoted meanwhile, is reported as moved (Listings).
std::vector<InventoryItem> InventoryWalk::OfDisks(ObjectId& cursor, std::size_t at_most) {
  DiskSet& set = disks_.set();
  std::vector<InventoryItem> items;
  // A new walk reports everything, so the rest of an earlier walk's zone is dropped.
  if ((cursor - kZonesFrom) % kZonesADisk == 0) zone_.clear();
  while (items.size() < at_most) {
    if (reported_ < zone_.size()) {
      ReportZone(items, at_most);
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
      reported_eras_.resize(set.size());
      reported_eras_[disk] = set[disk].use().state().reporting_in();
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
  // Looks at the link's end from time to time: a disk may answer nothing.
  while (!inventory.Await(*zone, kDiskLookNs)) {
    if (link_ends_) return false;
  }
  zone_ = std::move(zone->objects);
  reported_ = 0;
  returns_ = disks_.set()[disk].use().state().away();
  return true;
}

// Skips objects that were lost since the zone was read: the master knows their loss already, and
// would list them for ever.
void InventoryWalk::ReportZone(std::vector<InventoryItem>& items, std::size_t at_most) {
  DiskSet& set = disks_.set();
  const std::size_t end = std::min(reported_ + Memory::kSlice, zone_.size());
  const MutexLock lock(memory_.mutex);
  Core& core = memory_.core();
  for (; reported_ < end && items.size() < at_most; ++reported_) {
    const TierObject& object = zone_[reported_];
    Tiering& disk = set.Of(object.slot, object.generation, object.key);
    if (core.GenerationOf(object.slot) != object.generation ||
        !disk.Listable(object.slot, object.generation, object.key) ||
        core.StatObject(object.slot, object.key)) {
      continue;
    }
    // A put is under way, and its listing may be earlier in this batch: the newer value wins.
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

// ---- disks that work again

std::optional<ObjectId> InventoryWalk::ReportAgainFrom() const {
  for (std::size_t i = 0; disks_.open() && i < disks_.set().size(); ++i) {
    if (disks_.set()[i].use().state().reporting_in()) return FirstZoneOf(i);
  }
  return std::nullopt;
}

// Keeps the eras for Reported, because the next walk may overwrite `reported_eras_` before that
// call.
void InventoryWalk::WalkEnds() {
  const MutexLock lock(mutex_);
  ended_eras_.resize(reported_eras_.size());
  for (std::size_t i = 0; i < reported_eras_.size(); ++i) {
    if (const auto era = std::exchange(reported_eras_[i], std::nullopt)) ended_eras_[i] = era;
  }
}

void InventoryWalk::Reported() {
  std::vector<std::optional<std::uint64_t>> eras;
  {
    const MutexLock lock(mutex_);
    eras.swap(ended_eras_);
  }
  for (std::size_t i = 0; i < eras.size(); ++i) {
    if (eras[i]) UseReported(i, *eras[i]);
  }
}

// Puts the disk on once removals from it are proven, unless its era has ended. Waits in slices, to
// see the link's end.
void InventoryWalk::UseReported(std::size_t disk, std::uint64_t era) {
  Tiering& tiering = disks_.set()[disk];
  DiskThread* const thread = disks_.ThreadOf(disk);
  if (thread == nullptr) return;
  thread->Wake();
  while (!link_ends_) {
    const Status quiet = tiering.use().AwaitReported(era, clock_.NowNs() + kDiskLookNs);
    if (!quiet && quiet.error().code == Code::kTimeout) continue;
    if (quiet) (void)tiering.use().SetOnReported(era);
    return;
  }
}

}  // namespace kvcove::owner
