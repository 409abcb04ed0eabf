// SPDX-License-Identifier: Apache-2.0
// The members of the pool, each the memory of one owner: how long it may be read, which revisions
// and removals its owner has acknowledged, and which slots the owner must hide when it returns. A
// plain state machine over the master's clock; needs a lock. See docs/control-plane.md.
//
// A member:  (stored) absent <-> leased ... -> ended (goodbye, forgotten, away for too long)
//
// A lease says that the owner knows the current generations, and nothing else. Every reset waits
// for each lease that was given, even if its owner has died: a reader may still map its memory. A
// removal waits for leases, too; an owner without a lease is only barred from showing the slot (a
// barrier), so that its absence delays no removal.
//
// Openings. An owner with disks draws a number for each of its processes, another one at its clean
// end, and one now and then in between. A hello that does not name the stored number is one of a
// data directory that was put back from a copy: its disks may hold removed values, so that owner
// joins anew. The number is written in this order, and a crash at any point leaves a known owner:
//
//   draw N+1 --> the directory has N+1, and N --> the store has N+1 --> the disks are used
//   stored:      N                                N+1
//
// A copy from before the second step has no N+1. One from after it is as new as the present number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvcove/master/control/store_doubt.h"
#include "kvcove/master/store/facts.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::master {

using wire::OwnerNumber;

struct MembersOptions {
  std::int64_t lease_ns = 0;
  // True: only acknowledgements prove anything; a lease that ran out proves nothing.
  bool strict = false;
  // An identity ends when its owner was away for this long; 0: never. An owner with a disk may
  // return later.
  std::int64_t member_ttl_ns = 0;
  std::int64_t disk_member_ttl_ns = 0;
  // With more members than this, those without a disk that are away for longest end early: an owner
  // that starts again and again uses up no numbers.
  std::size_t crowded = wire::kMaxOwners / 4 * 3;
  bool doubt = true;  // false: for simulations, to show that they notice
};

// A member at one time. The number may belong to another member later, the serial never does.
struct MemberRef {
  OwnerNumber number = wire::kNoOwner;
  std::uint64_t serial = 0;
  bool operator==(const MemberRef&) const = default;
};

// A member as `kvcove admin members` shows it.
struct MemberDescription {
  Id128 id;
  OwnerNumber number = wire::kNoOwner;
  std::string address;
  std::string host;
  std::string tenant;
  std::int64_t joined_s = 0;
  bool disk = false;
  bool leased = false;
  bool told = false;
  std::optional<std::int64_t> away_ns;  // since its last call, or since this master started
  std::uint64_t table = 0;              // acknowledged revision of the generation table
  std::uint64_t removals = 0;           // the last removal that the owner has applied
  std::vector<std::pair<SlotId, BarrierFact>> barriers;
};

class Members {
 public:
  // Begins epochs at `first_epoch`, a random value, so that two masters share none.
  Members(const MembersOptions& options, std::uint64_t term, std::uint32_t first_epoch)
      : options_(options), term_(term), next_epoch_(first_epoch | 1), doubt_(options.lease_ns) {}

  // Loads the members of an earlier master. Their leases may run until `leases_until_ns`.
  void Load(const StoredState& state, std::uint64_t first_removal, std::int64_t leases_until_ns,
            std::int64_t now_ns);

  // ---- joining
  enum class Admission { kMember, kUnknown, kFresh };
  // Says how to answer a hello. kUnknown, also of a member: another process brings disks that are
  // void. Errors: kInvalid; kStale while the member ends, or an opening of its last process is
  // being stored; kDenied for an identity of another tenant; kExists when another process holds a
  // lease under this identity.
  Result<Admission> Admit(const wire::OwnerHello& hello, std::int64_t now_ns) const;
  // Reserves a number for a fresh identity and returns its fact, to be stored before Add. Errors:
  // kLimit when all numbers are in use.
  Result<MemberFact> FactFor(const wire::OwnerHello& hello, std::int64_t unix_s);
  // Frees the number of a fact that could not be stored.
  void Abandon(const MemberFact& fact) {
    at(fact.number) = {.id = {}, .fact = {}, .hello = {}, .last = {}};
  }
  void Add(const Id128& id, const MemberFact& fact, std::uint64_t last_removal,
           std::int64_t now_ns);
  // Welcomes the owner of a member. `overtaken`: another value has replaced one of the owner's, so
  // the owner must list all of its inventory again.
  wire::OwnerWelcome Welcome(const wire::OwnerHello& hello, bool overtaken, std::int64_t now_ns);

