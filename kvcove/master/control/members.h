// SPDX-License-Identifier: Apache-2.0
// The members of the pool: which owners' memories there are, how long each may be read, what each
// has acknowledged, and which slots each must hide when it comes back. A plain state machine over
// the master's clock; needs a lock. docs/control-plane.md has the prose.
//
// A member:  (stored) absent <-> leased ... -> ended (goodbye, forgotten, away for too long)
//
// A lease says that the owner knows the current generations, and nothing else. A lease that was
// given is waited for by every reset, whatever became of its owner: somebody may still map its
// memory. A removal waits likewise, but an owner without a lease is only barred from showing the
// slot (a barrier), so that its absence delays nobody.
#pragma once

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
#include "kvcove/wire/carry_fields.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::master {

using wire::OwnerNumber;

struct MembersOptions {
  std::int64_t lease_ns = 0;
  // Only acknowledgements prove anything; a lease that ran out proves nothing.
  bool strict = false;
  // An identity ends when its owner was away for so long; with a disk it may come back later.
  std::int64_t member_ttl_ns = 0;
  std::int64_t disk_member_ttl_ns = 0;
  // With more members than that, those without a disk that are away longest end before their time:
  // an owner that starts again and again uses up no numbers.
  std::size_t crowded = wire::kMaxOwners / 4 * 3;
  bool doubt = true;  // false: for simulations, to show that they notice
};

// A member at one time: a number may belong to another one later.
struct MemberRef {
  OwnerNumber number = wire::kNoOwner;
  std::uint64_t serial = 0;
  bool operator==(const MemberRef&) const = default;
};

// What `admin members` shows.
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
  std::optional<std::int64_t> away_ns;  // since it was heard of last, or this master started
  std::uint64_t table = 0;              // acknowledged revision of the generation table
  std::uint64_t removals = 0;           // the last removal that it has applied
  std::vector<std::pair<SlotId, BarrierFact>> barriers;
};

class Members {
 public:
  // `first_epoch`: random, so that no epoch of another master is one of this.
  Members(const MembersOptions& options, std::uint64_t term, std::uint32_t first_epoch)
      : options_(options), term_(term), next_epoch_(first_epoch | 1), doubt_(options.lease_ns) {}

  // What an earlier master knew. Its leases may run until `leases_until_ns`.
  void Load(const StoredState& state, std::uint64_t first_removal, std::int64_t leases_until_ns,
            std::int64_t now_ns);

  // ---- joining
  enum class Admission { kMember, kUnknown, kFresh };
  // Errors: kInvalid; kExists when another process holds a lease under this identity.
  Result<Admission> Admit(const wire::OwnerHello& hello, std::int64_t now_ns) const;
  // For a fresh one, to be stored first. kLimit when there are as many as there can be.
  Result<MemberFact> FactFor(const wire::OwnerHello& hello, std::int64_t unix_s);
  // It could not be stored: its number is free again.
  void Abandon(const MemberFact& fact) {
    at(fact.number) = {.id = {}, .fact = {}, .hello = {}, .last = {}};
  }
  void Add(const Id128& id, const MemberFact& fact, std::uint64_t last_removal,
           std::int64_t now_ns);
  // `overtaken`: another value took the place of one of its, so all must be told again.
  wire::OwnerWelcome Welcome(const wire::OwnerHello& hello, bool overtaken, std::int64_t now_ns);

  // ---- leases
  enum class Renewal {
    kGranted,
    kBehind,     // of generations: it gets the changes
    kTellFirst,  // its inventory must be told before it may be read
    kDoubted,    // its lease ran out, and the store may lack what was proven since: StoreDoubt
    kStranger,   // say hello
  };
  // `overtaken` as for Welcome; it is looked at after `present` was called.
  template <typename Present>
  Renewal Renew(const wire::RenewRequest& request, std::uint64_t table, std::int64_t now_ns,
                Present&& present);
  // Nothing of before counts any more.
  void Believe() { doubt_.Believe(); }
  // Slots that this member must hide: removals from them may be unknown to it.
  std::vector<SlotId> HiddenOf(OwnerNumber number) const;
  // It must drop the slot before anything of it can be listed.
  std::vector<SlotId> DropsOf(OwnerNumber number) const;
  bool Current(OwnerNumber number, std::uint32_t epoch) const;

