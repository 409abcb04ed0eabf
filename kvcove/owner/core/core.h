// SPDX-License-Identifier: Apache-2.0
// The authority over one segment's objects, as a state machine without threads, sockets or a clock
// of its own. The owner's shell and the simulation drive it. Not thread-safe: the caller holds one
// lock for all calls (Memory::mutex). docs/owner.md explains the design.
//
// The core decides which put may become an object, and ties its parts together:
//   Objects       numbers, index entries, lists by slot
//   Reservations  puts under way, their claims to keys, their sessions
//   Spaces        quotas of namespaces and tenants
//   Room          free memory, eviction, sweeps; with Withdrawn: objects that are still being read
//   Holds         objects that sessions are about to load
//   Listings      in a cluster: reports for the master
//   KeyChanges    for KV events, if they are asked for: which keys come and go
//   Asks          which objects are asked for, to estimate what more memory would bring
//
// A reservation:  reserved -> committed | given up | its process proven to have ended
//                 (its deadline frees only the key; its bytes remain reserved until its end)
// An object:      visible -> withdrawn -> (no reader protects it) -> its bytes are free
//
// A call costs O(log n) steps for each item that it names, whatever else is stored. Calls that walk
// over all objects do so in slices; between two slices the shell releases the lock.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/owner/core/asks.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/core/holds.h"
#include "kvcove/owner/core/key_changes.h"
#include "kvcove/owner/core/listings.h"
#include "kvcove/owner/core/objects.h"
#include "kvcove/owner/core/reservations.h"
#include "kvcove/owner/core/room.h"
#include "kvcove/owner/core/spaces.h"

namespace kvcove::owner {

class Core {
 public:
  // Creates a core over `header`, formatted for these options, and `payload`, payload_bytes long.
  // Both outlive the core. Errors: kInvalid for an unknown policy.
  static Result<std::unique_ptr<Core>> Open(const CoreOptions& options, segment::HeaderView header,
                                            std::byte* payload, const Clock& clock);

  // Adds a session of process `pid`. `page` and `staging` must stay mapped until EndSession. Null
  // `page`: the process maps no memory of this owner. Null `staging`: it stages no values.
  SessionNumber AddSession(segment::SessionPage* page, std::int32_t pid,
                           const segment::Staging* staging = nullptr);
  // Ends a session whose process has provably ended, or says that none of its threads touches the
  // segment any more: its reservations' memory may be reused. They end in slices, here and with
  // each Tick.
  void EndSession(SessionNumber number);

  // Sets the slots' generations and names. When this returns, no object of an older generation is
  // found, and no put of one is committed.
  void SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates);
  // Generations that have ended since the last call, and their objects in memory.
  struct Voided {
    std::uint64_t resets = 0;  // generations that another one replaced
    std::uint64_t objects = 0;
    std::uint64_t bytes = 0;  // occupied by `objects`, whole granules
    std::string name;         // namespace of the first reset
  };
  Voided TakeVoided() { return std::exchange(voided_, {}); }
  // Hides exactly these slots from readers: removals from them may be unknown to this owner.
  void SetHidden(std::span<const SlotId> slots);
  // Sets the number of the last removal that is applied. Puts from now on count as begun after it.
  void SetApplied(std::uint64_t number) {
    applied_ = number;
    listings_.SetApplied(number);
  }
  std::uint64_t applied() const { return applied_; }
  void RenewLease(std::int64_t deadline_ns);

  // Lets the payload below `bytes`, which is populated, be used.
  void AddPayloadBelow(std::uint64_t bytes) { room_.AddPayloadBelow(bytes); }
  std::uint64_t added_bytes() const { return room_.added_bytes(); }

  // ---- puts
  // Reserves memory for the items, or stores those that come whole. `evict` false: no object is
  // evicted for them. kLimit: the session or its space has reserved as much as it may. kStale: the
  // token is older than this owner's generation. kUnavailable: see Awaits.
  std::vector<PutResult> Put(SessionNumber session, const Token& token,
                             std::span<const PutItem> items, bool evict = true);
  // Commits reservations or gives them up. A repetition answers as the first time, as long as the
  // session remembers it. kStale: a reset or a removal came meanwhile. kTimeout: another writer may
  // have the key.
  std::vector<Code> Finish(SessionNumber session, std::span<const FinishItem> items);

  // ---- in a cluster
  // Returns whether the token may be newer than this owner's generations: the master informs the
  // session and this owner at the same time. A put under such a token is not stale: it waits for
  // the generation, or the session tries another owner. It is not taken before the generation is
  // published here.
  bool Awaits(const Token& token) const;
  // Adds the session that promotes values of the lower tier. Its puts are not refused as `exists`
  // because that tier has the key.
  SessionNumber AddPromoter();
  SessionNumber promoter() const { return promoter_; }
  // Evicts the key's object last until `until_ns`; counts against the session's hold budget.
  void HoldKey(SessionNumber session, SlotId slot, std::string_view key, std::int64_t until_ns);

