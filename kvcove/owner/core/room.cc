// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/room.h"

#include <algorithm>
#include <utility>

#include "kvcove/base/size.h"

namespace kvcove::owner {

Room::Room(const CoreOptions& options, const Parts& parts, const segment::Payload& payload,
           const Clock& clock)
    : options_(options),
      granule_(payload.granule),
      objects_(parts.objects),
      spaces_(parts.spaces),
      reservations_(parts.reservations),
      listings_(parts.listings),
      key_changes_(parts.key_changes),
      asks_(parts.asks),
      counters_(parts.counters),
      steps_(parts.steps),
      clock_(clock),
      withdrawn_(options.payload_bytes, payload.granule, parts.steps) {
  if (options.clear_foreign) foreign_.emplace(payload, options.payload_bytes);
}

void Room::AddPayloadBelow(std::uint64_t bytes) {
  constexpr std::uint64_t kAtOnce = 1ULL << 31;  // granules; an extent counts them in 32 bits
  const std::uint64_t granules = std::min(bytes, options_.payload_bytes) / granule_.bytes();
  while (added_granules_ < granules) {
    const std::uint64_t count = std::min(granules - added_granules_, kAtOnce);
    allocator_.Add({.start = static_cast<std::uint32_t>(added_granules_),
                    .count = static_cast<std::uint32_t>(count)});
    added_granules_ += count;
  }
}

std::uint64_t Room::free_bytes() const {
  return options_.payload_bytes - added_bytes() + granule_.BytesOf(allocator_.free_granules());
}

bool Room::Consistent() const {
  const std::uint64_t used = spaces_.object_bytes() + spaces_.reserved_bytes() + withdrawn_.bytes();
  return allocator_.free_granules() + granule_.Count(used) == added_granules_;
}

// ---- taking

bool Room::WithinBounds(Spaces::Number space, std::uint64_t bytes, const Taking& taking) {
  if (bytes > options_.payload_bytes || bytes > spaces_.maximum_bytes(space)) return false;
  bool swept = false;
  // A put that waits for the master needs an entry, too, when it is published.
  const auto full = [&] {
    return objects_.size() + reservations_.waiting() >= options_.max_objects;
  };
  while (!spaces_.Fits(space, bytes) || full()) {
    // Dead objects before the policy's victims. One slice only: all dead objects may be of other
    // spaces, and free nothing in this one.
    if (!std::exchange(swept, true) && Sweep(kSweepSlice, /*unnamed=*/false) > 0) continue;
    if (!taking.evict || !Evict(WantedFor(space, bytes, taking), space)) return false;
  }
  return true;
}

Room::Wanted Room::WantedFor(Spaces::Number space, std::uint64_t bytes,
                             const Taking& taking) const {
  const std::uint64_t all = bytes + taking.ahead_bytes;
  return {.bytes = bytes,
          .all = std::max(bytes, all - std::min(all, LeftFor(space))),
          .comes_up = taking.comes_up};
}

std::vector<Extent> Room::Take(std::uint32_t size_bytes, Spaces::Number space,
                               const Taking& taking) {
  const auto granules = static_cast<std::uint32_t>(granule_.Count(size_bytes));
  const std::uint64_t bytes = granule_.BytesOf(granules);
  if (!WithinBounds(space, bytes, taking)) return {};
  bool rechecked = false;
  while (true) {
    if (std::vector<Extent> extents = allocator_.Allocate(granules); !extents.empty()) {
      spaces_.Reserve(space, bytes);
      if (foreign_) foreign_->Give(extents, spaces_.serial(space));
      return extents;
    }
    if (added_bytes() < options_.payload_bytes) {
      // Memory that is not populated yet costs page faults, an eviction costs a value.
      AddPayloadBelow(added_bytes() + std::max(bytes, kMiB));
      continue;
    }
    // Recheck costs steps for each object that readers protect, so a put that may evict leaves that
    // to Tick and calls it last. A put that may not evict has no other source of memory.
    if (!taking.evict && !std::exchange(rechecked, true) && Recheck()) continue;
    if (Sweep(kSweepSlice, /*unnamed=*/true) > 0) continue;
    if (taking.evict && Evict(WantedFor(space, bytes, taking), space)) continue;
    if (std::exchange(rechecked, true) || !Recheck()) return {};
  }
}

void Room::GiveBack(std::span<const Extent> extents, Spaces::Number space, std::uint64_t bytes) {
  allocator_.Free(extents);
  spaces_.Unreserve(space, bytes);
}

void Room::GiveBack(const Reservation& reservation) {
  if (!reservation.listing) {
    return GiveBack(reservation.extents, reservation.space, reservation.bytes);
  }
  allocator_.Free(reservation.extents);
  spaces_.RemoveObject(reservation.space, reservation.bytes, /*pinned=*/false);
}

// ---- victims

// Returns whether the object is held or softly pinned: then it is evicted last.
bool Room::Spared(ObjectId id) const { return objects_[id].held > 0 || SoftPinned(id); }

// Nothing clears the object's bit when the pin ends, so the bit alone only says where to look.
bool Room::SoftPinned(ObjectId id) const {
  if (!objects_[id].soft_pinned) return false;
  const auto pin = soft_pins_.find(id);
  return pin != soft_pins_.end() && pin->second > clock_.NowNs();
}

std::uint64_t Room::SpareBytes(const Wanted& wanted) const {
  constexpr std::uint64_t kAny = ~std::uint64_t{0};
  return options_.lower == nullptr || wanted.comes_up ? kAny : options_.lower->SpareBytes();
}

// Evicts about `wanted.all` bytes, kMaxVictims objects at most. False when nothing was evicted.
bool Room::Evict(const Wanted& wanted, Spaces::Number space) {
  std::uint64_t evicted = 0;
  std::uint32_t victims = 0;
  std::uint32_t refused = 0;
  const auto evictable = [&](ObjectId candidate) {
    ++steps_.objects;
    if (refused >= kMaxRefused || !Spared(candidate)) return true;
    ++refused;
    return false;
  };
  while (evicted < wanted.all && victims < kMaxVictims) {
    ++steps_.spaces;
    // Both are asked again for each step: each eviction fills the lower tier's queue, and may make
    // another space the one that is most above its guarantee.
    const std::uint64_t spare = SpareBytes(wanted);
    if (spare == 0) break;
    const std::optional<Spaces::Number> from = spaces_.Victim(space, wanted.bytes);
    if (!from) break;
    Reservation* const waiting = reservations_.OldestWaiting(*from);
    const bool first = waiting != nullptr && MostWaits(*from);
    chosen_.clear();
    if (!first) {
      ChooseVictims(spaces_.policy(*from), std::min(wanted.all - evicted, spare), evictable);
    }
    if (chosen_.empty() && waiting != nullptr) {
      evicted += waiting->bytes;
      ++victims;
      GiveWay(*waiting);
      continue;
    }
    if (chosen_.empty()) {
      if (refused >= kMaxRefused) break;
      refused = kMaxRefused;  // only spared objects are left: `evictable` accepts them now
      continue;
    }
    for (const Chosen& object : chosen_) {
      evicted += objects_.Bytes(object.id);
      ++victims;
      ++counters_.evictions;
      WithdrawForgotten(object, MissReason::kEvicted);
    }
  }
  Settle();
  return victims > 0;
}

// Chooses as many victims as make `bytes` if they are of average size. The data of one is in four
// places in memory, each of which names the next: fetched for all victims at once, step by step,
// their cache misses overlap.
void Room::ChooseVictims(policy::EvictionPolicy& policy, std::uint64_t bytes,
                         const std::function<bool(ObjectId)>& evictable) {
  const std::uint64_t average =
      spaces_.object_bytes() / std::max<std::uint64_t>(objects_.size(), 1);
  const std::uint64_t count =
      std::clamp<std::uint64_t>(bytes / std::max<std::uint64_t>(average, 1), 1, kMaxChosen);
  while (chosen_.size() < count) {
    const ObjectId id = policy.Victim(evictable);
    if (id == kNoObject) break;
    policy.OnRemove(id, /*evicted=*/true);
    objects_.PrefetchObject(id);
    asks_.Prefetch(id);
    chosen_.push_back({.id = id});
  }
  if (chosen_.size() == 1) {
    chosen_[0].hash = objects_.HashOf(chosen_[0].id);
    return;
  }
  for (const Chosen& object : chosen_) objects_.PrefetchEntry(object.id);
  for (Chosen& object : chosen_) {
    object.hash = objects_.HashOf(object.id);
    objects_.PrefetchHash(object.hash);
  }
}

// Evicts a put that waits for the master. Its caller was answered already, or gets kNoSpace with
// the master's answer; if the master lists it, Core::FinishListing makes the master forget it.
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
  if (!objects_[id].hard_pinned) {
    spaces_.policy(objects_[id].space).OnRemove(id, reason == MissReason::kEvicted);
  }
  WithdrawForgotten({.id = id, .hash = objects_.HashOf(id)}, reason);
}

