// SPDX-License-Identifier: Apache-2.0
// Puts that are under way: what each reserves, which key it has claimed, whose it is. No I/O. Needs
// a lock. O(log n) a call, n = reservations, unless it says otherwise.
//
//   Add -> (AwaitListing) -> End
//
// A claim keeps other writers from a key. It ends with its reservation, when a removal takes the
// key, or at its deadline. No queue waits for deadlines: a claim whose time is over counts for
// nothing, and the next writer of its key drops it. The reservation's bytes belong to nobody else
// until End, whatever the time is: its writer may still be copying.
//
// A session that ends leaves its reservations as orphans, which the core ends in slices. What
// waits for the master is the session's no more: nobody writes there, so it is bounded by the room
// that it takes, as objects are, and the oldest of its space may give way.
#pragma once

#include <boost/intrusive/list.hpp>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
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
  bool ends_request = false;  // its batch puts nothing behind it
  std::uint64_t hash = 0;
  SlotId slot = 0;
  Spaces::Number space = 0;
  Generation generation = 0;
  std::uint32_t size_bytes = 0;
  std::uint64_t bytes = 0;  // that its extents have: whole granules
  std::vector<Extent> extents;
  std::int64_t key_until_ns = 0;
  bool claims = false;   // it is in the table of claims
  bool removed = false;  // a removal that began later matched its key
  bool listing = false;  // committed; the master's answer is awaited
  bool has_checksum = false;
  std::uint64_t checksum = 0;
  std::uint32_t group = 0;
  std::uint8_t copies = 1;
  std::uint64_t copied_at = 0;
  std::uint64_t removals = 0;  // the last removal that was applied when it began
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
  bool HasSession(SessionNumber session) const { return sessions_.contains(session); }
  std::uint64_t reserved_bytes(SessionNumber session) const;
  // What a repeated commit answers: the last kRemembered outcomes of a session.
  std::optional<Code> Outcome(SessionNumber session, std::uint64_t id) const;
  void Remember(SessionNumber session, std::uint64_t id, Code code);

  // Claims its key, which must be free, and gives it a number that is never used again. Addresses
  // stay valid until End.
  Reservation& Add(Reservation reservation);
  Reservation* Find(std::uint64_t id);
  void End(Reservation& reservation);
  // It keeps its key until the master has answered, or it gives way.
  void AwaitListing(Reservation& reservation);
  // Of the space: the one that has waited longest; null: none waits. O(1).
  Reservation* OldestWaiting(Spaces::Number space);
  std::uint64_t waiting_bytes(Spaces::Number space) const;
  std::uint64_t waiting() const { return waiting_count_; }
  // Some reservation of a session that has ended.
  Reservation* Orphan() { return orphans_.empty() ? nullptr : &orphans_.front(); }

  // The reservation that keeps others from the key at `now_ns`.
  Reservation* ClaimOf(SlotId slot, const segment::PreparedKey& key, std::int64_t now_ns);
  bool OwnsKey(const Reservation& reservation, std::int64_t now_ns) const {
    return reservation.claims && reservation.key_until_ns > now_ns && !Removed(reservation);
  }
  // ---- removals: a reservation that was begun before one is refused when it is committed
  bool Removed(const Reservation& reservation) const;
  void Remove(Reservation& reservation);
  // All of the slot that have begun. O(1) but for the first removal of a slot.
  void RemoveSlot(SlotId slot) { removed_below_[slot] = next_; }
  // One slice: those of the slot whose key `matches`, of at most `at_most` from number `cursor` on.
  // Returns whether any are left, and moves the cursor.
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
  // The number that the next one gets, and the least of those that are here, or else the next one.
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
  // What waits for the master, oldest first.
  struct Waiting {
    SessionList reservations;
    std::uint64_t bytes = 0;
  };
  void DropClaim(Reservation& reservation);
  void LeaveSession(Reservation& reservation);

  Steps& steps_;
  std::map<std::uint64_t, Reservation> reservations_;
  SessionList orphans_;
  std::unordered_map<Spaces::Number, Waiting> waiting_;  // of spaces where something waits
  std::uint64_t waiting_count_ = 0;
  std::map<SessionNumber, Session> sessions_;
  std::multimap<std::uint64_t, Reservation*> claims_;  // by the hash of the key
  std::unordered_map<SlotId, std::uint64_t> removed_below_;
  std::uint64_t next_ = 1;
};

}  // namespace kvcove::owner