  // Notes, in a cluster, that the key's object was promoted: it gets the facts of `put` (PackPut),
  // as the lower tier knew it, and is reported to the master as moved.
  void NotePromoted(SlotId slot, std::string_view key, std::uint64_t put);
  // Notes that the lower tier has lost the key. The master must forget it, unless memory has the
  // key or a put of it is pending: then its listing remains, or the put's replaces it.
  void NoteLost(SlotId slot, std::string_view key);
  // Returns whether a put of the key is pending.
  bool BeingPut(SlotId slot, std::string_view key) {
    return reservations_.ClaimOf(slot, Prepared(slot, key), clock_.NowNs()) != nullptr;
  }
  // Returns why no reader may read here under this token, kNone if it may: kReset under an older
  // generation, kLease while the slot is hidden or the token's generation is not known here yet.
  MissReason Unreadable(const Token& token) const;
  // Returns whether the slot is hidden from readers: see SetHidden.
  bool Hidden(SlotId slot) const { return slot < kMaxSlots && objects_.slot(slot).hidden; }
  // Returns the object's key; empty if it was withdrawn.
  std::string KeyOf(ObjectId id, Version version) const {
    return objects_.Has(id, version) ? objects_.KeyOf(id) : std::string();
  }
  SlotId SlotOf(ObjectId id, Version version) const {
    return objects_.Has(id, version) ? static_cast<SlotId>(objects_[id].slot) : SlotId{0};
  }