// Withdraws an object that its policy has forgotten already.
void Room::WithdrawForgotten(const Chosen& object, MissReason reason) {
  const auto [id, hash] = object;
  const std::uint64_t bytes = objects_.Bytes(id);
  if (objects_[id].soft_pinned) soft_pins_.erase(id);
  if (objects_[id].hard_pinned) timed_pins_.Erase(id);
  const bool kept = HandDown(object, reason);
  // No report for a reset: the master's entries of another generation count for nothing.
  if (options_.listed && reason != MissReason::kReset) {
    const SlotId slot = objects_[id].slot;
    const Id128 listed = DirectoryHash(slot, objects_.KeyOf(id));
    if (kept) {
      listings_.AddMoved({.hash = listed,
                          .generation = objects_.GenerationOf(id),
                          .size_bytes = objects_.SizeBytes(id),
                          .group = listings_.FactsOf(id).group,
                          .slot = slot,
                          .copies = listings_.FactsOf(id).copies,
                          .tier = kvcove::Tier::kDisk},
                         std::string(objects_.KeyOf(id)));
    } else {
      listings_.AddGone(listed, slot, listings_.FactsOf(id).group);
    }
  }
  // Objects of an earlier generation were gone when it ended (KeyChanges::SetSlot).
  if (key_changes_ != nullptr && objects_.Current(id)) {
    key_changes_->Add(KeyChanges::Kind::kWithdrawn, objects_[id].slot, objects_.KeyOf(id));
  }
  asks_.Gone({.id = id, .bytes = bytes, .slot = static_cast<SlotId>(objects_[id].slot)}, reason,
             kept);
  const Objects::Removed removed = objects_.Withdraw(id, hash, reason);
  withdrawn_.Add(removed.place, removed.size_bytes);
  spaces_.RemoveObject(removed.space, bytes, removed.hard_pinned);
}

