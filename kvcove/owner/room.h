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
// is still what the policy has kept. A call withdraws as many objects as it needs bytes for;
// nothing that it looks at grows with what else is there. Hard-pinned objects are unknown to the
// policies, so no search meets them; at most kMaxRefused held or softly pinned ones are passed over
// a round, then they give way, too.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/owner/foreign_memory.h"
#include "kvcove/owner/listings.h"
#include "kvcove/owner/objects.h"
#include "kvcove/owner/reservations.h"
#include "kvcove/owner/withdrawn.h"
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
  static constexpr std::uint32_t kSweepSlice = 64;  // objects swept at once while a put waits

  Room(const CoreOptions& options, const Parts& parts, std::byte* payload, const Clock& clock);

  // The payload below `granules` is populated and may be used.
  void AddPayloadUpTo(std::uint64_t granules);
  std::uint64_t added_granules() const { return added_granules_; }
  std::uint64_t free_bytes() const;

  // Extents for a value, counted as reserved by `space`; none when there is no room. `evict` false:
  // nothing visible gives way.
  std::vector<Extent> Take(std::uint32_t size_bytes, Spaces::Number space, bool evict);
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

  // kLimit: hard pins would take more than half of the payload.
  Code PinHard(ObjectId id);
  void PinSoft(ObjectId id, std::int64_t until_ns);
  void Unpin(ObjectId id);

  Withdrawn& withdrawn() { return withdrawn_; }
  const Withdrawn& withdrawn() const { return withdrawn_; }
  // No bytes are lost or used twice.
  bool Consistent() const;

 private:
  bool Reclaim(const std::vector<Place>& places);
  bool WithinBounds(Spaces::Number space, std::uint64_t bytes, bool evict);
  bool Evict(std::uint64_t bytes, Spaces::Number space);
  bool Spared(ObjectId id) const;
  // What waits in this space goes before any of its objects.
  bool MostWaits(Spaces::Number space) const {
    return reservations_.waiting_bytes(space) > spaces_.object_bytes(space) / 2;
  }
  void GiveWay(Reservation& waiting);

  const CoreOptions& options_;
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
  std::uint64_t added_granules_ = 0;
  std::uint64_t gave_way_ = 0;
  std::map<ObjectId, std::int64_t> soft_pins_;  // until when
};

}  // namespace kvcove::owner
