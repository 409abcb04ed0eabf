// SPDX-License-Identifier: Apache-2.0
// The authority over one segment's objects, as a state machine: no thread, no socket, no clock of
// its own. The owner's shell, and the simulation, drive it. Needs a lock. docs/owner.md has the
// prose.
//
// The core decides which put may become an object, and ties its parts together:
//   Objects       numbers, index entries, lists by slot
//   Reservations  puts under way, their claims to keys, their sessions
//   Spaces        quotas of namespaces and tenants
//   Room          free memory, eviction, sweeps; with Withdrawn: what is still being read
//   Holds         what sessions mean to load soon
//   Listings      what the master must hear, in a cluster
//
// A reservation:  reserved -> committed | given up | its process proven gone
//                 (its deadline frees only the key; its bytes belong to nobody else until then)
// An object:      visible -> withdrawn -> (no reader protects it) -> its bytes are free
//
// A call costs O(log n) steps for each item that it names, whatever else is here. Calls that walk
// over all objects do so in slices; between two slices the shell lets other callers in.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/core/holds.h"
#include "kvcove/owner/core/listings.h"
#include "kvcove/owner/core/objects.h"
#include "kvcove/owner/core/reservations.h"
#include "kvcove/owner/core/room.h"
#include "kvcove/owner/core/spaces.h"

namespace kvcove::owner {

class Core {
 public:
  // `header`: formatted for these options; `payload`: payload_bytes long. Both outlive this.
  // Errors: kInvalid for an unknown policy.
  static Result<std::unique_ptr<Core>> Open(const CoreOptions& options, segment::HeaderView header,
                                            std::byte* payload, const Clock& clock);

  // A session's `page` and `staging` must stay mapped until EndSession. Null: its process maps no
  // memory here; it stages nothing.
  SessionNumber AddSession(segment::SessionPage* page, std::int32_t pid,
                           const segment::Staging* staging = nullptr);
  // Its process is proven gone, or says that none of its threads touches the segment any more. What
  // it had reserved comes back in slices, here and with each Tick.
  void EndSession(SessionNumber number);

  // Generations first: when this returns, nothing of an older one is found or committed.
  void SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates);
  // What generations had in memory that have ended since the last call.
  struct Voided {
    std::uint64_t resets = 0;  // generations that another one follows
    std::uint64_t objects = 0;
    std::uint64_t bytes = 0;  // that they occupied
    std::string name;         // of the first reset's namespace
  };
  Voided TakeVoided() { return std::exchange(voided_, {}); }
  // Exactly these slots may not be read here: removals from them may be unknown to this owner.
  void SetHidden(std::span<const SlotId> slots);
  // The last removal that is applied. What is put from here on was begun after it.
  void SetApplied(std::uint64_t number) {
    applied_ = number;
    listings_.SetApplied(number);
  }
  std::uint64_t applied() const { return applied_; }
  void RenewLease(std::int64_t deadline_ns);

  // The payload below `bytes` is populated and may be used.
  void AddPayloadBelow(std::uint64_t bytes) { room_.AddPayloadBelow(bytes); }
  std::uint64_t added_bytes() const { return room_.added_bytes(); }

  // ---- puts
  // `evict` false: nothing makes room for it. kLimit: the session or its space has reserved as much
  // as it may. kStale: the token is older than what this owner knows. kUnavailable: see Awaits.
  std::vector<PutResult> Put(SessionNumber session, const Token& token,
                             std::span<const PutItem> items, bool evict = true);
  std::vector<Code> Finish(SessionNumber session, std::span<const FinishItem> items);

  // ---- in a cluster
  // The token may be newer than what this owner knows: the master has told the session, and tells
  // this owner in a moment. Such a put is not stale. It waits for the generation, or goes to
  // another owner; until the generation is published here, nothing is taken under it.
  bool Awaits(const Token& token) const;
  // A session that brings up what the lower tier holds: its puts are not refused as `exists`
  // for that.
  SessionNumber AddPromoter();
  SessionNumber promoter() const { return promoter_; }
  // Evicts the key's object last until `until_ns`; counts against what the session may hold.
  void HoldKey(SessionNumber session, SlotId slot, std::string_view key, std::int64_t until_ns);