// Hands an evicted object to the lower tier; one that is dead or removed is only forgotten there.
// The tier keeps an object of a hidden or unnamed slot only if it has it already: it may be read
// again, so the master must not forget it. True: the lower tier has the value.
bool Room::HandDown(const Chosen& object, MissReason reason) const {
  if (options_.lower == nullptr) return false;
  const auto [id, hash] = object;
  const auto forget = [&, gone = id] {
    options_.lower->Forgotten(gone);
    return false;
  };
  const auto slot = static_cast<SlotId>(objects_[id].slot);
  const Objects::Slot& of = objects_.slot(slot);
  if (reason != MissReason::kEvicted || !objects_.Current(id)) return forget();
  const std::string key = objects_.KeyOf(id);
  const segment::HeaderView& view = objects_.view();
  const segment::Found found = view.Find(slot, {.key = key, .hash = hash});
  if (!found) return forget();
  Extent extents[segment::kMaxExtents];
  const std::uint32_t count = view.Extents(found, extents);
  const Listings::Facts facts = options_.listed ? listings_.FactsOf(id) : Listings::Facts{};
  return options_.lower->Evicted(
      {.slot = slot,
       .generation = found.generation,
       .put = options_.listed ? PackPut({.group = facts.group, .copies = facts.copies})
                              : found.version,
       .key = key,
       .size_bytes = found.meta.size_bytes(),
       .id = id,
       .hash = hash,
       .extents = {extents, count},
       .goes_down = of.named && !of.hidden});
}

bool Room::Reclaim(const std::vector<Place>& places) {
  for (const Place place : places) {
    // Withdraw changed only the record's version, so its extents can still be read.
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

Code Room::PinHard(ObjectId id, std::optional<std::int64_t> until_ns) {
  const std::uint64_t bytes = objects_.Bytes(id);
  const bool endless = objects_[id].hard_pinned && !timed_pins_.EndOf(id);
  if (!objects_[id].hard_pinned) {
    const auto may_pin = [&] { return spaces_.MayPin(objects_[id].space, bytes); };
    for (int i = 0; i < kSweepsBeforePin && !may_pin(); ++i) {
      if (Sweep(kSweepSlice, /*unnamed=*/false) == 0) break;
    }
    if (!may_pin()) {
      ++refused_pins_;
      return Code::kLimit;
    }
    spaces_.policy(objects_[id].space).OnRemove(id, /*evicted=*/false);
    spaces_.SetPinned(objects_[id].space, bytes, true);
    objects_.SetHardPinned(id, true);
  }
  if (!until_ns) {
    timed_pins_.Erase(id);
  } else if (!endless) {
    timed_pins_.Extend(id, bytes, *until_ns);
  }
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
  timed_pins_.Erase(id);
  UnpinHard(id);
}

void Room::UnpinHard(ObjectId id) {
  const Spaces::Number space = objects_[id].space;
  objects_.SetHardPinned(id, false);
  spaces_.SetPinned(space, objects_.Bytes(id), false);
  spaces_.policy(space).OnPut(
      {.id = id,
       .key = objects_.view().HashKey(objects_[id].slot, objects_.KeyOf(id)),
       .size_bytes = objects_.Bytes(id)});
}

bool Room::EndPins(std::uint32_t at_most) {
  const std::int64_t now = clock_.NowNs();
  for (; at_most > 0; --at_most) {
    const std::optional<ObjectId> id = timed_pins_.TakeEnded(now);
    if (!id) return false;
    // The pins of a dead generation end with their objects, which the sweep withdraws.
    if (!objects_.Current(*id)) continue;
    ++ended_pins_;
    UnpinHard(*id);
  }
  return true;
}

}  // namespace kvcove::owner