  // ---- acknowledgements
  void AcknowledgeTable(OwnerNumber number, std::uint32_t epoch, std::uint64_t table);
  // Barriers that are not needed any more, by their keys.
  std::vector<std::string> AcknowledgeRemovals(OwnerNumber number, std::uint32_t epoch,
                                               std::uint64_t removals);
  // Slots that it must drop: what was removed from them under an earlier master is not known any
  // more. The number is to be acknowledged by Dropped; 0: none.
  std::uint64_t TellToDrop(OwnerNumber number, std::vector<SlotId>& slots);
  // Barriers that are not needed any more, by their keys.
  std::vector<std::string> Dropped(OwnerNumber number, std::uint32_t epoch, std::uint64_t drop);

  // ---- proofs
  std::vector<MemberRef> All() const;
  bool Exists(const MemberRef& ref) const;
  bool TableProven(const MemberRef& ref, std::uint64_t table, std::int64_t now_ns) const;
  enum class RemovalProof { kProven, kWaits, kNeedsBarrier };
  RemovalProof ProofOf(const MemberRef& ref, std::uint64_t removal, SlotId slot,
                       std::int64_t now_ns);
  // From here on its renewals name the slot. Nothing when a barrier stands already; else the fact
  // to be stored.
  struct RaisedBarrier {
    std::string key;
    BarrierFact fact;
    std::uint64_t number = 0;  // of this barrier: the slot may get another one meanwhile
  };
  std::optional<RaisedBarrier> RaiseBarrier(const MemberRef& ref, SlotId slot,
                                            std::uint64_t removal);
  void BarrierStored(const MemberRef& ref, SlotId slot, std::uint64_t number, bool stored);
  // A value of this absent member's slot is to give way to another owner's. As RaiseBarrier; until
  // it is told again, or comes back before any did.
  std::optional<RaisedBarrier> RaiseOvertaken(const MemberRef& ref, SlotId slot);
  bool Barred(const MemberRef& ref, SlotId slot) const;
  // Or will be, as far as the store does not refuse.
  bool WillBeBarred(const MemberRef& ref, SlotId slot) const;
  // Numbers below were given to members.
  OwnerNumber numbers() const { return static_cast<OwnerNumber>(members_.size()); }
  // It is told, and nothing of it was overtaken since. The slots whose barriers stood for that only
  // are not hidden any more; `keys`: of these barriers.
  std::vector<SlotId> EndOvertaken(OwnerNumber number, std::vector<std::string>& keys);
  // Its inventory, or what lies on its disk.
  bool Untold(OwnerNumber number) const {
    return !at(number).told || at(number).last.disk_away || AwaitsShards(number);
  }
  // ---- shards (docs/ha.md)
  // Slices began without entries in this revision of the map: owners tell them again. `gave_way`:
  // whether values of an owner's slot did.
  void ShardLost(std::uint64_t revision, const std::function<bool(OwnerNumber, SlotId)>& gave_way);
  // What it has told since does not reach that far.
  bool AwaitsShards(OwnerNumber number) const { return at(number).last.told_map < empty_revision_; }
  std::size_t untold() const;  // how many; looks at all
  bool DiskAway(OwnerNumber number) const { return at(number).last.disk_away; }
  // The slot has another generation: its barriers mean nothing any more. Their keys.
  std::vector<std::string> VoidBarriers(SlotId slot);
  // Every member that exists has applied it.
  std::uint64_t AppliedByAll() const;
  // Every member with a running lease has applied it.
  std::uint64_t AppliedByLeased(std::int64_t now_ns) const;
  bool LeaseRunning(std::int64_t now_ns) const;
  // When the first of the leases ends that their owners still renew; nothing: there is none. An
  // owner that has missed a renewal does not count: nobody can keep its lease from running out.
  std::optional<std::int64_t> FirstLeaseEndNs(std::int64_t now_ns) const;