  // It was brought up: in a cluster its facts are those of the put that the lower tier knows.
  void NotePromoted(SlotId slot, std::string_view key, std::uint64_t put);
  // The lower tier has it no more. The master forgets it, unless it is here or is being put: then
  // what is listed stands, or takes its place.
  void NoteLost(SlotId slot, std::string_view key);
  // A put of the key is under way.
  bool BeingPut(SlotId slot, std::string_view key) {
    return reservations_.ClaimOf(slot, Prepared(slot, key), clock_.NowNs()) != nullptr;
  }
  // Why nobody may read here under this token, kNone if they may: kReset under an older generation,
  // kLease while the slot is hidden or this owner has not learned of the token's generation yet.
  MissReason Unreadable(const Token& token) const;
  // Nobody may read the slot here: see SetHidden.
  bool Hidden(SlotId slot) const { return slot < kMaxSlots && objects_.slot(slot).hidden; }
  // Empty for an object that is gone.
  std::string KeyOf(ObjectId id, Version version) const {
    return objects_.Has(id, version) ? objects_.KeyOf(id) : std::string();
  }
  SlotId SlotOf(ObjectId id, Version version) const {
    return objects_.Has(id, version) ? static_cast<SlotId>(objects_[id].slot) : SlotId{0};
  }

