// SPDX-License-Identifier: Apache-2.0
// Puts that are under way: the memory that each reserves, the key that it has claimed, its session.
// No I/O. Not thread-safe: needs the core's lock. O(log n) a call, n = reservations, unless stated.
//
//   Add -> (AwaitListing) -> End
//
// A claim keeps other writers from a key. It ends with its reservation, when a removal takes the
// key, or at its deadline. No queue is kept for deadlines: an expired claim counts for nothing, and
// the next writer of its key drops it. The reservation's bytes remain reserved until End, also
// after the deadline: its writer may still be copying.
//
// A session that ends leaves its reservations as orphans, which the core ends in slices. A
// reservation that waits for the master does not belong to its session any more: no writer copies
// into it, so only its space bounds it, as objects, and the oldest of a space may be evicted.
#pragma once

#include <boost/intrusive/list.hpp>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/core/spaces.h"
#include "kvcove/segment/view.h"

namespace kvcove::owner {

struct Reservation {
  using Hook = boost::intrusive::list_member_hook<
      boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
  std::uint64_t id = 0;
  SessionNumber session = 0;
  std::string key;
  std::string after;
  Hints hints;
  bool ends_request = false;  // no later item of its batch continues its request
  std::uint64_t hash = 0;
  SlotId slot = 0;
  Spaces::Number space = 0;
  Generation generation = 0;
  std::uint32_t size_bytes = 0;
  std::uint64_t bytes = 0;  // size of its extents, whole granules
  std::vector<Extent> extents;
  std::int64_t key_until_ns = 0;
  bool claims = false;   // in the table of claims
  bool removed = false;  // a removal that began later matched its key
  bool listing = false;  // committed; the master's answer is awaited
  bool has_checksum = false;
  std::uint64_t checksum = 0;
  std::uint32_t group = 0;
  std::uint8_t copies = 1;
  std::uint64_t copied_at = 0;  // see wire::FinishItem
  std::uint64_t removals = 0;   // the last removal that was applied when the put began
  Hook of_session;

  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, id, session, key, after, hints, ends_request, hash, slot, space, generation,
             size_bytes, bytes, extents, key_until_ns, claims, removed, listing, has_checksum,
             checksum, group, copies, copied_at, removals);
  }
};

class Reservations {
 public:
  explicit Reservations(Steps& steps) : steps_(steps) {}

  void AddSession(SessionNumber session) { sessions_.try_emplace(session); }
  void EndSession(SessionNumber session);
  std::uint64_t reserved_bytes(SessionNumber session) const;
  // Returns the outcome of reservation `id`, for a repeated commit. Each session remembers its last
  // kRemembered outcomes.
  std::optional<Code> Outcome(SessionNumber session, std::uint64_t id) const;
  void Remember(SessionNumber session, std::uint64_t id, Code code);

  // Adds a reservation: claims its key, which must be free, and gives it a number that is never
  // reused. The session must exist. The address is valid until End.
  Reservation& Add(Reservation reservation);
  Reservation* Find(std::uint64_t id);
  void End(Reservation& reservation);
  // Notes that the put is committed and waits for the master. It keeps its key until End, and
  // leaves its session.
  void AwaitListing(Reservation& reservation);
  // Returns the space's reservation that has waited longest for the master; null: none. O(1).
  Reservation* OldestWaiting(Spaces::Number space);
  std::uint64_t waiting_bytes(Spaces::Number space) const;
  std::uint64_t waiting() const { return waiting_count_; }
  // Returns some reservation of a session that has ended; null: none is left.
  Reservation* Orphan() { return orphans_.empty() ? nullptr : &orphans_.front(); }

  // Returns the reservation that keeps others from the key at `now_ns`, or null. Drops an expired
  // claim of the key.
  Reservation* ClaimOf(SlotId slot, const segment::PreparedKey& key, std::int64_t now_ns);
  bool OwnsKey(const Reservation& reservation, std::int64_t now_ns) const {
    return reservation.claims && reservation.key_until_ns > now_ns && !Removed(reservation);
  }
  // ---- removals: a reservation that was begun before one is refused when it is committed
  bool Removed(const Reservation& reservation) const;
  void Remove(Reservation& reservation);
  // Removes all reservations of the slot that have begun, by their numbers. O(1).
  void RemoveSlot(SlotId slot) { removed_below_[slot] = next_; }
  // Removes, in one slice, the slot's reservations whose key `matches`: looks at `at_most` from
  // number `cursor` on and moves the cursor. Returns whether any are left.
  template <typename Matches>
  bool RemoveSome(SlotId slot, const Matches& matches, std::uint64_t& cursor, std::size_t at_most) {
    auto at = reservations_.lower_bound(cursor);
    for (; at != reservations_.end() && at_most > 0; ++at, --at_most) {
      ++steps_.reservations;
      if (at->second.slot == slot && matches(at->second.key)) Remove(at->second);
    }
    if (at == reservations_.end()) return false;
    cursor = at->first;
    return true;
  }

  std::size_t size() const { return reservations_.size(); }
  // Return the number of the next reservation, and the least of the present ones, or else the next.
  std::uint64_t next() const { return next_; }
  std::uint64_t oldest() const {
    return reservations_.empty() ? next_ : reservations_.begin()->first;
  }

  void Save(StateWriter& ar);
  // Into a new one, whose sessions are added already.
  void Load(StateReader& ar);
  // All that wait for the master, oldest first.
  std::vector<const Reservation*> Waiters() const;

 private:
  static constexpr std::size_t kRemembered = 4096;
  using SessionList = boost::intrusive::list<
      Reservation,
      boost::intrusive::member_hook<Reservation, Reservation::Hook, &Reservation::of_session>,
      boost::intrusive::constant_time_size<false>>;
  struct Session {
    SessionList reservations;
    std::uint64_t reserved_bytes = 0;
    std::deque<std::uint64_t> finished_order;
    std::unordered_map<std::uint64_t, Code> finished;
  };
  // The reservations of one space that wait for the master, oldest first.
  struct Waiting {
    SessionList reservations;
    std::uint64_t bytes = 0;
  };
  void DropClaim(Reservation& reservation);
  void LeaveSession(Reservation& reservation);

  Steps& steps_;
  std::map<std::uint64_t, Reservation> reservations_;
  SessionList orphans_;
  std::unordered_map<Spaces::Number, Waiting> waiting_;  // no entry without reservations
  std::uint64_t waiting_count_ = 0;
  std::map<SessionNumber, Session> sessions_;
  std::multimap<std::uint64_t, Reservation*> claims_;        // by the hash of the key
  std::unordered_map<SlotId, std::uint64_t> removed_below_;  // see RemoveSlot
  std::uint64_t next_ = 1;
};

}  // namespace kvcove::owner
