// SPDX-License-Identifier: Apache-2.0
// What an owner in a cluster keeps for its master: commits that wait to be listed, objects that are
// gone and must be forgotten or that lie in another tier, and facts of objects that only a cluster
// needs. No I/O. Needs a lock.
// O(1) a call and item.
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
  // Beyond so many objects that are gone and not taken yet, the owner tells its whole inventory
  // again. 24 bytes each: 24 MiB; for those that moved, 56 and their keys besides.
  static constexpr std::size_t kMaxGone = 1 << 20;

  // ---- commits
  void Await(const Reservation& reservation);
  // Since the last call, oldest first.
  std::vector<Pending> TakePending() { return std::exchange(pending_, {}); }

  // ---- objects that are gone
  void AddGone(const Id128& hash, SlotId slot, std::uint32_t group);
  // It lies in another tier from now on. Told in one order with what is gone.
  void AddMoved(const wire::ListItem& item, std::string key);
  // Since the last call, oldest first. What moved comes with its key, by which it is dropped when
  // the master refuses it.
  std::vector<InventoryItem> TakeGone(std::size_t at_most);
  // The last removal that is applied.
  void SetApplied(std::uint64_t number) { applied_ = number; }
  // True once more were gone than could be kept.
  bool TakeGoneOverflow() { return std::exchange(overflow_, false); }

  // ---- facts, by object
  void SetFacts(ObjectId id, const Facts& facts);
  // Of an object whose facts were never set: those of one that is on this owner alone.
  Facts FactsOf(ObjectId id) const { return facts_.Has(id) ? facts_[id] : Facts{}; }
  void SetChecksum(ObjectId id, std::uint64_t checksum);

  // Commits that were not taken yet are found again by Reservations::Carry.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, gone_, moved_, overflow_, facts_, applied_);
  }

 private:
  // 24 bytes: a removal of many objects leaves one each.
  struct Gone {
    Id128 hash;
    std::uint32_t group = 0;
    SlotId slot = 0;
    bool moved = false;
  };
  struct Moved {
    std::string key;
    Generation generation = 0;
    std::uint64_t removals = 0;  // what was applied when it moved: a later removal may mean it
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
  std::deque<Moved> moved_;  // of those in `gone_` that did
  bool overflow_ = false;
  std::uint64_t applied_ = 0;
  policy::ChunkedArray<Facts> facts_;
};

}  // namespace kvcove::owner