  // What Put and Finish left for the master since the last call; they answered kOk for it.
  std::vector<Pending> TakePending() { return listings_.TakePending(); }
  // The master's answer: publishes it, or drops it. The put's final outcome.
  Code FinishListing(const Pending& pending, Code listed);
  // How many of them have given way to other puts since the last call. Nobody needs the master's
  // answer for what does not wait any more.
  std::uint64_t TakeGaveWay() { return room_.TakeGaveWay(); }
  // Puts are numbered as they begin: the next one's number, and the least of those under way, or
  // else the next one's. What is whole and is not listed has none: it is over in its call.
  std::uint64_t next_put() const { return reservations_.next(); }
  std::uint64_t oldest_put() const { return reservations_.oldest(); }
  bool Waits(const Pending& pending) { return reservations_.Find(pending.reservation) != nullptr; }
  // What is gone since the last call, for the master to forget, oldest first.
  std::vector<InventoryItem> TakeGone(std::size_t at_most) { return listings_.TakeGone(at_most); }
  // True once more is gone than could be kept: the whole inventory must be told again.
  bool TakeGoneOverflow() { return listings_.TakeGoneOverflow(); }
  // Up to `at_most` objects from `cursor` on (0 at first, kWalkDone at the end). Looks at a bounded
  // number of them, and may find none.
  static constexpr ObjectId kWalkDone = 0xFFFFFFFF;
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) const;
  // What is stored from now on has this version or a later one.
  Version next_version() const { return objects_.next_version(); }
  // Memory has the key's value of now since before that version came.
  bool HasSince(SlotId slot, std::string_view key, Version version) const;
  // Live objects as asked for; bounded in the same way.
  wire::InventoryReply Page(const wire::InventoryRequest& request) const;
  // Another owner has another value of the key.
  void DropObject(ObjectId id, Version version);
  // Lends what is there under `token`'s generation. Each loan with a place must be returned.
  std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys);
  // Nothing for an object that is gone or dead.
  std::optional<CopyLoan> LendForCopy(ObjectId id, Version version);
  // By its key; nothing under another generation than the current one.
  std::optional<CopyLoan> LendForCopy(SlotId slot, Generation generation, std::string_view key);
  void Return(std::span<const Loan> loans);
  void SetChecksum(const Loan& loan, std::uint64_t checksum);

  // ---- removals
  // One walk over the puts that are under way, then over all objects, a slice a call. A put that
  // was begun before the walk ends as removed, wherever the walk has come to meanwhile.
  struct Walk {
    std::uint64_t reservation = 0;
    bool reservations_done = false;
    ObjectId object = 0;
    bool done = false;
  };
  // Returns how many objects this slice removed.
  std::uint64_t RemoveMatching(SlotId slot, std::string_view pattern, Walk& walk);
  // An owner that missed removals keeps nothing of the slot.
  void DropSlot(SlotId slot, Walk& walk);
  Code Remove(SlotId slot, std::string_view key);
  // A removal that was asked for under `generation` is carried out here: not under a later
  // generation, where what it meant is void. Under an earlier one it is: this owner hears of the
  // new generation only later, and must not show meanwhile what is acknowledged as removed.
  bool Means(SlotId slot, Generation generation) const {
    const Generation own = GenerationOf(slot);
    return own != 0 && (own == generation || Follows(own, generation));
  }

  // ---- pins and statistics
  // Remove, Pin and StatObject act on the slot's current generation; the caller's is checked here.
  Code CheckToken(const Token& token) const;
  Code Pin(SlotId slot, std::string_view key, PinKind kind, std::int64_t duration_ns);
  Code Unpin(SlotId slot, std::string_view key);
  std::optional<ObjectStat> StatObject(SlotId slot, std::string_view key) const;
  // One slice a call, of kStatSlice spaces or sessions; true: there is more. The first slice takes
  // all that is one number.
  struct StatWalk {
    bool begun = false;
    std::size_t space = 0;
    SessionNumber session = 0;  // the last one that was looked at
    std::uint64_t ended_pages = 0;
    int rounds = 0;
  };
  static constexpr std::size_t kStatSlice = 128;
  bool StatSome(StatWalk& walk, PoolStat& stat) const;
  // All of it at once.
  PoolStat Stat() const;
  // What a renewal of the lease tells; cheap, whatever is stored here.
  std::uint64_t free_bytes() const { return room_.free_bytes(); }
  wire::RenewRequest Report() const;
  const Id128& incarnation() const { return incarnation_; }
  // 0 for a slot that is free.
  Generation GenerationOf(SlotId slot) const {
    return slot < kMaxSlots ? objects_.slot(slot).generation : 0;
  }
  const Steps& steps() const { return steps_; }

  // What sessions have told so far counts from now on: their hits and holds.
  void DrainEvents();
  // A slice of everything that happens by itself: drains events, ends holds and orphaned
  // reservations, frees what nobody reads any more, sweeps what a reset voided. True when more is
  // left to do.
  bool Tick();

  // For the simulation: no bytes are lost or used twice. Dies with a message if they are.
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

  // Was `later` drawn after `generation`? A number begins with the counter of all raises.
  static bool Follows(Generation generation, Generation later) {
    return (generation >> 24) < (later >> 24);
  }

  segment::PreparedKey Prepared(SlotId slot, std::string_view key) const {
    return {.key = key, .hash = objects_.view().HashKey(slot, key)};
  }
  void TellPoliciesAll();
  void CountVoided(const SlotUpdate& update);
  void StatTotals(PoolStat& stat) const;
  // The key's live entry, or nothing; an entry of a dead generation is withdrawn on the way.
  segment::Found FindLive(SlotId slot, const segment::PreparedKey& key);
  void CountHit(ObjectId id);
  // What a put says of the object that it stored or found.
  void TellPolicy(ObjectId id, const Hints& hints, bool ends_request);
  // The first item that says one counts.
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
    bool waited = false;    // for the master
    bool comes_up = false;  // from the lower tier
    Hints hints;
    bool ends_request = false;
  };
  struct PutMode {
    const segment::Staging* staging = nullptr;
    bool evict = true;
    bool ends_request = false;      // nothing of its request follows in the batch, or later
    std::uint64_t ahead_bytes = 0;  // as Room::Taking has it
  };
  PutResult PutOne(SessionNumber session, const Token& token, const PutItem& item,
                   std::uint64_t hash, const PutMode& mode);
  // Of room that these items take: those that are not here yet.
  std::uint64_t BytesToTake(SlotId slot, std::span<const PutItem> items,
                            std::span<const std::uint64_t> hashes) const;
  // kOk: it may reserve so many bytes more.
  bool MayReserve(SessionNumber session, Spaces::Number space, std::uint64_t bytes) const;
  void Write(std::span<const Extent> extents, std::span<const std::byte> value);
  PutResult Reserve(Reservation reservation, bool whole);
  Code FinishOne(SessionNumber session, const FinishItem& item);
  Code OutcomeOf(Reservation& reservation);
  // Answers for a reservation that is over, and ends it.
  Code Conclude(Reservation& reservation, Code code);
  void AwaitListing(Reservation& reservation);
  Result<ObjectId> Publish(const NewObject& object);
  Code Publish(Reservation& reservation);
  void EndReservation(Reservation& reservation);
  bool EndOrphans(std::uint32_t at_most);

  // ---- what happens by itself
  bool DrainEvents(std::uint32_t at_most);
  std::uint32_t DrainPage(SessionNumber session, segment::SessionPage& page, std::uint32_t at_most);
  void AddHold(SessionNumber session, ObjectId id, Version version, std::int64_t until_ns);
  bool EndHolds(std::uint32_t at_most);

  const CoreOptions options_;
  const Clock& clock_;
  const segment::Payload payload_;
  Counters counters_;
  Steps steps_;
  Objects objects_;
  Spaces spaces_;
  Reservations reservations_;
  Holds holds_;
  Listings listings_;
  Room room_;

  Id128 incarnation_;
  Id128 former_incarnation_;  // the one before it
  Voided voided_;
  std::uint64_t applied_ = 0;
  std::vector<SlotId> hidden_;
  std::map<SessionNumber, Session> sessions_;
  std::uint64_t ended_pages_ = 0;  // sessions with a page that have ended
  SessionNumber next_session_ = 1;
  SessionNumber promoter_ = 0;
  SessionNumber drained_ = 0;  // the last session whose events were looked at
};

}  // namespace kvcove::owner