  // ---- leases
  enum class Renewal {
    kGranted,
    kBehind,     // the owner lacks generations, and gets them with the answer
    kTellFirst,  // the owner must list its inventory before its memory may be read
    kDoubted,    // the lease ran out, and the store may lack later proofs: StoreDoubt
    kStranger,   // the owner must say hello
  };
  // Renews a lease. Calls `present` with the time until which the owner counts as present;
  // `present` publishes that first, then returns false if the owner was overtaken (Standings).
  template <typename Present>
  Renewal Renew(const wire::RenewRequest& request, std::uint64_t table, std::int64_t now_ns,
                Present&& present);
  // Ends the doubt about the store: a new incarnation has begun.
  void Believe() { doubt_.Believe(); }
  // Returns the slots that this member must hide: its owner may not know removals from them.
  std::vector<SlotId> HiddenOf(OwnerNumber number) const;
  // Returns the slots that the owner must drop before it can list anything in them.
  std::vector<SlotId> DropsOf(OwnerNumber number) const;
  bool Current(OwnerNumber number, std::uint32_t epoch) const;

  // ---- openings of an owner with disks
  // Returns true if this hello of a member names another opening than the stored one.
  bool RolledBack(const wire::OwnerHello& hello) const;
  // Returns the stored opening; zero: none.
  const Id128& OpeningOf(OwnerNumber number) const { return at(number).opening; }
  // Returns the fact to be stored, for OpeningStored; nothing if there is nothing new, or an
  // earlier one is being stored.
  std::optional<OpeningFact> AskOpening(OwnerNumber number, const Id128& opening);
  void OpeningStored(const MemberRef& ref, bool stored);

  // ---- acknowledgements
  void AcknowledgeTable(OwnerNumber number, std::uint32_t epoch, std::uint64_t table);
  // Notes the last removal that the owner has applied. Returns the keys of barriers that are not
  // needed any more.
  std::vector<std::string> AcknowledgeRemovals(OwnerNumber number, std::uint32_t epoch,
                                               std::uint64_t removals);
  // Notes that the owner has applied more: all removals up to the request's `ahead`, except for
  // those in `open` and of slots in `dropping`. Proves these, and nothing else: after a restart the
  // owner asks for all that AcknowledgeRemovals did not note.
  void ApplyAhead(const wire::RemovalsRequest& request);
  // Erases slots whose removals are not all known any more from those that a page is to name, if
  // the owner is dropping them and their floor is the one that it was told: page after page names
  // them until the owner has read up to that floor.
  void TellFloors(OwnerNumber number, std::vector<SlotId>& slots,
                  const std::function<std::uint64_t(SlotId)>& floor_of);
  // Adds the slots that the owner must drop, because this master does not know the removals that an
  // earlier one proved there, but for those that the owner is dropping under an earlier number.
  // Returns a number that Dropped acknowledges; 0: there are none.
  std::uint64_t TellToDrop(OwnerNumber number, std::vector<SlotId>& slots);
  // Ends the barriers of the slots that TellToDrop named under `drop`. Returns the slots that have
  // none any more, and adds their barriers' keys.
  std::vector<SlotId> Dropped(OwnerNumber number, std::uint32_t epoch, std::uint64_t drop,
                              std::vector<std::string>& keys);