  // Returns the commits of Put and Finish, which answered kOk for them, that wait for the master
  // since the last call.
  std::vector<Pending> TakePending() { return listings_.TakePending(); }
  // Acts on the master's answer: publishes the value, or drops it. Returns the put's final outcome.
  Code FinishListing(const Pending& pending, Code listed);
  // Returns how many pending puts were evicted for other puts since the last call. The master's
  // answer for these is not needed any more: see Outbox::Trim.
  std::uint64_t TakeGaveWay() { return room_.TakeGaveWay(); }
  // Puts are numbered as they begin. Return the next one's number, and the least of those under
  // way, or else the next one's. A whole value outside a cluster has none: its put ends in its
  // call.
  std::uint64_t next_put() const { return reservations_.next(); }
  std::uint64_t oldest_put() const { return reservations_.oldest(); }
  bool Waits(const Pending& pending) { return reservations_.Find(pending.reservation) != nullptr; }
  // Returns up to `at_most` objects that were evicted, removed or moved since the last call, oldest
  // first, for the master.
  std::vector<InventoryItem> TakeGone(std::size_t at_most) { return listings_.TakeGone(at_most); }
  // Returns true once if TakeGone has lost some: the whole inventory must be reported again.
  bool TakeGoneOverflow() { return listings_.TakeGoneOverflow(); }
  // Returns up to `at_most` objects from `cursor` on (0 at first, kWalkDone at the end). Looks at a
  // bounded number of them, and may find none.
  static constexpr ObjectId kWalkDone = 0xFFFFFFFF;
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) const;
  // Returns the version of the next object that is stored.
  Version next_version() const { return objects_.next_version(); }
  // Returns whether memory has a current value of the key, stored before `version` was given out.
  bool HasSince(SlotId slot, std::string_view key, Version version) const;
  // Returns the live objects that the request asks for; bounded in the same way as Inventory.
  wire::InventoryReply Page(const wire::InventoryRequest& request) const;
  // Removes an object of whose key another owner has another value.
  void DropObject(ObjectId id, Version version);
  // Lends the keys' objects of the token's generation. Each loan with a place must be returned.
  std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys);
  // Lends one object; nothing if it was withdrawn, its generation has ended or its slot is hidden.
  std::optional<CopyLoan> LendForCopy(ObjectId id, Version version);
  // Lends the key's object; nothing if `generation` is not the current one.
  std::optional<CopyLoan> LendForCopy(SlotId slot, Generation generation, std::string_view key);
  // Ends the loans: their objects' memory may be reused once withdrawn. Counts their hits.
  void Return(std::span<const Loan> loans);
  // Stores the checksum of a lent object, in a cluster. No effect if it was withdrawn meanwhile.
  void SetChecksum(const Loan& loan, std::uint64_t checksum);

  // ---- KV events
  // As KeyChanges::Take. Nothing unless CoreOptions::key_changes_bytes is set.
  void TakeKeyChanges(KeyChanges::Batch& into, bool all) {
    if (key_changes_) key_changes_->Take(into, all);
  }

  // ---- removals
  // One walk over the pending puts, then over all objects, a slice a call. A put that was begun
  // before the walk is refused or removed, whenever it commits.
  struct Walk {
    std::uint64_t reservation = 0;
    bool reservations_done = false;
    ObjectId object = 0;
    bool done = false;
  };
  // Removes matching objects, one slice. Returns how many, without those that the lower tier has,
  // too: its own walk counts them.
  std::uint64_t RemoveMatching(SlotId slot, std::string_view pattern, Walk& walk);
  // Removes all of the slot, one slice: this owner may have missed removals from it.
  void DropSlot(SlotId slot, Walk& walk);
  // Removes the key's object and refuses a pending put of it. kMiss: there was neither.
  Code Remove(SlotId slot, std::string_view key);
  // Returns whether a removal that was requested under `generation` applies here. It does not under
  // a later generation, which has voided the objects that it meant. It does under an earlier one:
  // this owner learns of the new generation only later, and must not show removed objects
  // meanwhile.
  bool Means(SlotId slot, Generation generation) const {
    const Generation own = GenerationOf(slot);
    return own != 0 && (own == generation || Follows(own, generation));
  }

  // ---- pins and statistics
  // Returns kOk if the token's generation is current, else kStale. Remove, Pin and StatObject act
  // on the current generation, so their callers check the token first, in the same hold.
  Code CheckToken(const Token& token) const;
  // Pins the key's object. `duration_ns` of a hard pin: 0 for one without an end; one that has an
  // end is ended by Tick. Errors: kMiss; kLimit when the space has no room for more hard pins.
  Code Pin(SlotId slot, std::string_view key, PinKind kind, std::int64_t duration_ns);
  Code Unpin(SlotId slot, std::string_view key);
  std::optional<ObjectStat> StatObject(SlotId slot, std::string_view key) const;
  // Adds one slice of kStatSlice spaces or sessions to `stat`; true: more are left. The first slice
  // also sets the totals.
  struct StatWalk {
    bool begun = false;
    std::size_t space = 0;
    SessionNumber session = 0;  // the last one in `stat`
    std::uint64_t ended_pages = 0;
    int rounds = 0;
  };
  static constexpr std::size_t kStatSlice = 128;
  bool StatSome(StatWalk& walk, PoolStat& stat) const;
  // Returns all statistics at once.
  PoolStat Stat() const;
  std::uint64_t free_bytes() const { return room_.free_bytes(); }
  // Returns the bytes that the slot's values of its current generation occupy.
  std::uint64_t BytesOf(SlotId slot) const { return objects_.slot(slot).current_bytes; }
  // Returns the statistics for a renewal of the lease. O(1).
  wire::RenewRequest Report() const;
  const Id128& incarnation() const { return incarnation_; }
  // Returns the slot's generation; 0 if the slot is free or invalid.
  Generation GenerationOf(SlotId slot) const {
    return slot < kMaxSlots ? objects_.slot(slot).generation : 0;
  }
  const Steps& steps() const { return steps_; }
  // Which objects are asked for: the shell takes it from time to time, and estimates.
  Asks& asks() { return asks_; }

  // Takes the hits and holds that sessions have put into their rings so far.
  void DrainEvents();
  // Does one slice of the background work: drains events, ends holds, pins and orphaned
  // reservations, frees withdrawn objects that no reader protects, sweeps objects of dead
  // generations. True when more is left to do.
  bool Tick();
  // Returns whether Tick, which has left nothing to do, has nothing to do before the next call of
  // this core: no session may have written events into its page, and no hard pin ends by time.
  bool MayRest() const { return sessions_.empty() && room_.timed_pins().none(); }

  // For the simulation: aborts with a message if bytes are lost or used twice.
  void CheckInvariants() const;

  // ---- a successor's process (core_carry.cc)
  // What is not in the header file: `ar`, and `policies` with what policies know. Nothing may be
  // lent. The sessions' pages go separately.
  void Save(StateWriter& ar, StateWriter& policies);
  struct SessionMemory {
    segment::SessionPage* page = nullptr;
    const segment::Staging* staging = nullptr;
  };
  // Into a new core over the same memory. `pages`: of the sessions that have one. Returns whether
  // the policies' knowledge was kept; without it each object counts as put just now.
  // Errors: kIncompatible, kCorrupt. The core is of no use then.
  Result<bool> Load(StateReader& ar, StateReader& policies,
                    const std::map<SessionNumber, SessionMemory>& pages);
  bool lent() const { return room_.withdrawn().lent(); }

 private:
  struct Session {
    segment::SessionPage* page = nullptr;
    std::int32_t pid = 0;
    const segment::Staging* staging = nullptr;
  };

  Core(const CoreOptions& options, segment::HeaderView header, std::byte* payload,
       const Clock& clock);

  // Returns whether `later` was drawn after `generation`: the high 40 bits count all raises, the
  // low 24 are random.
  static bool Follows(Generation generation, Generation later) {
    return (generation >> 24) < (later >> 24);
  }

  segment::PreparedKey Prepared(SlotId slot, std::string_view key) const {
    return {.key = key, .hash = objects_.view().HashKey(slot, key)};
  }
  void TellPoliciesAll();
  void TellSlotsAll();
  void CountVoided(const SlotUpdate& update);
  void StatTotals(PoolStat& stat) const;
  // Returns the key's live entry, or nothing. Withdraws an entry of a dead generation.
  segment::Found FindLive(SlotId slot, const segment::PreparedKey& key);
  // `asked`: it was read; else it was put again.
  void CountHit(ObjectId id, bool asked);
  // Passes a put's hints for the object that it stored or found to the policy.
  void TellPolicy(ObjectId id, const Hints& hints, bool ends_request);
  // Sets the space's priority from the first item that has one.
  void HearPriority(Spaces::Number space, std::span<const PutItem> items);
  Loan LoanOf(const segment::Found& found);
  std::optional<CopyLoan> CopyLoanOf(SlotId slot, const segment::Found& found);
  void Withdraw(ObjectId id, MissReason reason);

  // ---- puts (core_puts.cc)
  struct NewObject {
    segment::PreparedKey key;
    std::string_view after;
    SlotId slot = 0;
    Spaces::Number space = 0;
    Generation generation = 0;
    std::uint32_t size_bytes = 0;
    std::span<const Extent> extents;
    bool waited = false;    // it waited for the master, so it counts as an object already
    bool comes_up = false;  // promoted from the lower tier
    Hints hints;
    bool ends_request = false;
  };
  struct PutMode {
    const segment::Staging* staging = nullptr;
    bool evict = true;
    bool ends_request = false;      // no item of its request follows, in the batch or later
    std::uint64_t ahead_bytes = 0;  // as in Room::Taking
  };
  PutResult PutOne(SessionNumber session, const Token& token, const PutItem& item,
                   std::uint64_t hash, const PutMode& mode);
  // Returns the bytes of room that these items take, without those that memory has already.
  std::uint64_t BytesToTake(SlotId slot, std::span<const PutItem> items,
                            std::span<const std::uint64_t> hashes) const;
  // Returns whether the session may reserve so many bytes more.
  bool MayReserve(SessionNumber session, Spaces::Number space, std::uint64_t bytes) const;
  void Write(std::span<const Extent> extents, std::span<const std::byte> value);
  PutResult Reserve(Reservation reservation, bool whole);
  Code FinishOne(SessionNumber session, const FinishItem& item);
  Code OutcomeOf(Reservation& reservation);
  // Remembers the outcome, for a repeated commit, and ends the reservation. Returns `code`.
  Code Conclude(Reservation& reservation, Code code);
  void AwaitListing(Reservation& reservation);
  Result<ObjectId> Publish(const NewObject& object);
  Code Publish(Reservation& reservation);
  void EndReservation(Reservation& reservation);
  bool EndOrphans(std::uint32_t at_most);

  // ---- background work
  bool DrainEvents(std::uint32_t at_most);
  std::uint32_t DrainPage(SessionNumber session, segment::SessionPage& page, std::uint32_t at_most);
  void AddHold(SessionNumber session, ObjectId id, Version version, std::int64_t until_ns);
  bool EndHolds(std::uint32_t at_most);

  const CoreOptions options_;
  const Clock& clock_;
  const segment::Payload payload_;
  Counters counters_;
  // Stays out of Counters, whose layout an upgrade carries between builds (Core::Save): each
  // process counts from zero.
  std::uint64_t hit_bytes_ = 0;
  Steps steps_;
  Objects objects_;
  Spaces spaces_;
  Reservations reservations_;
  Holds holds_;
  Listings listings_;
  std::optional<KeyChanges> key_changes_;
  Asks asks_;
  Room room_;

  Id128 incarnation_;
  Id128 former_incarnation_;  // the one before `incarnation_`
  Voided voided_;
  std::uint64_t applied_ = 0;
  std::vector<SlotId> hidden_;
  std::map<SessionNumber, Session> sessions_;
  std::uint64_t ended_pages_ = 0;  // sessions with a page that have ended
  SessionNumber next_session_ = 1;
  SessionNumber promoter_ = 0;
  SessionNumber drained_ = 0;  // the last session whose ring was drained
};

}  // namespace kvcove::owner
