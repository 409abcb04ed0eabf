// SPDX-License-Identifier: Apache-2.0
// The objects of a segment: their numbers, their entries in the index, and lists of them by slot.
// No I/O. Needs a lock.
//
//   free number -> visible (Insert) -> free number (Withdraw)
//
// A slot has three lists, so that whatever is looked for is at a list's front and nothing else is
// looked at: `live` (the current generation), `pinned` (the same, hard-pinned) and `dead` (earlier
// generations). A reset appends the first two to the third, in O(1). Which list an object is in
// follows from its entry's generation and from its pin. An entry's record and extents stay as they
// are after Withdraw, until Index::Release: readers may still be reading them.
#pragma once

#include <optional>
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
  static constexpr std::uint32_t kMostHolds = 31;  // that are counted
  // There is one for each value, so its fields are as wide as they must be and no wider.
  struct Object {
    Place place = 0;  // 0 = this number is free
    std::uint32_t slot : 12 = 0;
    // A slot may get another one while objects of its former one are left.
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
    // What the generation before this one had when it ended, and what this one has: objects, and
    // the bytes that they occupy.
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
  // What the slot holds is dead from now on, if the generation is another one. Readers of this host
  // learn it from the header, which this writes.
  void SetGeneration(SlotId slot, Generation generation);
  // Readers of this host find nothing in it: none has generation 0.
  void SetHidden(SlotId slot, bool hidden);

  // ---- objects
  bool Has(ObjectId id) const { return id < next_ && objects_[id].place != 0; }
  bool Has(ObjectId id, Version version) const {
    return Has(id) && index_.view().StillThere(objects_[id].place, version);
  }
  const Object& operator[](ObjectId id) const { return objects_[id]; }
  // The object that `place` and `version`, which a session wrote, name exactly; else kNoObject.
  ObjectId Named(Place place, Version version) const;
  // `entry.object` and `entry.version` are given here. Errors: kLimit when the index is full.
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
  // Nobody finds it from now on, and `reason` is why. `hash` must be HashOf(id). O(1).
  Removed Withdraw(ObjectId id, std::uint64_t hash, MissReason reason);
  // Of a current object.
  void SetHardPinned(ObjectId id, bool pinned);
  void SetSoftPinned(ObjectId id, bool pinned) { objects_[id].soft_pinned = pinned; }
  // False once there are as many holds as can be counted.
  bool Hold(ObjectId id);
  void Unhold(ObjectId id);

  // ---- what to sweep
  // Some object of an earlier generation.
  ObjectId AnyDead() const;
  // Some object, not hard-pinned, of the oldest version that no engine names.
  ObjectId AnyUnnamed() const;
  std::uint64_t dead() const { return dead_; }
  std::uint64_t size() const { return index_.size(); }

  // ---- entries
  std::uint32_t SizeBytes(ObjectId id) const { return MetaOf(id).size_bytes(); }
  // What it occupies, whole granules.
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
  // Hints that Withdraw will be asked for it: what lies far away in memory is its own record, then
  // its entry, then what its hash names. Each hint reads what the one before has fetched.
  void PrefetchObject(ObjectId id) const { __builtin_prefetch(&objects_[id]); }
  void PrefetchEntry(ObjectId id) const {
    __builtin_prefetch(&index_.view().EntryAt(objects_[id].place));
    __builtin_prefetch(index_.view().WordsBehind(objects_[id].place) + 1);
  }
  void PrefetchHash(std::uint64_t hash) const { index_.view().PrefetchGone(hash); }
  // One above the highest number that was ever used: walks end there.
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
  // Keeps the sets of slots with something to sweep, after a change of the slot's lists.
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
  std::set<Unnamed> unnamed_;  // slots that nobody names and that hold objects, oldest first
};

}  // namespace kvcove::owner
