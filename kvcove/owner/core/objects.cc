// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/objects.h"

#include <utility>

namespace kvcove::owner {

Objects::Objects(segment::HeaderView header) : index_(header), slots_(kMaxSlots) {}

// ---- slots

void Objects::Note(SlotId number) {
  const Slot& slot = slots_[number];
  if (slot.dead_count > 0) with_dead_.insert(number);
  if (!slot.named && slot.live_count > 0) unnamed_.emplace(slot.generation, number);
}

void Objects::Forget(SlotId number) {
  const Slot& slot = slots_[number];
  if (slot.dead_count == 0) with_dead_.erase(number);
  if (slot.named || slot.live_count == 0) unnamed_.erase({slot.generation, number});
}

void Objects::SetNamed(SlotId number, bool named) {
  slots_[number].named = named;
  Note(number);
  Forget(number);
}

void Objects::SetGeneration(SlotId number, Generation generation) {
  Slot& slot = slots_[number];
  unnamed_.erase({slot.generation, number});
  slot.voided = slot.current();
  slot.voided_bytes = std::exchange(slot.current_bytes, 0);
  slot.dead.Append(objects_, slot.pinned);
  slot.dead.Append(objects_, slot.live);
  slot.dead_count += slot.live_count + slot.pinned_count;
  dead_ += slot.voided;
  slot.live_count = 0;
  slot.pinned_count = 0;
  slot.generation = generation;
  Note(number);
  // Sequentially consistent, so that the store is not delayed behind the acknowledgement: each
  // look-up that begins after an acknowledged reset loads this generation (CheckScope).
  index_.view().slot(number).generation.store(slot.hidden ? 0 : generation,
                                              std::memory_order_seq_cst);
}

void Objects::SetHidden(SlotId number, bool hidden) {
  Slot& slot = slots_[number];
  slot.hidden = hidden;
  index_.view().slot(number).generation.store(hidden ? 0 : slot.generation,
                                              std::memory_order_seq_cst);
}

// ---- lists

Objects::Slot::List& Objects::ListOf(ObjectId id, std::uint32_t*& count) {
  const Object& object = objects_[id];
  Slot& slot = slots_[object.slot];
  if (!Current(id)) {
    count = &slot.dead_count;
    return slot.dead;
  }
  count = object.hard_pinned ? &slot.pinned_count : &slot.live_count;
  return object.hard_pinned ? slot.pinned : slot.live;
}

void Objects::Link(ObjectId id) {
  std::uint32_t* count = nullptr;
  ListOf(id, count).PushBack(objects_, id);
  // A list that was not empty before is in its set already.
  Slot& slot = slots_[objects_[id].slot];
  if (++*count == 1) Note(objects_[id].slot);
  if (count != &slot.dead_count) slot.current_bytes += Bytes(id);
}

void Objects::Unlink(ObjectId id) {
  std::uint32_t* count = nullptr;
  ListOf(id, count).Erase(objects_, id);
  Slot& slot = slots_[objects_[id].slot];
  if (--*count == 0) Forget(objects_[id].slot);
  if (count != &slot.dead_count) slot.current_bytes -= Bytes(id);
}

ObjectId Objects::AnyDead() const {
  return with_dead_.empty() ? kNoObject : slots_[*with_dead_.begin()].dead.front();
}

ObjectId Objects::AnyUnnamed() const {
  return unnamed_.empty() ? kNoObject : slots_[unnamed_.begin()->second].live.front();
}

// ---- objects

Result<ObjectId> Objects::Insert(segment::Index::NewEntry entry, Spaces::Number space) {
  const bool fresh = free_ == kNoObject;
  const ObjectId id = fresh ? next_ : free_;
  entry.object = id;
  entry.version = next_version_++;
  KVCOVE_ASSIGN(const Place place, index_.Insert(entry));
  if (fresh) {
    objects_.Reach(next_++);
  } else {
    free_ = objects_[id].link.next;
  }
  objects_[id] = {.place = place, .slot = entry.slot, .space = space};
  Link(id);
  return id;
}

Objects::Removed Objects::Withdraw(ObjectId id, std::uint64_t hash, MissReason reason) {
  const Object& object = objects_[id];
  Removed removed{.place = object.place,
                  .version = VersionOf(id),
                  .size_bytes = SizeBytes(id),
                  .slot = static_cast<SlotId>(object.slot),
                  .space = static_cast<Spaces::Number>(object.space),
                  .hard_pinned = object.hard_pinned,
                  .soft_pinned = object.soft_pinned,
                  .dead = !Current(id)};
  Unlink(id);
  if (removed.dead) --dead_;
  // The reason before the entry, so that a reader that misses the key finds it. It is a hint: the
  // store is relaxed, and another key with the same place may replace it.
  index_.view().RememberGhost(hash, reason);
  index_.Withdraw(removed.place, hash);
  objects_[id] = {.link = {.next = std::exchange(free_, id)}};
  return removed;
}

void Objects::SetHardPinned(ObjectId id, bool pinned) {
  if (objects_[id].hard_pinned == pinned) return;
  Unlink(id);
  objects_[id].hard_pinned = pinned;
  Link(id);
}

bool Objects::Hold(ObjectId id) {
  if (objects_[id].held == kMostHolds) return false;
  ++objects_[id].held;
  return true;
}

void Objects::Unhold(ObjectId id) {
  if (objects_[id].held > 0) --objects_[id].held;
}

// Bounds first: `place` may point behind the records. Then both directions must agree: the entry
// names the object, and the object this place.
ObjectId Objects::Named(Place place, Version version) const {
  if (place == 0 || version == 0 ||
      std::uint64_t{place} + (sizeof(segment::Entry) / segment::kRecordUnit) >
          index_.view().header().record_units) {
    return kNoObject;
  }
  const segment::Entry& entry = index_.view().EntryAt(place);
  if (entry.version.load(std::memory_order_relaxed) != version) return kNoObject;
  const auto id = static_cast<ObjectId>(entry.first.load(std::memory_order_relaxed));
  return id < next_ && objects_[id].place == place ? id : kNoObject;
}

// ---- entries: the owner is their only writer, under the lock, so relaxed loads see its stores

segment::EntryMeta Objects::MetaOf(ObjectId id) const {
  return segment::EntryMeta(
      index_.view().EntryAt(objects_[id].place).meta.load(std::memory_order_relaxed));
}

std::uint64_t Objects::Bytes(ObjectId id) const {
  return index_.view().granule().Occupied(MetaOf(id).size_bytes());
}

Generation Objects::GenerationOf(ObjectId id) const {
  return index_.view().EntryAt(objects_[id].place).generation.load(std::memory_order_relaxed);
}

Version Objects::VersionOf(ObjectId id) const {
  return index_.view().EntryAt(objects_[id].place).version.load(std::memory_order_relaxed);
}

}  // namespace kvcove::owner
