// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/room.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/size.h"

namespace kvcove::owner {

Room::Room(const CoreOptions& options, const Parts& parts, std::byte* payload, const Clock& clock)
    : options_(options),
      objects_(parts.objects),
      spaces_(parts.spaces),
      reservations_(parts.reservations),
      listings_(parts.listings),
      counters_(parts.counters),
      steps_(parts.steps),
      clock_(clock),
      withdrawn_(options.payload_bytes, parts.steps) {
  if (options.clear_foreign) foreign_.emplace(payload, options.payload_bytes);
}

void Room::AddPayloadUpTo(std::uint64_t granules) {
  granules = std::min(granules, options_.payload_bytes / segment::kGranule);
  if (granules <= added_granules_) return;
  allocator_.Add({.start = static_cast<std::uint32_t>(added_granules_),
                  .count = static_cast<std::uint32_t>(granules - added_granules_)});
  added_granules_ = granules;
}

std::uint64_t Room::free_bytes() const {
  return options_.payload_bytes - (added_granules_ * segment::kGranule) +
         (allocator_.free_granules() * segment::kGranule);
}

bool Room::Consistent() const {
  const std::uint64_t used = spaces_.object_bytes() + spaces_.reserved_bytes() + withdrawn_.bytes();
  return allocator_.free_granules() + (used / segment::kGranule) == added_granules_;
}

// ---- taking

bool Room::WithinBounds(Spaces::Number space, std::uint64_t bytes, bool evict) {
  if (bytes > options_.payload_bytes || bytes > spaces_.maximum_bytes(space)) return false;
  bool swept = false;
  // What waits for the master needs an entry, too, when it is listed.
  const auto full = [&] {
    return objects_.size() + reservations_.waiting() >= options_.max_objects;
  };
  while (!spaces_.Fits(space, bytes) || full()) {
    // What a reset voided goes first. One slice only: it may be of other spaces, and help nothing.
    if (!std::exchange(swept, true) && Sweep(kSweepSlice, /*unnamed=*/false) > 0) continue;
    if (!evict || !Evict(bytes, space)) return false;
  }
  return true;
}

std::vector<Extent> Room::Take(std::uint32_t size_bytes, Spaces::Number space, bool evict) {
  const std::uint32_t granules = segment::GranulesOf(size_bytes);
  const std::uint64_t bytes = std::uint64_t{granules} * segment::kGranule;
  if (!WithinBounds(space, bytes, evict)) return {};
  bool rechecked = false;
  while (true) {
    if (std::vector<Extent> extents = allocator_.Allocate(granules); !extents.empty()) {
      spaces_.Reserve(space, bytes);
      if (foreign_) foreign_->Give(extents, spaces_.serial(space));
      return extents;
    }
    const std::uint64_t all = options_.payload_bytes / segment::kGranule;
    if (added_granules_ < all) {  // use what is not populated yet rather than evict
      AddPayloadUpTo(added_granules_ + std::max<std::uint64_t>(granules, kMiB / segment::kGranule));
      continue;
    }
    // Tick looks at what waits for its readers; looking again for each put would be a cost to all.
    if (!evict && !std::exchange(rechecked, true) && Recheck()) continue;
    if (Sweep(kSweepSlice, /*unnamed=*/true) > 0) continue;
    if (evict && Evict(bytes, space)) continue;
    if (std::exchange(rechecked, true) || !Recheck()) return {};
  }
}

void Room::GiveBack(std::span<const Extent> extents, Spaces::Number space, std::uint64_t bytes) {
  allocator_.Free(extents);
  spaces_.Unreserve(space, bytes);
}

void Room::GiveBack(const Reservation& reservation) {
  if (!reservation.listing) {
    return GiveBack(reservation.extents, reservation.space, reservation.bytes());
  }
  allocator_.Free(reservation.extents);
  spaces_.RemoveObject(reservation.space, reservation.bytes(), /*pinned=*/false);
}

// ---- victims

// Held and softly pinned objects go last.
bool Room::Spared(ObjectId id) const {
  const Objects::Object& object = objects_[id];
  if (object.held > 0) return true;
  if (!object.soft_pinned) return false;
  const auto pin = soft_pins_.find(id);
  return pin != soft_pins_.end() && pin->second > clock_.NowNs();
}

// False when nothing could be withdrawn.
bool Room::Evict(std::uint64_t bytes, Spaces::Number space) {
  std::uint64_t evicted = 0;
  std::uint32_t victims = 0;
  std::uint32_t refused = 0;
  const auto evictable = [&](ObjectId candidate) {
    ++steps_.objects;
    if (refused >= kMaxRefused || !Spared(candidate)) return true;
    ++refused;
    return false;
  };
  while (evicted < bytes && victims < kMaxVictims) {
    ++steps_.spaces;
    const std::optional<Spaces::Number> from = spaces_.Victim(space, bytes);
    if (!from) break;
    Reservation* const waiting = reservations_.OldestWaiting(*from);
    const bool first = waiting != nullptr && MostWaits(*from);
    const ObjectId id = first ? kNoObject : spaces_.policy(*from).Victim(evictable);
    if (id == kNoObject && waiting != nullptr) {
      evicted += waiting->bytes();
      ++victims;
      GiveWay(*waiting);
      continue;
    }
    if (id == kNoObject) {
      if (refused >= kMaxRefused) break;
      refused = kMaxRefused;  // only spared ones are left: they give way
      continue;
    }
    evicted += objects_.Bytes(id);
    ++victims;
    ++counters_.evictions;
    Withdraw(id, MissReason::kEvicted);
  }
  Settle();
  return victims > 0;
}

// Its put was answered already, or is answered so when the master's answer comes: what the master
// lists then, it is told to forget (Core::FinishListing).
void Room::GiveWay(Reservation& waiting) {
  ++counters_.evictions;
  ++gave_way_;
  GiveBack(waiting);
  reservations_.Remember(waiting.session, waiting.id, Code::kNoSpace);
  reservations_.End(waiting);
}

std::uint32_t Room::Sweep(std::uint32_t at_most, bool unnamed) {
  std::uint32_t swept = 0;
  for (; swept < at_most; ++swept) {
    ObjectId id = objects_.AnyDead();
    const bool dead = id != kNoObject;
    if (!dead && unnamed) id = objects_.AnyUnnamed();
    if (id == kNoObject) break;
    ++steps_.objects;
    Withdraw(id, dead ? MissReason::kReset : MissReason::kEvicted);
  }
  counters_.swept += swept;
  if (swept > 0) Settle();
  return swept;
}

// ---- from the index to free memory

void Room::Withdraw(ObjectId id, MissReason reason) {
  const std::uint64_t bytes = objects_.Bytes(id);
  if (!objects_[id].hard_pinned) {
    spaces_.policy(objects_[id].space).OnRemove(id, reason == MissReason::kEvicted);
  }
  if (objects_[id].soft_pinned) soft_pins_.erase(id);
  const Objects::Removed removed = objects_.Withdraw(id, reason);
  // A reset needs no word to the master: what it lists under another generation counts for nothing.
  if (options_.listed && reason != MissReason::kReset) {
    listings_.AddGone(DirectoryHash(removed.slot, removed.key), removed.slot,
                      listings_.FactsOf(id).group);
  }
  withdrawn_.Add(removed.place, removed.size_bytes);
  spaces_.RemoveObject(removed.space, bytes, removed.hard_pinned);
}

bool Room::Reclaim(const std::vector<Place>& places) {
  for (const Place place : places) {
    // The record is as it was, but for its version.
    const segment::Entry& entry = objects_.view().EntryAt(place);
    segment::Found found{.place = place};
    found.meta = segment::EntryMeta(entry.meta.load(std::memory_order_relaxed));
    found.first_granule =
        static_cast<std::uint32_t>(entry.first.load(std::memory_order_relaxed) >> 32);
    Extent extents[segment::kMaxExtents];
    const std::uint32_t count = objects_.view().Extents(found, extents);
    allocator_.Free({extents, count});
    objects_.index().Release(place);
  }
  return !places.empty();
}

// ---- pins

Code Room::PinHard(ObjectId id) {
  if (objects_[id].hard_pinned) return Code::kOk;
  const std::uint64_t bytes = objects_.Bytes(id);
  if (spaces_.pinned_bytes() + bytes > options_.payload_bytes / 2) return Code::kLimit;
  spaces_.policy(objects_[id].space).OnRemove(id, /*evicted=*/false);
  spaces_.SetPinned(objects_[id].space, bytes, true);
  objects_.SetHardPinned(id, true);
  return Code::kOk;
}

void Room::PinSoft(ObjectId id, std::int64_t until_ns) {
  objects_.SetSoftPinned(id, true);
  soft_pins_[id] = until_ns;
}

void Room::Unpin(ObjectId id) {
  if (objects_[id].soft_pinned) soft_pins_.erase(id);
  objects_.SetSoftPinned(id, false);
  if (!objects_[id].hard_pinned) return;
  const Spaces::Number space = objects_[id].space;
  objects_.SetHardPinned(id, false);
  spaces_.SetPinned(space, objects_.Bytes(id), false);
  spaces_.policy(space).OnPut(
      {.id = id,
       .key = objects_.view().HashKey(objects_[id].slot, objects_.KeyOf(id)),
       .size_bytes = objects_.Bytes(id)});
}

}  // namespace kvcove::owner
