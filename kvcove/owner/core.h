// SPDX-License-Identifier: Apache-2.0
// The authority over one segment's objects, as a state machine: no thread, no socket, no clock of
// its own. The owner's shell, and the simulation, drive it. Needs a lock. docs/owner.md has the
// prose.
//
// A reservation:  reserved -> committed | given up | its process proven gone
//                 (its deadline frees only the key; its bytes belong to nobody else until then)
// An object:      visible -> withdrawn -> (no reader protects it) -> its bytes are free
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/policy/id_list.h"
#include "kvcove/policy/policy.h"
#include "kvcove/segment/allocator.h"
#include "kvcove/segment/index.h"
#include "kvcove/segment/reader.h"
#include "kvcove/wire/cluster.h"
#include "kvcove/wire/owner_link.h"
#include "kvcove/wire/tasks.h"

namespace kvcove::owner {

using policy::kNoObject;
using policy::ObjectId;
using segment::Place;
using segment::Version;
using wire::FinishItem;
using wire::ObjectStat;
using wire::PinKind;
using wire::PoolStat;
using wire::PutItem;
using wire::PutResult;
using wire::SessionNumber;

struct Quota {
  std::uint64_t maximum_bytes = ~0ULL;
  std::uint64_t guaranteed_bytes = 0;
};

struct CoreOptions {
  std::uint64_t payload_bytes = 0;
  std::uint64_t max_objects = 0;
  std::string policy = "default";
  std::unordered_map<std::string, Quota> quotas;  // by namespace
  std::int64_t key_deadline_ns = kSecond;         // how long a reservation holds its key
  std::int64_t longest_hold_ns = 60 * kSecond;
  // Several tenants share this memory: what one had is cleared before another gets it.
  bool clear_foreign = false;
  // In a cluster: what is committed becomes visible when the master has listed it, and what goes is
  // told to it.
  bool listed = false;
  segment::Checks checks;
};

// Committed, and waiting for the master to list it.
struct Pending {
  std::uint64_t reservation = 0;
  wire::ListItem item;
};

// An object lent to a transfer: its bytes stay what they are until Return.
struct Loan {
  Code code = Code::kMiss;
  MissReason reason = MissReason::kNone;
  std::uint32_t size_bytes = 0;
  bool has_checksum = false;
  std::uint64_t checksum = 0;
  Place place = 0;  // 0: nothing was lent
  Version version = 0;
  std::vector<Extent> extents;
};

// A loan with what another owner needs to hold the same object.
struct CopyLoan {
  Loan loan;
  Token token;
  std::string key;
  std::uint32_t group = 0;
  std::uint8_t copies = 1;
  bool hard_pinned = false;
};

// An object as the master should know it.
struct InventoryItem {
  wire::ListItem item;
  ObjectId id = kNoObject;
  Version version = 0;
};

struct Counters {
  std::uint64_t puts = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t removals = 0;
  std::uint64_t swept = 0;         // objects of dead generations whose space came back
  std::uint64_t stale_puts = 0;    // rejected: begun before a reset
  std::uint64_t expired_puts = 0;  // reservations whose key went to somebody else
  wire::SessionCounters local;     // of sessions that have ended
};

class Core {
 public:
  // `header`: formatted for these options; `payload`: payload_bytes long. Both outlive this.
  // Errors: kInvalid for an unknown policy.
  static Result<std::unique_ptr<Core>> Open(const CoreOptions& options, segment::HeaderView header,
                                            std::byte* payload, const Clock& clock);

  // A session's `page` must stay mapped until EndSession.
  SessionNumber AddSession(segment::SessionPage* page, std::int32_t pid);
  // Its process is proven gone, or says that none of its threads touches the segment any more.
  void EndSession(SessionNumber number);

  // Generations first: when this returns, nothing of an older one is found or committed.
  void SetSlots(const Id128& incarnation, const std::vector<SlotUpdate>& updates);
  // Exactly these slots may not be read here: removals from them may be unknown to this owner.
  void SetHidden(std::span<const SlotId> slots);
  // The last removal that is applied. What is put from here on was begun after it.
  void SetApplied(std::uint64_t number) { applied_ = number; }
  std::uint64_t applied() const { return applied_; }
  void RenewLease(std::int64_t deadline_ns);

  // The payload below `granules` is populated and may be used.
  void AddPayloadUpTo(std::uint64_t granules);
  std::uint64_t added_granules() const { return added_granules_; }

  // `evict` false: nothing makes room for it.
  std::vector<PutResult> Put(SessionNumber session, const Token& token,
                             std::span<const PutItem> items, bool evict = true);
  std::vector<Code> Finish(SessionNumber session, std::span<const FinishItem> items);

