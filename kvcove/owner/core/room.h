// SPDX-License-Identifier: Apache-2.0
// Gives out a segment's payload, and makes room in it: takes objects from the index to free memory.
// No I/O. Not thread-safe: needs the core's lock.
//
//   visible -> withdrawn -> (no reader, no transfer protects it) -> its extents and record are free
//   waits for the master -> (evicted) -> its extents are free
//
// Room is made in this order: free memory, memory that is not populated yet, objects of dead
// generations, objects of versions that no engine names, the policy's victims, withdrawn objects
// that no reader protects any more (these first, if the put may not evict). Puts that wait for the
// master are unknown to the policy. Within a space, the oldest of them is evicted once more than
// half of the space's bytes wait, or the policy has no victim that is not spared. So puts continue
// however long the master is away, and the other half of the space remains the policy's choice.
//
// A call withdraws as many objects as its batch needs bytes for, and its steps do not grow with
// the number of other objects. Hard-pinned objects are unknown to the policies, so no search finds
// them. At most kMaxRefused held or softly pinned ones are passed over a round, then these are
// evicted, too.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/owner/core/asks.h"
#include "kvcove/owner/core/foreign_memory.h"
#include "kvcove/owner/core/key_changes.h"
#include "kvcove/owner/core/listings.h"
#include "kvcove/owner/core/objects.h"
#include "kvcove/owner/core/reservations.h"
#include "kvcove/owner/core/timed_pins.h"
#include "kvcove/owner/core/withdrawn.h"
#include "kvcove/segment/allocator.h"

namespace kvcove::owner {

class Room {
 public:
  // The other parts of the same core, which outlive this one.
  struct Parts {
    Objects& objects;
    Spaces& spaces;
    Reservations& reservations;
    Listings& listings;
    KeyChanges* key_changes;  // null: nobody asks for them
    Asks& asks;
    Counters& counters;
    Steps& steps;
  };
  static constexpr std::uint32_t kMaxVictims = 256;  // objects evicted a round
  static constexpr std::uint32_t kMaxRefused = 256;  // spared objects passed over a round
  static constexpr std::uint32_t kMaxChosen = 32;    // objects chosen before they are withdrawn
  static constexpr std::uint32_t kSweepSlice = 64;   // objects swept at once while a put waits
  static constexpr int kSweepsBeforePin = 8;         // slices swept before a pin is refused

  Room(const CoreOptions& options, const Parts& parts, const segment::Payload& payload,
       const Clock& clock);

  // Lets the payload below `bytes`, which is populated, be used.
  void AddPayloadBelow(std::uint64_t bytes);
  std::uint64_t added_bytes() const { return granule_.BytesOf(added_granules_); }
  std::uint64_t free_bytes() const;
  segment::Granule granule() const { return granule_; }

  struct Taking {
    bool evict = true;  // false: no object is evicted
    // The value is promoted from the lower tier, so evictions for it ignore LowerTier::SpareBytes.
    bool comes_up = false;
    // Occupied bytes that the same batch takes after this value, for the same space: the victims
    // for all of them are evicted at once, at a fraction of the cost.
    std::uint64_t ahead_bytes = 0;
  };
  // Returns extents for a value, counted as reserved by `space`; none when there is no room.
  std::vector<Extent> Take(std::uint32_t size_bytes, Spaces::Number space, const Taking& taking);
  // Returns how many bytes fit into the space without an eviction.
  std::uint64_t LeftFor(Spaces::Number space) const {
    return std::min(free_bytes(), spaces_.left_bytes(space));
  }
  // Free the extents of a reservation that ends without an object, or of a value that is not
  // stored after Take.
  void GiveBack(const Reservation& reservation);
  void GiveBack(std::span<const Extent> extents, Spaces::Number space, std::uint64_t bytes);
  // Returns how many puts that waited for the master were evicted since the last call.
  std::uint64_t TakeGaveWay() { return std::exchange(gave_way_, 0); }

  // Removes the object from the index; a later Settle frees its memory.
  void Withdraw(ObjectId id, MissReason reason);
  // Frees objects withdrawn since the last call that nothing protects. True if it freed any.
  bool Settle() { return Reclaim(withdrawn_.Settle()); }
  // Frees older withdrawn objects whose readers have finished. True if it freed any.
  bool Recheck() { return Reclaim(withdrawn_.Recheck()); }
  // Withdraws up to `at_most` objects of dead generations and, if `unnamed`, of versions that no
  // engine names. Returns how many, and has called Settle for them.
  std::uint32_t Sweep(std::uint32_t at_most, bool unnamed);

  // Hard-pins a current object until `until_ns`, or without an end. Of two pins of an object the
  // one that ends later holds. kLimit: the space's hard pins would exceed their bound (spaces.h).
  // Pins of dead generations count only if more objects are dead than this call may sweep.
  Code PinHard(ObjectId id, std::optional<std::int64_t> until_ns);
  void PinSoft(ObjectId id, std::int64_t until_ns);
  // Returns whether a soft pin of the object has not ended yet.
  bool SoftPinned(ObjectId id) const;
  void Unpin(ObjectId id);
  // Ends up to `at_most` hard pins whose time is over. Returns whether more are left to end.
  bool EndPins(std::uint32_t at_most);
  const TimedPins& timed_pins() const { return timed_pins_; }
  // Return how many hard pins were refused, and how many have ended with their time.
  std::uint64_t refused_pins() const { return refused_pins_; }
  std::uint64_t ended_pins() const { return ended_pins_; }

  Withdrawn& withdrawn() { return withdrawn_; }
  const Withdrawn& withdrawn() const { return withdrawn_; }
  // Returns whether no bytes are lost or used twice.
  bool Consistent() const;

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, allocator_, withdrawn_, added_granules_, gave_way_, soft_pins_);
    if (foreign_) CarryOne(ar, *foreign_);
  }

  // Apart from Carry, for an earlier build's state has none.
  template <typename Ar>
  void CarryTimedPins(Ar& ar) {
    CarryAll(ar, timed_pins_, refused_pins_, ended_pins_);
  }

 private:
  bool Reclaim(const std::vector<Place>& places);
  bool WithinBounds(Spaces::Number space, std::uint64_t bytes, const Taking& taking);
  struct Wanted {
    std::uint64_t bytes = 0;  // must become free: the next value
    std::uint64_t all = 0;    // should become free: with the values of the batch after it
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
  void UnpinHard(ObjectId id);
  // Returns whether puts of this space that are not listed yet are evicted before its objects.
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
  KeyChanges* const key_changes_;
  Asks& asks_;
  Counters& counters_;
  Steps& steps_;
  const Clock& clock_;
  segment::Allocator allocator_;
  Withdrawn withdrawn_;
  std::optional<ForeignMemory> foreign_;  // unset unless tenants share the memory
  std::vector<Chosen> chosen_;            // victims of one step of Evict
  std::uint64_t added_granules_ = 0;
  std::uint64_t gave_way_ = 0;
  std::map<ObjectId, std::int64_t> soft_pins_;  // deadlines
  TimedPins timed_pins_;
  std::uint64_t refused_pins_ = 0;
  std::uint64_t ended_pins_ = 0;
};

}  // namespace kvcove::owner