  // ---- ends
  // The keys of its facts, to be deleted from the store: only then may it End. Until then it is a
  // member that gets nothing, removals wait for it, and its number is nobody else's.
  std::vector<std::string> BeginEnd(OwnerNumber number);
  // They could not be deleted: it may come back.
  void AbandonEnd(const MemberRef& ref);
  // The identity is no member from here on.
  void End(const MemberRef& ref);
  bool Ending(OwnerNumber number) const { return at(number).ending; }
  MemberRef RefOf(OwnerNumber number) const {
    return {.number = number, .serial = at(number).serial};
  }
  std::optional<OwnerNumber> Find(const Id128& id) const;
  // The member that this owner has proven to be over; only one of its host and tenant may be.
  std::optional<OwnerNumber> PredecessorOf(const wire::OwnerHello& hello) const;
  // kDenied while its lease runs.
  Status MayForget(OwnerNumber number, std::int64_t now_ns) const;
  // Or, when there are too many, for longest.
  std::vector<OwnerNumber> AwayForTooLong(std::int64_t now_ns) const;
  // The lease was given back.
  void LeaseReturned(OwnerNumber number);

  // ---- what is shown
  // Drained: it takes nothing new, until its next process says hello. Errors: kInvalid for an owner
  // that is not known.
  Status SetDraining(OwnerNumber number, bool draining);
  bool Draining(OwnerNumber number) const;
  // A member may hold what is not listed yet.
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
  // The only tenant that it serves; empty: all.
  const std::string& TenantOfOwner(OwnerNumber number) const { return at(number).hello.tenant; }
  const Id128& ProcessOf(OwnerNumber number) const { return at(number).hello.process; }
  bool Told(OwnerNumber number) const { return at(number).told; }
  // Its identity outlives its process.
  bool HasDisk(OwnerNumber number) const { return at(number).fact.disk; }
  std::size_t barriers() const;
  std::size_t size() const { return by_id_.size(); }

  // To a successor's process in the same term: to its owners it is the same master.
  template <typename Ar>
  void Carry(Ar& ar) {
    CarryAll(ar, next_epoch_, next_serial_, next_drop_, next_barrier_, members_, by_id_, ended_,
             ended_order_, doubt_);
  }

 private:
  struct Barrier {
    BarrierFact fact;
    std::uint64_t number = 0;  // RaisedBarrier::number
    bool stored = false;
    std::uint64_t covers = 0;  // the last removal that was proven by it, in this term
    std::uint64_t drop = 0;    // of another term: the number that it was told to drop it under
    // A lease that was given before, and so without naming the slot, may run until then.
    std::int64_t unnamed_until_ns = 0;
    bool overtaken = false;  // another value took the place of one of the slot's
  };
  struct Member {
    Id128 id;
    MemberFact fact;
    std::uint64_t serial = 0;  // 0: this number is free
    wire::OwnerHello hello;
    std::uint32_t epoch = 0;  // 0: not heard of in this term
    std::uint32_t first_epoch = 0;
    std::uint32_t told_epoch = 0;
    bool told = false;
    bool tell_first = false;
    bool draining = false;
    bool ending = false;
    std::int64_t lease_until_ns = 0;
    std::int64_t heard_ns = 0;
    std::uint64_t table = 0;
    std::uint64_t removals = 0;
    std::map<SlotId, Barrier> barriers;
    wire::RenewRequest last;
    template <typename Ar>
    void Carry(Ar& ar) {
      CarryAll(ar, id, fact, serial, hello, epoch, first_epoch, told_epoch, told, tell_first,
               draining, ending, lease_until_ns, heard_ns, table, removals, barriers, last);
    }
  };
  Member& at(OwnerNumber number) { return members_[number]; }
  const Member& at(OwnerNumber number) const { return members_[number]; }
  const Member* Get(const MemberRef& ref) const;
  std::uint32_t NextEpoch();
  // How long a lease that is given now runs, as this clock counts it: 1 % more, for drift.
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
  // Identities that have ended in this term; the last ones.
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
  // Others may have stored what it has not told while it was away.
  if (lapsed && !member.told) member.tell_first = member.tell_first || member.lease_until_ns != 0;
  if (request.told && !member.told) {
    member.told = true;
    member.told_epoch = member.epoch;
    member.tell_first = false;
  }
  member.heard_ns = now_ns;
  member.last = request;
  if (!request.partial) member.table = std::max(member.table, request.table);
  const bool overtaken = !present(LeaseFrom(now_ns));
  if (overtaken || member.tell_first) return Renewal::kTellFirst;
  if (request.table < table) return Renewal::kBehind;
  if (doubt_.Holds(request.number, now_ns)) return Renewal::kDoubted;
  member.lease_until_ns = LeaseFrom(now_ns);
  return Renewal::kGranted;
}

}  // namespace kvcove::master
