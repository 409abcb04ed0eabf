// SPDX-License-Identifier: Apache-2.0
// What an owner in a cluster keeps for its master: commits that wait to be listed, objects that are
// gone and must be forgotten, and facts of objects that only a cluster needs. No I/O. Needs a lock.
// O(1) a call and item.
#pragma once

#include <deque>
#include <vector>

#include "kvcove/owner/core_types.h"
#include "kvcove/owner/reservations.h"
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
  // again. 24 bytes each: 24 MiB.
  static constexpr std::size_t kMaxGone = 1 << 20;

  // ---- commits
  void Await(const Reservation& reservation);
  // Since the last call, oldest first.
  std::vector<Pending> TakePending() { return std::exchange(pending_, {}); }

  // ---- objects that are gone
  void AddGone(const Id128& hash, SlotId slot, std::uint32_t group);
  // Since the last call, oldest first.
  std::vector<wire::ListItem> TakeGone(std::size_t at_most);
  // True once more were gone than could be kept.
  bool TakeGoneOverflow() { return std::exchange(overflow_, false); }

  // ---- facts, by object
  void SetFacts(ObjectId id, const Facts& facts);
  // Of an object whose facts were never set: those of one that is on this owner alone.
  Facts FactsOf(ObjectId id) const { return facts_.Has(id) ? facts_[id] : Facts{}; }
  void SetChecksum(ObjectId id, std::uint64_t checksum);

 private:
  struct Gone {
    Id128 hash;
    std::uint32_t group = 0;
    SlotId slot = 0;
  };
  std::vector<Pending> pending_;
  std::deque<Gone> gone_;
  bool overflow_ = false;
  policy::ChunkedArray<Facts> facts_;
};

}  // namespace kvcove::owner
