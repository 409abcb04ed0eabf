// SPDX-License-Identifier: Apache-2.0
// The objects of a segment: their numbers, their entries in the index, and lists of them by slot.
// No I/O. Not thread-safe: needs the core's lock; readers of this host look into the index and the
// slots' generations without it.
//
//   free number -> visible (Insert) -> free number (Withdraw)
//
// A slot has three lists, so that each search takes the front of a list and skips nothing: `live`
// (the current generation), `pinned` (the same, hard-pinned) and `dead` (earlier generations). A
// reset appends the first two to the third, in O(1): `pinned` first, because a space's pinned bytes
// count, and may keep it from pinning others, until these are swept. An object's list follows from
// its entry's generation and from its pin. An entry's record and extents remain unchanged after
// Withdraw, until Index::Release: readers may still be reading them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/core/spaces.h"
#include "kvcove/policy/id_list.h"
#include "kvcove/segment/index.h"

namespace kvcove::owner {

class Objects {
 public:
  static constexpr std::uint32_t kMostHolds = 31;  // holds of one object; more are refused
  // One for each value, so 16 bytes: the fields are no wider than they must be.
  struct Object {
    Place place = 0;  // 0 = this number is free
    std::uint32_t slot : 12 = 0;
    // Kept by object, because a slot may get another space while objects of the former are left.
    std::uint32_t space : 13 = 0;
    std::uint32_t held : 5 = 0;  // by how many holds, up to kMostHolds
    bool hard_pinned : 1 = false;
    bool soft_pinned : 1 = false;
    policy::Link link;  // within its list; of free numbers, `next` alone
  };
  static_assert(sizeof(Object) == 16);
  static_assert(kMaxSlots <= 1 << 12 && Spaces::kMaxSpaces <= 1 << 13 && kMostHolds < 1 << 5);
  struct Slot {
    Generation generation = 0;  // 0: free
    Spaces::Number space = Spaces::kNone;
    bool named = true;
    bool hidden = false;
    // `voided`: objects of the previous generation when it ended, and the bytes that they occupied.
    // `current`: the same of this generation.
    std::uint64_t voided = 0;
    std::uint64_t voided_bytes = 0;
    std::uint64_t current_bytes = 0;
    std::uint32_t live_count = 0;
    std::uint32_t pinned_count = 0;
    std::uint32_t dead_count = 0;
    std::uint64_t current() const { return std::uint64_t{live_count} + pinned_count; }

   private:
    friend class Objects;
    using List = policy::IdList<policy::ChunkedArray<Object>>;
    List live;
    List pinned;
    List dead;
  };

  explicit Objects(segment::HeaderView header);

  const Slot& slot(SlotId slot) const { return slots_[slot]; }
  void SetSpace(SlotId slot, Spaces::Number space) { slots_[slot].space = space; }
  void SetNamed(SlotId slot, bool named);
  // Sets another generation: all objects of the slot are dead from now on. Stores the generation in
  // the header, too, where readers of this host load it.
  void SetGeneration(SlotId slot, Generation generation);
  // Hides the slot from readers of this host by generation 0 in the header, which no token has.
  void SetHidden(SlotId slot, bool hidden);

  // ---- objects
  bool Has(ObjectId id) const { return id < next_ && objects_[id].place != 0; }
  bool Has(ObjectId id, Version version) const {
    return Has(id) && index_.view().StillThere(objects_[id].place, version);
  }
  const Object& operator[](ObjectId id) const { return objects_[id]; }
  // Returns the object that `place` and `version` name exactly; else kNoObject. Both may come from
  // a session and be anything.
  ObjectId Named(Place place, Version version) const;
  // Makes an object visible; sets `entry.object` and `entry.version`. Errors: kLimit when the index
  // is full.
  Result<ObjectId> Insert(segment::Index::NewEntry entry, Spaces::Number space);
  struct Removed {
    Place place = 0;
    Version version = 0;
    std::uint32_t size_bytes = 0;
    SlotId slot = 0;
    Spaces::Number space = 0;
    bool hard_pinned = false;
    bool soft_pinned = false;
    bool dead = false;  // of an earlier generation
  };
  // Removes the object from the index: look-ups miss it from now on, with `reason`. `hash` must be
  // HashOf(id). O(1).
  Removed Withdraw(ObjectId id, std::uint64_t hash, MissReason reason);
  // The object must be current.
  void SetHardPinned(ObjectId id, bool pinned);
  void SetSoftPinned(ObjectId id, bool pinned) { objects_[id].soft_pinned = pinned; }
  // Counts one hold more. False when the object has kMostHolds already.
  bool Hold(ObjectId id);
  void Unhold(ObjectId id);

  // ---- sweeps
  // Returns some object of an earlier generation, or kNoObject.
  ObjectId AnyDead() const;
  // Returns some object, not hard-pinned, of the oldest version that no engine names; or kNoObject.
  ObjectId AnyUnnamed() const;
  std::uint64_t dead() const { return dead_; }
  std::uint64_t size() const { return index_.size(); }

  // ---- entries
  std::uint32_t SizeBytes(ObjectId id) const { return MetaOf(id).size_bytes(); }
  // Returns the bytes that the object occupies, whole granules.
  std::uint64_t Bytes(ObjectId id) const;
  Generation GenerationOf(ObjectId id) const;
  Version VersionOf(ObjectId id) const;
  Version next_version() const { return next_version_; }
  bool Current(ObjectId id) const {
    return GenerationOf(id) == slots_[objects_[id].slot].generation;
  }
  std::string KeyOf(ObjectId id) const { return index_.view().KeyOf(objects_[id].place); }
  std::uint64_t HashOf(ObjectId id) const {
    return index_.view().HashKey(objects_[id].slot, KeyOf(id));
  }
  // Prefetch for a later Withdraw: the object's record, then its entry, then the words that its
  // hash names. Each call reads the cache lines that the one before has fetched, so do one of them
  // for several objects before the next.
  void PrefetchObject(ObjectId id) const { __builtin_prefetch(&objects_[id]); }
  void PrefetchEntry(ObjectId id) const {
    __builtin_prefetch(&index_.view().EntryAt(objects_[id].place));
    __builtin_prefetch(index_.view().WordsBehind(objects_[id].place) + 1);
  }
  void PrefetchHash(std::uint64_t hash) const { index_.view().PrefetchGone(hash); }
  // Returns one above the highest number that was ever used: walks end there.
  ObjectId end() const { return next_; }
  segment::Index& index() { return index_; }
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, index_, slots_, objects_, free_, next_, next_version_, dead_, with_dead_,
             unnamed_);
  }
  const segment::Index& index() const { return index_; }
  const segment::HeaderView& view() const { return index_.view(); }

 private:
  using Unnamed = std::pair<Generation, SlotId>;
  segment::EntryMeta MetaOf(ObjectId id) const;
  Slot::List& ListOf(ObjectId id, std::uint32_t*& count);
  void Link(ObjectId id);
  void Unlink(ObjectId id);
  // Add a slot to the sets of slots to sweep, or erase it, after a change of its lists.
  void Note(SlotId slot);
  void Forget(SlotId slot);

  segment::Index index_;
  std::vector<Slot> slots_;
  policy::ChunkedArray<Object> objects_;
  ObjectId free_ = kNoObject;  // the first free number
  ObjectId next_ = 0;
  Version next_version_ = 1;
  std::uint64_t dead_ = 0;
  std::set<SlotId> with_dead_;
  std::set<Unnamed> unnamed_;  // slots with live objects that no engine names, oldest first
};

}  // namespace kvcove::owner