  // ---- proofs
  std::vector<MemberRef> All() const;
  bool Exists(const MemberRef& ref) const;
  bool TableProven(const MemberRef& ref, std::uint64_t table, std::int64_t now_ns) const;
  enum class RemovalProof { kProven, kWaits, kNeedsBarrier };
  RemovalProof ProofOf(const MemberRef& ref, std::uint64_t removal, SlotId slot,
                       std::int64_t now_ns);
  // Raises a barrier: from here on, answers to the member's renewals name the slot. Returns the
  // fact to be stored; nothing when the slot has a barrier already, or the member has ended.
  struct RaisedBarrier {
    std::string key;
    BarrierFact fact;
    std::uint64_t number = 0;  // distinguishes this barrier from a later one of the same slot
  };
  std::optional<RaisedBarrier> RaiseBarrier(const MemberRef& ref, SlotId slot,
                                            std::uint64_t removal);
  void BarrierStored(const MemberRef& ref, SlotId slot, std::uint64_t number, bool stored);
  // Raises a barrier, as RaiseBarrier does, so that values of this absent member may be replaced by
  // another owner's. The barrier remains until EndOvertaken, or until the slot is dropped or
  // voided.
  std::optional<RaisedBarrier> RaiseOvertaken(const MemberRef& ref, SlotId slot);
  // Returns true if a barrier of RaiseOvertaken is stored, or the member has ended.
  bool Barred(const MemberRef& ref, SlotId slot) const;
  // Returns true if Barred is true, or will be unless the store refuses.
  bool WillBeBarred(const MemberRef& ref, SlotId slot) const;
  // Returns the end of the numbers that members may have.
  OwnerNumber numbers() const { return static_cast<OwnerNumber>(members_.size()); }
  // Ends the RaiseOvertaken barriers of a member that has listed its inventory and was not
  // overtaken since. Returns their slots. Adds to `keys` the barriers that no removal needs either.
  std::vector<SlotId> EndOvertaken(OwnerNumber number, std::vector<std::string>& keys);
  // Returns true while part of the inventory is not listed: of its memory, its disk, or at a shard.
  bool Untold(OwnerNumber number) const {
    return !at(number).told || at(number).last.disk_away || AwaitsShards(number);
  }
  // ---- shards (docs/ha.md)
  // Notes that slices began without entries in this revision of the map, so owners must list them
  // again. `gave_way`: returns true if values of an owner's slot were replaced.
  void ShardLost(std::uint64_t revision, const std::function<bool(OwnerNumber, SlotId)>& gave_way);
  // Returns true while the owner has not listed again under that map.
  bool AwaitsShards(OwnerNumber number) const { return at(number).last.told_map < empty_revision_; }
  std::size_t untold() const;  // number of members with Untold; visits all
  bool DiskAway(OwnerNumber number) const { return at(number).last.disk_away; }
  // Removes all barriers of a slot that has another generation. Returns their keys.
  std::vector<std::string> VoidBarriers(SlotId slot);
  // Returns the last removal that every member has applied; ~0: there is no member.
  std::uint64_t AppliedByAll() const;
  // Returns the same for members with a running lease.
  std::uint64_t AppliedByLeased(std::int64_t now_ns) const;
  // Returns true if no owner with disks and a running lease has yet to apply this removal.
  bool AppliedToDisks(std::uint64_t removal, std::int64_t now_ns) const;
  bool LeaseRunning(std::int64_t now_ns) const;

  // ---- ends
  // Begins the end of a member. Returns the keys of its facts; the caller deletes them from the
  // store before End. Until then the member gets no lease, removals wait for it, and its number
  // stays in use.
  std::vector<std::string> BeginEnd(OwnerNumber number);
  // Cancels an end whose facts could not be deleted: the owner may return.
  void AbandonEnd(const MemberRef& ref);
  // Removes the member, and remembers its identity so that a late first hello does not revive it.
  void End(const MemberRef& ref);
  bool Ending(OwnerNumber number) const { return at(number).ending; }
  MemberRef RefOf(OwnerNumber number) const {
    return {.number = number, .serial = at(number).serial};
  }
  std::optional<OwnerNumber> Find(const Id128& id) const;
  // Returns the member that this owner has proven to be over; nothing if that is not of the owner's
  // host and tenant.
  std::optional<OwnerNumber> PredecessorOf(const wire::OwnerHello& hello) const;
  // Returns kDenied while the member's lease runs, kInvalid if there is no such member.
  Status MayForget(OwnerNumber number, std::int64_t now_ns) const;
  // Returns members whose time is over and, when there are too many, those that are away longest.
  std::vector<OwnerNumber> AwayForTooLong(std::int64_t now_ns) const;
  // Ends a lease that its owner has given back.
  void LeaseReturned(OwnerNumber number);

  // ---- for operators and look-ups
  // Starts or stops draining: a draining owner takes no new objects, until its next process says
  // hello. Errors: kInvalid for an unknown owner.
  Status SetDraining(OwnerNumber number, bool draining);
  bool Draining(OwnerNumber number) const;
  // Returns true if a member that called lately may hold objects that are not listed yet.
  bool Warming(std::int64_t now_ns) const;
  std::vector<wire::OwnerStat> Stat(std::int64_t now_ns) const;
  std::vector<MemberDescription> Describe(std::int64_t now_ns) const;
  struct Epochs {
    std::uint32_t epoch = 0;
    std::uint32_t first_epoch = 0;
    std::uint32_t told_epoch = 0;
    bool tells_first = false;
  };
  Epochs EpochsOf(OwnerNumber number) const;
  // Returns the only tenant that the owner serves; empty: all.
  const std::string& TenantOfOwner(OwnerNumber number) const { return at(number).hello.tenant; }
  const Id128& ProcessOf(OwnerNumber number) const { return at(number).hello.process; }
  bool Told(OwnerNumber number) const { return at(number).told; }
  // Returns true if the owner has a disk, so that its identity outlives its process.
  bool HasDisk(OwnerNumber number) const { return at(number).fact.disk; }
  // Returns the fact of a member whose disks are void: its identity ends with its process.
  MemberFact WithoutDisk(OwnerNumber number) const;
  // Notes that WithoutDisk is stored.
  void SetDisksVoid(const MemberRef& ref);
  const Id128& IdOf(OwnerNumber number) const { return at(number).id; }
  std::size_t barriers() const;
  std::size_t size() const { return by_id_.size(); }

