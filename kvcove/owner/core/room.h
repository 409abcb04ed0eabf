// SPDX-License-Identifier: Apache-2.0
// Gives out a segment's payload, and makes room in it: the way of an object from the index to free
// memory. No I/O. Needs a lock.
//
//   visible -> withdrawn -> (no reader, no transfer protects it) -> its extents and record are free
//   waits for the master -> (it gives way) -> its extents are free
//
// Room is made in this order: free memory, memory that is not populated yet, withdrawn objects that
// nobody reads any more, objects of dead generations, objects of versions that no engine names, the
// policy's victims. What waits for the master is unknown to the policy. Within its space, the
// oldest of it gives way once more than half of the space's bytes wait, or the policy has no victim
// that is not spared: however long the master is away, puts go on, and the other half of the space
// is still what the policy has kept. A call withdraws as many objects as its batch needs bytes for;
// nothing that it looks at grows with what else is there. Hard-pinned objects are unknown to the
// policies, so no search meets them; at most kMaxRefused held or softly pinned ones are passed over
// a round, then they give way, too.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/owner/core/foreign_memory.h"
#include "kvcove/owner/core/listings.h"
#include "kvcove/owner/core/objects.h"
#include "kvcove/owner/core/reservations.h"
#include "kvcove/owner/core/withdrawn.h"
#include "kvcove/segment/allocator.h"

namespace kvcove::owner {

class Room {
 public:
  // Parts of the same core, which outlive this.
  struct Parts {
    Objects& objects;
    Spaces& spaces;
    Reservations& reservations;
    Listings& listings;
    Counters& counters;
    Steps& steps;
  };
  static constexpr std::uint32_t kMaxVictims = 256;  // a round
  static constexpr std::uint32_t kMaxRefused = 256;
  static constexpr std::uint32_t kMaxChosen = 32;   // before they are withdrawn
  static constexpr std::uint32_t kSweepSlice = 64;  // objects swept at once while a put waits

  Room(const CoreOptions& options, const Parts& parts, const segment::Payload& payload,
       const Clock& clock);

  // The payload below `bytes` is populated and may be used.
  void AddPayloadBelow(std::uint64_t bytes);
  std::uint64_t added_bytes() const { return granule_.BytesOf(added_granules_); }
  std::uint64_t free_bytes() const;
  segment::Granule granule() const { return granule_; }

  struct Taking {
    bool evict = true;  // false: nothing visible gives way
    // It comes up from the lower tier: it needs no leave of that tier to evict something else.
    bool comes_up = false;
    // Occupied bytes that the same batch takes after this value, for the same space: what gives way
    // for all of them does so at once, at a fraction of the cost.
    std::uint64_t ahead_bytes = 0;
  };
  // Extents for a value, counted as reserved by `space`; none when there is no room.
  std::vector<Extent> Take(std::uint32_t size_bytes, Spaces::Number space, const Taking& taking);
  // What has room in the space without anything giving way.
  std::uint64_t LeftFor(Spaces::Number space) const {
    return std::min(free_bytes(), spaces_.left_bytes(space));
  }
  // Of a reservation that ends without an object; of a value that does not become one.
  void GiveBack(const Reservation& reservation);
  void GiveBack(std::span<const Extent> extents, Spaces::Number space, std::uint64_t bytes);
  // How many that waited for the master have given way since the last call.
  std::uint64_t TakeGaveWay() { return std::exchange(gave_way_, 0); }

  // Its memory comes back with a later Settle.
  void Withdraw(ObjectId id, MissReason reason);
  // Frees what was withdrawn and is not protected. True if it freed any.
  bool Settle() { return Reclaim(withdrawn_.Settle()); }
  // The same for what waited for its readers.
  bool Recheck() { return Reclaim(withdrawn_.Recheck()); }
  // Withdraws up to `at_most` objects of dead generations; of versions that nobody names, too, if
  // `unnamed`. Returns how many, all settled.
  std::uint32_t Sweep(std::uint32_t at_most, bool unnamed);

  // kLimit: the space's hard pins would take more than they may (spaces.h).
  Code PinHard(ObjectId id);
  void PinSoft(ObjectId id, std::int64_t until_ns);
  void Unpin(ObjectId id);

  Withdrawn& withdrawn() { return withdrawn_; }
  const Withdrawn& withdrawn() const { return withdrawn_; }
  // No bytes are lost or used twice.
  bool Consistent() const;

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, allocator_, withdrawn_, added_granules_, gave_way_, soft_pins_);
    if (foreign_) CarryOne(ar, *foreign_);
  }

 private:
  bool Reclaim(const std::vector<Place>& places);
  bool WithinBounds(Spaces::Number space, std::uint64_t bytes, const Taking& taking);
  struct Wanted {
    std::uint64_t bytes = 0;  // of the next value: what must be free
    std::uint64_t all = 0;    // of what comes after it, too: what should be free
    bool comes_up = false;
  };
  Wanted WantedFor(Spaces::Number space, std::uint64_t bytes, const Taking& taking) const;
  bool Evict(const Wanted& wanted, Spaces::Number space);
  std::uint64_t SpareBytes(const Wanted& wanted) const;
  struct Chosen {
    ObjectId id = kNoObject;
    std::uint64_t hash = 0;
  };
  void ChooseVictims(policy::EvictionPolicy& policy, std::uint64_t bytes,
                     const std::function<bool(ObjectId)>& evictable);
  void WithdrawForgotten(const Chosen& object, MissReason reason);
  bool HandDown(const Chosen& object, MissReason reason) const;
  bool Spared(ObjectId id) const;
  // True: puts of this space that are not listed yet are evicted before its objects.
  bool MostWaits(Spaces::Number space) const {
    return reservations_.waiting_bytes(space) > spaces_.object_bytes(space) / 2;
  }
  void GiveWay(Reservation& waiting);

  const CoreOptions& options_;
  const segment::Granule granule_;
  Objects& objects_;
  Spaces& spaces_;
  Reservations& reservations_;
  Listings& listings_;
  Counters& counters_;
  Steps& steps_;
  const Clock& clock_;
  segment::Allocator allocator_;
  Withdrawn withdrawn_;
  std::optional<ForeignMemory> foreign_;  // where tenants share the memory
  std::vector<Chosen> chosen_;            // of one round of Evict
  std::uint64_t added_granules_ = 0;
  std::uint64_t gave_way_ = 0;
  std::map<ObjectId, std::int64_t> soft_pins_;  // until when
};

}  // namespace kvcove::owner