  // ---- in a cluster
  // What Put and Finish left for the master since the last call; they answered kOk for it.
  std::vector<Pending> TakePending();
  // The master's answer: publishes it, or drops it. The put's final outcome.
  Code FinishListing(const Pending& pending, Code listed);
  // What went since the last call, for the master to forget, oldest first.
  std::vector<wire::ListItem> TakeGone(std::size_t at_most);
  // True once more went than could be kept: the whole inventory must be told again.
  bool TakeGoneOverflow();
  // Up to `at_most` objects from `cursor` on (0 at first, kWalkDone at the end).
  std::vector<InventoryItem> Inventory(ObjectId& cursor, std::size_t at_most) const;
  // Live objects as asked for; looks at a bounded number of them, and may find none of those.
  wire::InventoryReply Page(const wire::InventoryRequest& request) const;
  // Another owner has another value of the key.
  void DropObject(ObjectId id, Version version);
  // An owner that missed removals keeps nothing of the slot. One slice of a walk, as
  // RemoveMatching.
  void DropSlot(SlotId slot, std::uint32_t& cursor);
  // Lends what is there under `token`'s generation. Each loan with a place must be returned.
  std::vector<Loan> Lend(const Token& token, std::span<const std::string_view> keys);
  // Nothing for an object that is gone or dead.
  std::optional<CopyLoan> LendForCopy(ObjectId id, Version version);
  void Return(std::span<const Loan> loans);
  void SetChecksum(const Loan& loan, std::uint64_t checksum);

  // These name the generation that they mean; another one than the current one is kStale.
  Code CheckToken(const Token& token) const;
  Code Remove(SlotId slot, std::string_view key);
  // One slice of a linear walk over all objects; `cursor` starts at 0 and ends at kWalkDone.
  static constexpr std::uint32_t kWalkDone = 0xFFFFFFFF;
  std::uint64_t RemoveMatching(SlotId slot, std::string_view pattern, std::uint32_t& cursor);
  Code Pin(SlotId slot, std::string_view key, PinKind kind, std::int64_t duration_ns);
  Code Unpin(SlotId slot, std::string_view key);
  std::optional<ObjectStat> StatObject(SlotId slot, std::string_view key) const;
  PoolStat Stat() const;
  // What a renewal of the lease tells; cheap, whatever is stored here.
  wire::RenewRequest Report() const;
  // A removal that was asked for under `generation` is carried out here: not under a later
  // generation, where what it meant is void. Under an earlier one it is: this owner hears of the
  // new generation only later, and must not show meanwhile what is acknowledged as removed.
  bool Means(SlotId slot, Generation generation) const {
    const Generation own = GenerationOf(slot);
    return own != 0 && (own == generation || (own >> 24) < (generation >> 24));
  }
  // 0 for a slot that is free.
  Generation GenerationOf(SlotId slot) const {
    return slot < kMaxSlots ? slots_[slot].generation : 0;
  }

  // What sessions have told so far counts from now on: their hits and holds.
  void DrainEvents();
  // Drains events, ends what ran out, frees what nobody reads any more, sweeps a slice of what a
  // reset voided. True when there is more to sweep.
  bool Tick();

  // For the simulation: no bytes are lost or used twice. Dies with a message if they are.
  void CheckInvariants() const;

 private:
  struct Object {
    Place place = 0;  // 0 = this number is free
    SlotId slot = 0;
    std::uint8_t held = 0;  // by how many holds, saturating
    bool hard_pinned : 1 = false;
    bool soft_pinned : 1 = false;
  };
  struct Namespace {
    std::string name;
    Quota quota;
    std::unique_ptr<policy::EvictionPolicy> policy;
    std::uint64_t bytes = 0;  // that its objects occupy
  };
  struct SlotState {
    Generation generation = 0;
    std::uint16_t space = 0;  // index of its namespace
    bool named = true;
    bool hidden = false;
    std::uint64_t live = 0;    // objects of the current generation
    std::uint64_t dead = 0;    // objects of older ones, not swept yet
    std::uint64_t voided = 0;  // that the generation before this one had when it ended
  };
  struct Hold {
    ObjectId object;
    Version version;
    std::uint64_t bytes;
    std::int64_t until_ns;
  };
  struct Session {
    segment::SessionPage* page = nullptr;
    std::int32_t pid = 0;
    std::uint64_t reserved_bytes = 0;
    std::uint64_t held_bytes = 0;
    std::deque<Hold> holds;
    std::deque<std::uint64_t> finished_order;
    std::unordered_map<std::uint64_t, Code> finished;  // what a repeated commit answers
  };
  struct Reservation {
    SessionNumber session = 0;
    std::string key;
    std::string after;
    std::uint64_t hash = 0;
    SlotId slot = 0;
    Generation generation = 0;
    std::uint32_t size_bytes = 0;
    std::vector<Extent> extents;
    std::int64_t key_until_ns = 0;
    bool owns_key = true;  // false: it ran out or was removed
    bool removed = false;
    bool freed = false;    // only with the reservation check switched off
    bool listing = false;  // committed; the master's answer is awaited
    bool has_checksum = false;
    std::uint64_t checksum = 0;
    std::uint32_t group = 0;
    std::uint8_t copies = 1;
    std::uint64_t copied_at = 0;
    std::uint64_t removals = 0;  // the last removal that was applied when it began
  };
  // What a cluster keeps of an object.
  struct Listing {
    std::uint64_t checksum = 0;
    std::uint32_t group = 0;
    bool has_checksum = false;
    std::uint8_t copies = 1;
  };
  // Withdrawn, and perhaps still being read.
  struct Withdrawn {
    Place place = 0;
    std::vector<Extent> extents;
  };