 private:
  struct Barrier {
    BarrierFact fact;
    std::uint64_t number = 0;  // RaisedBarrier::number
    bool stored = false;
    std::uint64_t covers = 0;  // the last removal that this barrier proved, in this term
    std::uint64_t drop = 0;    // TellToDrop's number, for a barrier of another term
    // A lease from before the barrier, whose grant did not name the slot, may run until then.
    std::int64_t unnamed_until_ns = 0;
    bool overtaken = false;  // raised, also, so that values of the slot may be replaced
  };
  struct Member {
    Id128 id;
    MemberFact fact;
    std::uint64_t serial = 0;  // 0: this number is free
    wire::OwnerHello hello;
    std::uint32_t epoch = 0;  // 0: no hello in this term, or it is ending
    std::uint32_t first_epoch = 0;
    std::uint32_t told_epoch = 0;
    bool told = false;
    bool tell_first = false;
    bool draining = false;
    bool ending = false;
    std::int64_t lease_until_ns = 0;
    std::int64_t heard_ns = 0;
    std::uint64_t table = 0;
    std::uint64_t removals = 0;       // all up to it are applied
    std::uint64_t ahead = 0;          // all up to it are applied but for `open`; see ApplyAhead
    std::vector<std::uint64_t> open;  // by pattern: disks are being walked
    std::vector<SlotId> dropping;     // disks are being walked for these; sorted
    std::map<SlotId, std::uint64_t> floors;  // that the owner was told, of slots
    bool Applied(std::uint64_t removal) const {
      return removal <= removals ||
             (removal <= ahead && std::ranges::find(open, removal) == open.end());
    }
    bool Drops(SlotId slot) const { return std::ranges::binary_search(dropping, slot); }
    bool Applied(std::uint64_t removal, SlotId slot) const {
      return removal <= removals || (Applied(removal) && !Drops(slot));
    }
    std::map<SlotId, Barrier> barriers;
    wire::RenewRequest last;
    Id128 opening;
    Id128 asked_opening;  // is being stored; zero: none
  };
  Member& at(OwnerNumber number) { return members_[number]; }
  const Member& at(OwnerNumber number) const { return members_[number]; }
  const Member* Get(const MemberRef& ref) const;
  std::uint32_t NextEpoch();
  // Returns when a lease that is given now ends by this clock: 1 % later, because clocks drift.
  std::int64_t LeaseFrom(std::int64_t now_ns) const {
    return now_ns + options_.lease_ns / 100 * 101;
  }

  const MembersOptions options_;
  const std::uint64_t term_;
  std::uint32_t next_epoch_;
  std::uint64_t next_serial_ = 1;
  std::uint64_t next_drop_ = 1;
  std::uint64_t next_barrier_ = 1;
  std::uint64_t empty_revision_ = 0;
  std::vector<Member> members_;
  std::map<Id128, OwnerNumber> by_id_;
  // The latest identities that have ended in this term, at most 65,536.
  std::set<Id128> ended_;
  std::deque<Id128> ended_order_;
  StoreDoubt doubt_;
};

template <typename Present>
Members::Renewal Members::Renew(const wire::RenewRequest& request, std::uint64_t table,
                                std::int64_t now_ns, Present&& present) {
  if (!Current(request.number, request.epoch)) return Renewal::kStranger;
  Member& member = at(request.number);
  const bool lapsed = member.lease_until_ns <= now_ns;
  if (request.leased) doubt_.Vouched(request.number);
  // Other owners may have stored keys of the unlisted inventory while this owner was away.
  if (lapsed && !member.told) member.tell_first = member.tell_first || member.lease_until_ns != 0;
  if (request.told && !member.told) {
    member.told = true;
    member.told_epoch = member.epoch;
    member.tell_first = false;
  }
  member.heard_ns = now_ns;
  member.last = request;
  // A page that is not the last acknowledges nothing: a slot that was raised again since is only in
  // a later page, so its earlier change is missing here.
  if (!request.partial) member.table = std::max(member.table, request.table);
  const bool overtaken = !present(LeaseFrom(now_ns));
  if (overtaken || member.tell_first) return Renewal::kTellFirst;
  // An owner with older generations would show readers objects that a proven reset has voided.
  if (request.table < table) return Renewal::kBehind;
  if (doubt_.Holds(request.number, now_ns)) return Renewal::kDoubted;
  member.lease_until_ns = LeaseFrom(now_ns);
  return Renewal::kGranted;
}

}  // namespace kvcove::master
