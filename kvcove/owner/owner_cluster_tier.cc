// SPDX-License-Identifier: Apache-2.0
// An owner's disks in a cluster: when they open, what the master hears of it, and how the master's
// removals reach it. docs/ssd.md has the prose.
//
//   wait for all generations --> may open --> open (their objects are found)
//         --> settled: each is open, or set aside
//
// A disk that is set aside and works again, so that nothing older than another owner's value or
// than a removal comes back:
//
//   set aside --> the note forgets it (durable) --> a new epoch, in which it is not told: others
//   may
//         store its keys from here on, and the master remembers what they lose
//   works again --> what was stored or removed here meanwhile is removed from it --> its zones are
//         told; what the master refuses is removed --> noted --> on
//
// Another master in between does not remember; the disk starts empty then.
//
// Until they are settled the core knows no generation: nothing can be put that a disk may have, and
// nothing is told. The link's lanes may wait here: each has a thread of its own.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>

#include <algorithm>

#include "kvcove/base/directory.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/owner/owner.h"

namespace kvcove::owner {
namespace {

static_assert(kZonesFrom + ((kMaxDisks - 1) * kZonesADisk) < Core::kWalkDone);
constexpr std::int64_t kTierLookNs = 100 * kMillisecond;  // how often a wait looks whether it ends

}  // namespace

// ---- opening

// What can be wrong with their paths is told here, before a pool is known: what is empty is
// formatted for no pool. The pool that they belong to; zero: none yet.
Result<Id128> Owner::CheckDisks(const std::string& directory) const {
  Id128 pool;
  for (const disklog::DiskSpec& spec : options_.disks) {
    KVCOVE_ASSIGN(const FoundDisk found,
                  FindDisk(spec, {.pool = pool, .incarnation = {}, .data_directory = directory},
                           TierOptions().open));
    if (found.super.pool != Id128{}) pool = found.super.pool;
  }
  return pool;
}

Result<OwnerFacts> Owner::PrepareDisks(const std::string& directory) {
  KVCOVE_ASSIGN(disk_lock_, OpenOwnDirectory(directory, DirectoryUse::kData));
  if (flock(disk_lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Fail(
        Code::kUnavailable,
        fmt::format("another process uses '{}'; give each owner a --data of its own", directory));
  }
  KVCOVE_ASSIGN(const Id128 pool, CheckDisks(directory));
  KVCOVE_ASSIGN(std::optional<OwnerFacts> facts, ReadOwnerFacts(directory));
  known_disks_ = std::make_shared<KnownDisks>(directory);
  if (!facts) {
    // Before there is an identity, so that no identity without a past has a disk with one.
    KVCOVE_TRY(ForgetDisks());
    facts = OwnerFacts{.identity = RandomId()};
    KVCOVE_TRY(WriteOwnerFacts(directory, *facts));
  } else if (pool != Id128{} && facts->pool != Id128{} && pool != facts->pool) {
    return Fail(Code::kIncompatible,
                fmt::format("the disk {} belongs to pool {}, but '{}' to pool {}; start with that "
                            "pool's data, or use another path",
                            DiskPaths(options_.disks), ToHex(pool), directory, ToHex(facts->pool)));
  }
  disk_directory_ = directory;
  {
    const MutexLock lock(mutex_);
    holds_back_ = true;
    promoter_ = core_->AddPromoter();
  }
  const MutexLock lock(disk_mutex_);
  disk_state_ = DiskState::kWaits;
  facts_ = *facts;
  return *facts;
}

void Owner::TableKnown() {
  if (!has_disk()) return;
  const MutexLock lock(disk_mutex_);
  if (disk_state_ == DiskState::kWaits && !voids_) disk_state_ = DiskState::kMayOpen;
}

// By the janitor: the link calls with a lock of its own.
void Owner::TickOpening() {
  std::string error;
  bool opens = false;
  {
    const MutexLock lock(disk_mutex_);
    error.swap(follow_error_);
    if (disk_state_ == DiskState::kMayOpen && !disk_stops_) {
      disk_state_ = DiskState::kOpens;
      opens = starts_opener_ = true;
    }
  }
  if (!error.empty()) LogError("{}", error);
  if (!opens) return;
  auto opener = StartThread("kvcove-opener", [this] { RunOpener(); });
  if (!opener && opener_refused_.Due(clock_.NowNs()) > 0) {
    LogError("the disks are not opened yet: {}", opener.error().detail);
  }
  const MutexLock lock(disk_mutex_);
  if (opener) opener_ = std::move(*opener);
  if (!opener) disk_state_ = DiskState::kMayOpen;  // the next tick tries again
  starts_opener_ = false;
  disk_changed_.NotifyAll();
}

void Owner::StopOpening() {
  {
    const MutexLock lock(disk_mutex_);
    disk_stops_ = true;
    while (starts_opener_) disk_changed_.Wait(disk_mutex_);
  }
  if (opener_.joinable()) opener_.join();
}

TierPlace Owner::ClusterPlace() {
  const MutexLock lock(disk_mutex_);
  return {.pool = facts_.pool,
          .incarnation = facts_.incarnation,
          .known = known_disks_,
          .stopping = &disk_stops_};
}

void Owner::RunOpener() {
  disk_place_ = ClusterPlace();
  for (OpenedTier& one :
       OpenTiers(options_.disks, disk_place_, *tiers_, *this, clock_, options_.tier)) {
    StartAgain([&] { return disk_stops_ ? Status() : one.tier->Start(); });
    disks_.push_back(std::move(one.tier));
  }
  disks_open_ = true;
  {
    const MutexLock lock(mutex_);
    std::vector<SlotUpdate> updates;
    for (const auto& [slot, update] : held_) updates.push_back(update);
    held_.clear();
    holds_back_ = false;
    core_->SetSlots(held_incarnation_, updates);
    published_.NotifyAll();
  }
  const MutexLock lock(disk_mutex_);
  disk_state_ = DiskState::kSettled;
  disk_changed_.NotifyAll();
}

// False: the link ends.
bool Owner::AwaitSettled() {
  const MutexLock lock(disk_mutex_);
  while (disk_state_ != DiskState::kSettled) {
    if (link_ends_) return false;
    disk_changed_.WaitFor(disk_mutex_, std::chrono::nanoseconds(kTierLookNs));
  }
  return true;
}

// ---- what it follows

void Owner::Follow(const OwnerFacts& facts) {
  if (!has_disk()) return;
  bool other = false;
  bool settled = false;
  bool held = false;
  bool other_master = false;
  {
    const MutexLock lock(disk_mutex_);
    if (facts == facts_ && !voids_) return;
    other_master = facts.seen.term != facts_.seen.term || facts.seen.tag != facts_.seen.tag;
    const auto differs = [](const Id128& before, const Id128& now) {
      return before != Id128{} && before != now;
    };
    voids_ = voids_ || differs(facts_.identity, facts.identity) ||
             differs(facts_.pool, facts.pool) || differs(facts_.incarnation, facts.incarnation);
    other = voids_;
    while (other && disk_state_ == DiskState::kOpens) {
      // The opener notes its disks yet. Under the identity of before the master says it again.
      if (link_ends_) return;
      disk_changed_.WaitFor(disk_mutex_, std::chrono::nanoseconds(kTierLookNs));
    }
    // Nor is the note read before it is struck.
    held = other && disk_state_ == DiskState::kMayOpen;
    if (held) disk_state_ = DiskState::kWaits;
    facts_ = facts;
    settled = disk_state_ == DiskState::kSettled;
  }
  // What is not settled opens empty.
  for (std::size_t i = 0; other && settled && i < tiers_->size(); ++i) {
    (*tiers_)[i].Void("the master does not know this owner any more, so what it holds is void");
  }
  // Behind that, so that no disk is noted again; before the facts are written: a process that ends
  // in between comes back with the old identity, and is told again.
  const Status forgotten = other ? ForgetDisks() : Status();
  // Where the note still names a disk, a process that comes back as what is written here now would
  // use what it holds. So nothing is written, and the next change of the facts tries it again.
  for (std::size_t i = 0; other_master && settled && i < tiers_->size(); ++i) {
    (void)(*tiers_)[i].MissAll("another master leads, and does not know what it has missed");
  }
  const Status written = forgotten ? WriteOwnerFacts(disk_directory_, facts) : forgotten;
  for (std::size_t i = 0; other && forgotten && settled && i < tiers_->size(); ++i) {
    Tier* const tier = TierOf(i);
    if (tier != nullptr) tier->BeginAnew(facts.pool, facts.incarnation);
  }
  const MutexLock lock(disk_mutex_);
  if (held && forgotten && disk_state_ == DiskState::kWaits) disk_state_ = DiskState::kMayOpen;
  voids_ = voids_ && !forgotten;
  if (forgotten && written) return;
  follow_error_ =
      forgotten
          ? written.error().detail + "; a later start may not notice that the master has lost facts"
          : forgotten.error().detail + "; the disks are not used before that is done";
}

// ---- removals

bool Owner::AwaitProven(DisksRemoval& removal) {
  bool said = false;
  while (!link_ends_) {
    const Status proven = AwaitDisks(removal, clock_.NowNs() + kTierLookNs);
    if (proven) return true;
    if (proven.error().code == Code::kTimeout) continue;
    if (!std::exchange(said, true)) LogError("a removal waits: {}", proven.error().ToString());
    std::this_thread::sleep_for(std::chrono::nanoseconds(kTierLookNs));
  }
  return false;
}

// Any of the page's removals may have been cut off when the link ended, so none is acknowledged.
bool Owner::AwaitApplied() {
  if (const auto unproven = std::exchange(unproven_, nullptr)) (void)AwaitProven(*unproven);
  return !link_ends_;
}

std::uint64_t Owner::ApplyRemoval(const wire::Removal& removal) {
  if (!AwaitSettled()) return 0;
  if (tiers_ != nullptr && unproven_ == nullptr) unproven_ = std::make_shared<DisksRemoval>();
  for (std::size_t begin = 0; begin < removal.keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    if (!core_->Means(removal.slot, removal.generation)) return 0;
    const std::size_t end = std::min(begin + kSlice, removal.keys.size());
    std::vector<std::string_view> sound;
    for (std::size_t i = begin; i < end; ++i) {
      (void)core_->Remove(removal.slot, removal.keys[i]);
      if (CheckKey(removal.keys[i])) sound.push_back(removal.keys[i]);
    }
    if (tiers_ == nullptr || sound.empty()) continue;
    tiers_->Remove(removal.slot, core_->GenerationOf(removal.slot), sound, *unproven_);
  }
  WakeDisks();
  return removal.pattern.empty() ? 0 : ApplyPattern(removal);
}

// The master knows what a pattern took only from here, so all of it is noted before the removal is
// acknowledged.
std::uint64_t Owner::ApplyPattern(const wire::Removal& removal) {
  std::uint64_t matched = 0;
  Generation generation = 0;
  Core::Walk walk;
  bool means = true;
  for (bool first = true; !walk.done && means; first = false) {
    {
      const MutexLock lock(mutex_);
      means = core_->Means(removal.slot, removal.generation);
      if (first && !means) return 0;
      if (first && tiers_ != nullptr) {
        generation = core_->GenerationOf(removal.slot);
        tiers_->BeginMatching(removal.slot, removal.pattern);
      }
      if (means) matched += core_->RemoveMatching(removal.slot, removal.pattern, walk);
    }
    LetOthersIn();
  }
  if (tiers_ == nullptr) return matched;
  DisksRemoval on_disk;
  on_disk.collect = true;
  {
    const MutexLock lock(mutex_);
    tiers_->RemoveMatching(removal.slot, generation, removal.pattern, on_disk);
  }
  WakeDisks();
  if (!AwaitProven(on_disk)) {
    NoteGoneUnknown();
    return matched;
  }
  // What a disk that is set aside had, the next inventory does not name any more.
  NoteGone(removal.slot, on_disk.TakeKeys());
  return matched + on_disk.removed();
}

void Owner::DropSlot(SlotId slot) {
  if (!AwaitSettled()) return;
  Generation generation = 0;
  {
    const MutexLock lock(mutex_);
    generation = core_->GenerationOf(slot);
    if (tiers_ != nullptr) tiers_->BeginMatching(slot, "*");
  }
  Core::Walk walk;
  while (!walk.done) {
    {
      const MutexLock lock(mutex_);
      core_->DropSlot(slot, walk);
    }
    LetOthersIn();
  }
  if (tiers_ == nullptr) return;
  DisksRemoval on_disk;
  on_disk.collect = true;
  {
    const MutexLock lock(mutex_);
    // Nothing of a slot without a generation is ever found again.
    if (generation == 0) return tiers_->EndMatching(slot, "*");
    tiers_->RemoveMatching(slot, generation, "*", on_disk);
  }
  WakeDisks();
  if (AwaitProven(on_disk)) {
    NoteGone(slot, on_disk.TakeKeys());
  } else {
    NoteGoneUnknown();
  }
}

// The link ends for an upgrade. When the removal is applied again, the disk has its keys no more,
// so nobody would ever tell the master that they are gone.
void Owner::NoteGoneUnknown() { (*tiers_)[0].inventory().LoseAll(); }

void Owner::NoteGone(SlotId slot, std::span<const std::string> keys) {
  for (std::size_t begin = 0; begin < keys.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (const std::string& key : keys.subspan(begin, std::min(kSlice, keys.size() - begin))) {
      core_->NoteLost(slot, key);
    }
  }
}

// ---- what the master hears

std::vector<InventoryItem> Owner::TakeGone(std::size_t at_most) {
  std::vector<TierObject> lost;
  for (std::size_t i = 0; tiers_ != nullptr && i < tiers_->size() && lost.size() < at_most; ++i) {
    // What it lost and got again is not found before it is open again (an upgrade).
    if ((*tiers_)[i].Opening()) continue;
    std::ranges::move((*tiers_)[i].inventory().TakeLost(at_most - lost.size()),
                      std::back_inserter(lost));
  }
  for (std::size_t begin = 0; begin < lost.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (std::size_t i = begin; i < std::min(begin + kSlice, lost.size()); ++i) {
      // It may be on its way down again.
      if (tiers_->Holds(lost[i].slot, lost[i].generation, lost[i].key)) continue;
      core_->NoteLost(lost[i].slot, lost[i].key);
    }
  }
  const MutexLock lock(mutex_);
  return core_->TakeGone(at_most);
}

bool Owner::TakeGoneOverflow() {
  bool disk = false;
  for (std::size_t i = 0; tiers_ != nullptr && i < tiers_->size(); ++i) {
    Tiering& tiering = (*tiers_)[i];
    // Taken first: what is set aside from here on is seen by the next round.
    if (!tiering.inventory().TakeLostAll()) continue;
    // Durably, before others may store what it has: should this process end, the next one must not
    // use it. If that fails, it is tried again with the next round.
    if (tiering.away() && !ForgetDisk(i)) {
      tiering.inventory().LoseAll();
    } else {
      disk = true;
    }
  }
  const MutexLock lock(mutex_);
  return core_->TakeGoneOverflow() || disk;
}

std::vector<InventoryItem> Owner::Inventory(ObjectId& cursor, std::size_t at_most) {
  {
    const MutexLock lock(disk_mutex_);
    if (disk_state_ != DiskState::kSettled) return {};
  }
  if (cursor >= kZonesFrom && cursor != Core::kWalkDone) {
    if (DisksOpening()) return {};
    // Zones were moved, or their objects not told, when the disks were paused for an upgrade.
    if (rereads_zones_.exchange(false)) {
      cursor = kZonesFrom;
      zone_objects_.clear();
      zone_told_ = 0;
    }
    return DiskInventory(cursor, at_most);
  }
  std::vector<InventoryItem> items = MemoryInventory(cursor, at_most);
  if (cursor != Core::kWalkDone || tiers_ == nullptr) return items;
  zone_objects_.clear();
  zone_told_ = 0;
  cursor = kZonesFrom;
  return items;
}

std::vector<InventoryItem> Owner::MemoryInventory(ObjectId& cursor, std::size_t at_most) {
  std::vector<InventoryItem> items;
  while (cursor != Core::kWalkDone && items.size() < at_most) {
    std::vector<InventoryItem> slice;
    {
      const MutexLock lock(mutex_);
      slice = core_->Inventory(cursor, at_most - items.size());
      // Until the master's answer it may move to a disk.
      for (InventoryItem& item : slice) {
        if (tiers_ != nullptr) item.key = core_->KeyOf(item.id, item.version);
      }
    }
    items.insert(items.end(), slice.begin(), slice.end());
    if (cursor != Core::kWalkDone && items.size() < at_most) LetOthersIn();
  }
  return items;
}

// `cursor` counts the zones that were read. What was evicted since the walk over memory, or comes
// up meanwhile, is told as moved (Listings).
std::vector<InventoryItem> Owner::DiskInventory(ObjectId& cursor, std::size_t at_most) {
  std::vector<InventoryItem> items;
  // A walk that begins: what is left of another one's zone is told by it.
  if ((cursor - kZonesFrom) % kZonesADisk == 0) zone_objects_.clear();
  while (items.size() < at_most) {
    if (zone_told_ < zone_objects_.size()) {
      TellFromDisk(items, at_most);
      continue;
    }
    const std::size_t disk = (cursor - kZonesFrom) / kZonesADisk;
    const std::uint32_t zone = (cursor - kZonesFrom) % kZonesADisk;
    if (zone >= (*tiers_)[disk].inventory().zones()) {
      const bool last = disk + 1 == tiers_->size();
      cursor =
          last ? Core::kWalkDone : kZonesFrom + (static_cast<ObjectId>(disk + 1) * kZonesADisk);
      if (last) break;
      continue;
    }
    if (zone == 0) {
      told_eras_.resize(tiers_->size());
      told_eras_[disk] = (*tiers_)[disk].Telling();
    }
    if (!ReadZone(disk, zone)) break;
    ++cursor;
  }
  return items;
}

// False: the link ends.
bool Owner::ReadZone(std::size_t disk, std::uint32_t number) {
  TierInventory& inventory = (*tiers_)[disk].inventory();
  const auto zone = inventory.Ask(number);
  if (Tier* const tier = TierOf(disk); tier != nullptr) tier->Wake();
  while (!inventory.Await(*zone, kTierLookNs)) {
    if (link_ends_) return false;
  }
  zone_objects_ = std::move(zone->objects);
  zone_told_ = 0;
  zone_returns_ = (*tiers_)[disk].away();
  return true;
}

// What was lost since the zone was read is not told: the master has heard that it is gone.
void Owner::TellFromDisk(std::vector<InventoryItem>& items, std::size_t at_most) {
  const std::size_t end = std::min(zone_told_ + kSlice, zone_objects_.size());
  const MutexLock lock(mutex_);
  for (; zone_told_ < end && items.size() < at_most; ++zone_told_) {
    const TierObject& object = zone_objects_[zone_told_];
    if (core_->GenerationOf(object.slot) != object.generation ||
        !tiers_->Tells(object.slot, object.generation, object.key) ||
        core_->StatObject(object.slot, object.key)) {
      continue;
    }
    // Its listing may be in the same batch, before this one.
    if (zone_returns_ && core_->BeingPut(object.slot, object.key)) {
      tiers_->Forsake(object.slot, object.generation, object.key);
      continue;
    }
    const PutOf put = UnpackPut(object.put);
    items.push_back({.item = {.hash = DirectoryHash(object.slot, object.key),
                              .generation = object.generation,
                              .size_bytes = object.size_bytes,
                              .group = put.group,
                              .slot = object.slot,
                              .inventory = true,
                              .returns = zone_returns_,
                              .copies = put.copies,
                              .tier = kvcove::Tier::kDisk,
                              .removals = core_->applied()},
                     .key = object.key});
  }
}

std::optional<ObjectId> Owner::TellAgainFrom() {
  for (std::size_t i = 0; disks_open_ && i < tiers_->size(); ++i) {
    if ((*tiers_)[i].Telling()) return kZonesFrom + (static_cast<ObjectId>(i) * kZonesADisk);
  }
  return std::nullopt;
}

void Owner::WalkEnds() {
  const MutexLock lock(disk_mutex_);
  ended_eras_.resize(told_eras_.size());
  for (std::size_t i = 0; i < told_eras_.size(); ++i) {
    if (const auto era = std::exchange(told_eras_[i], std::nullopt)) ended_eras_[i] = era;
  }
}

void Owner::Told() {
  std::vector<std::optional<std::uint64_t>> eras;
  {
    const MutexLock lock(disk_mutex_);
    eras.swap(ended_eras_);
  }
  for (std::size_t i = 0; i < eras.size(); ++i) {
    if (eras[i]) UseTold(i, *eras[i]);
  }
}

void Owner::UseTold(std::size_t disk, std::uint64_t era) {
  Tiering& tiering = (*tiers_)[disk];
  Tier* const tier = TierOf(disk);
  if (tier == nullptr) return;
  tier->Wake();
  while (!link_ends_) {
    const Status quiet = tiering.AwaitTold(era, clock_.NowNs() + kTierLookNs);
    if (!quiet && quiet.error().code == Code::kTimeout) continue;
    if (quiet) (void)tiering.SetOnTold(era);
    return;
  }
}

bool Owner::DiskAway() const {
  for (std::size_t i = 0; tiers_ != nullptr && i < tiers_->size(); ++i) {
    if ((*tiers_)[i].away()) return true;
  }
  return false;
}

// Durable when it returns: what gave way must not be told again by a later process, when the other
// value may be gone.
void Owner::DropObjects(std::span<const InventoryItem> items) {
  DisksRemoval on_disk;
  for (std::size_t begin = 0; begin < items.size(); begin += kSlice) {
    const MutexLock lock(mutex_);
    for (const InventoryItem& item : items.subspan(begin, std::min(kSlice, items.size() - begin))) {
      const SlotId slot = item.item.slot;
      if (item.key.empty()) {
        core_->DropObject(item.id, item.version);
        continue;
      }
      const Generation generation = core_->GenerationOf(slot);
      if (generation != item.item.generation) continue;
      // It may have gone down or come up since it was told.
      (void)core_->Remove(slot, item.key);
      const std::string_view one = item.key;
      tiers_->Remove(slot, generation, {&one, 1}, on_disk);
    }
  }
  WakeDisks();
  (void)AwaitProven(on_disk);
}

void Owner::DropObjects(std::span<const wire::CopyRequest::Item> items) {
  // Another owner has the same value: should this one come back with the disk, it is a replica.
  DisksRemoval on_disk;
  const MutexLock lock(mutex_);
  for (const auto& item : items) {
    const std::string key = core_->KeyOf(item.id, item.version);
    const SlotId slot = core_->SlotOf(item.id, item.version);
    core_->DropObject(item.id, item.version);
    if (tiers_ == nullptr || key.empty()) continue;
    const std::string_view one = key;
    tiers_->Remove(slot, core_->GenerationOf(slot), {&one, 1}, on_disk);
  }
}

}  // namespace kvcove::owner
