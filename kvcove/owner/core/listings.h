// SPDX-License-Identifier: Apache-2.0
// Reports that an owner in a cluster keeps for its master: commits that wait to be listed, objects
// that were evicted or removed, or moved to another tier; and facts of objects that only a cluster
// needs. No I/O. Not thread-safe: needs the core's lock. O(1) a call and item.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/core/reservations.h"
#include "kvcove/policy/id_list.h"

namespace kvcove::owner {

class Listings {
 public:
  struct Facts {
    std::uint64_t checksum = 0;
    std::uint32_t group = 0;  // the same for the replicas of one put
    bool has_checksum = false;
    std::uint8_t copies = 1;
  };
  // Entries that are kept until TakeGone; beyond these, the owner reports its whole inventory
  // again. 24 bytes each, so 24 MiB; for objects that moved, 56 bytes and their keys in addition.
  static constexpr std::size_t kMaxGone = 1 << 20;

  // ---- commits
  void Await(const Reservation& reservation);
  // Returns the commits since the last call, oldest first.
  std::vector<Pending> TakePending() { return std::exchange(pending_, {}); }

  // ---- objects that were evicted, removed or moved
  void AddGone(const Id128& hash, SlotId slot, std::uint32_t group);
  // Adds an object that is in another tier from now on. One queue with AddGone, so that the master
  // sees the events of a key in their order.
  void AddMoved(const wire::ListItem& item, std::string key);
  // Takes the oldest entries, up to `at_most`. Those that moved have their keys, by which the owner
  // drops them when the master refuses them.
  std::vector<InventoryItem> TakeGone(std::size_t at_most);
  // Sets the number of the last removal that is applied.
  void SetApplied(std::uint64_t number) { applied_ = number; }
  // Returns true once if entries were lost beyond kMaxGone.
  bool TakeGoneOverflow() { return std::exchange(overflow_, false); }

  // ---- facts, by object
  void SetFacts(ObjectId id, const Facts& facts);
  // Returns the object's facts. If they were never set: those of an object on this owner alone.
  Facts FactsOf(ObjectId id) const { return facts_.Has(id) ? facts_[id] : Facts{}; }
  void SetChecksum(ObjectId id, std::uint64_t checksum);

  // Commits that were not taken yet are found again by Reservations::Carry.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, gone_, moved_, overflow_, facts_, applied_);
  }

 private:
  // 24 bytes, because a removal of many objects adds one for each.
  struct Gone {
    Id128 hash;
    std::uint32_t group = 0;
    SlotId slot = 0;
    bool moved = false;
  };
  struct Moved {
    std::string key;
    Generation generation = 0;
    std::uint64_t removals = 0;  // last removal applied when it moved: a later one may match it
    std::uint32_t size_bytes = 0;
    std::uint8_t copies = 1;
    Tier tier = Tier::kMemory;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, key, generation, removals, size_bytes, copies, tier);
    }
  };
  std::vector<Pending> pending_;
  std::deque<Gone> gone_;
  std::deque<Moved> moved_;  // one for each entry of `gone_` that moved, in the same order
  bool overflow_ = false;
  std::uint64_t applied_ = 0;
  policy::ChunkedArray<Facts> facts_;
};

}  // namespace kvcove::owner