  Core(const CoreOptions& options, segment::HeaderView header, std::byte* payload,
       const Clock& clock);

  Namespace& SpaceOf(SlotId slot) { return spaces_[slots_[slot].space]; }
  std::uint16_t FindOrAddSpace(const std::string& name);
  PutResult PutOne(Session& session, SessionNumber number, const Token& token, const PutItem& item,
                   bool evict);
  // The key's live entry, or nothing; an entry of a dead generation is withdrawn on the way.
  segment::Found FindLive(SlotId slot, const segment::PreparedKey& key);
  Reservation* ClaimOf(SlotId slot, const segment::PreparedKey& key);
  void DropClaim(std::uint64_t id, Reservation& reservation);
  Code FinishOne(Session& session, SessionNumber number, const FinishItem& item);
  Code Publish(const Reservation& reservation);
  void AwaitListing(std::uint64_t id, Reservation& reservation);
  wire::ListItem ItemOf(const Reservation& reservation) const;
  void EndReservation(std::uint64_t id);
  void RememberFinished(Session& session, std::uint64_t id, Code code);

  std::vector<Extent> MakeRoom(std::uint64_t size_bytes, std::uint16_t space, bool evict);
  Loan LoanOf(const segment::Found& found);
  // Of what another tenant had, nothing is left in these.
  void ClearForeign(std::span<const Extent> extents, std::uint16_t space);
  bool EvictSome(std::uint64_t bytes, std::uint16_t space);
  std::optional<std::uint16_t> VictimSpace(std::uint16_t asking) const;
  bool Evictable(ObjectId id, bool last_resort) const;
  void Withdraw(ObjectId id, MissReason reason);
  // Frees everything withdrawn that no reader protects.
  void Settle();
  bool Sweep(std::uint32_t budget);
  bool SweepWanted() const { return dead_objects_ > 0 || unnamed_wanted_; }

  void DrainEvents(Session& session);
  void AddHold(Session& session, ObjectId id, Version version, std::int64_t duration_ns);
  void DropHold(Session& session);
  void ExpireHolds(Session& session, std::int64_t now_ns);
  void ExpireKeys(std::int64_t now_ns);
  std::uint64_t OccupiedBytes(Place place) const;
  ObjectId NewObject();

  const CoreOptions options_;
  segment::Index index_;
  std::byte* const payload_;
  const Clock& clock_;
  segment::Allocator allocator_;
  std::uint64_t added_granules_ = 0;
  // By block of the payload: the only space that has used it (+ 1), 0: none, kMixed: several.
  std::vector<std::uint16_t> block_spaces_;

  Id128 incarnation_;
  std::uint64_t applied_ = 0;
  std::vector<SlotId> hidden_;
  std::vector<SlotState> slots_;
  std::vector<Namespace> spaces_;
  policy::ChunkedArray<Object> objects_;
  std::vector<ObjectId> free_objects_;
  ObjectId next_object_ = 0;
  struct SoftPin {
    std::int64_t until_ns;
  };
  std::unordered_map<ObjectId, SoftPin> soft_pins_;
  std::uint64_t hard_pinned_bytes_ = 0;

  std::unordered_map<SessionNumber, Session> sessions_;
  SessionNumber next_session_ = 1;
  std::unordered_map<std::uint64_t, Reservation> reservations_;
  std::unordered_multimap<std::uint64_t, std::uint64_t> claims_;  // key hash -> reservation
  std::uint64_t next_reservation_ = 1;
  std::uint64_t reserved_granules_ = 0;
  Version next_version_ = 1;

  std::vector<Withdrawn> withdrawn_;
  std::vector<Place> protected_;  // scratch
  std::uint64_t dead_objects_ = 0;
  bool unnamed_wanted_ = false;  // room is needed and versions that nobody names have objects
  ObjectId sweep_cursor_ = 0;
  std::uint32_t sweep_left_ = 0;  // of the round over unnamed versions
  Counters counters_;

  // In a cluster only.
  static constexpr std::size_t kMaxGone = 1 << 20;
  policy::ChunkedArray<Listing> listings_;  // by object
  std::vector<Pending> pending_;
  std::deque<wire::ListItem> gone_;
  bool gone_overflow_ = false;
  std::unordered_map<Place, std::uint32_t> lent_;  // to how many transfers
};

// `*` stands for any bytes, `?` for one; everything else for itself.
bool GlobMatches(std::string_view pattern, std::string_view text);
// kInvalid when the pattern is empty, longer than 256 bytes, or has more than 16 stars.
Status CheckPattern(std::string_view pattern);

}  // namespace kvcove::owner
