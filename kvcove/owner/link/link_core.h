// SPDX-License-Identifier: Apache-2.0
// An owner's link to its master, without threads and sockets: each of four lanes has a next call,
// and acts on its answer. `Link` gives each lane a thread and a connection; the simulation drives
// the lanes directly. docs/control-plane.md explains the protocol.
//
//   lease     says hello and renews the lease, nothing else, so that no other call delays a renewal
//   watch     receives generations at once, publishes them, and acknowledges
//   removals  receives removals, applies them, and acknowledges
//   list      reports stored, evicted and moved objects; the whole inventory after a new hello
//
//   epoch 0 --hello--> welcomed --inventory--> reported --hello without resume--> welcomed ...
//
// Where several masters serve shards of the directory, the list lane is that of the leader's shard,
// and each other shard has one more (shard_lanes.h).
//
// Each lane has at most one call under way. An answer has an effect only in the epoch in which its
// call was made (`asked_under_`), so a late answer of an earlier epoch changes nothing.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/owner/link/link_target.h"
#include "kvcove/owner/link/shard_lanes.h"
#include "kvcove/wire/frame.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

struct LinkIdentity {
  Id128 owner;    // names the memory; changes when the master has forgotten it
  Id128 process;  // names this process
  std::string address;
  std::string socket;
  std::string host;
  std::string tenant;
  bool disk = false;  // the identity outlives the process
  // The facts on its disk; unset if it has none, or has followed no master yet.
  std::optional<OwnerFacts> before;
};

// Pause of a lane after an error, and while it has no call to make.
inline constexpr std::int64_t kLanePauseNs = 20 * kMillisecond;
// Limits of a list call, to a single master or to a shard.
inline constexpr std::int64_t kListCallNs = 2 * kSecond;
inline constexpr std::size_t kListPageItems = 4096;
inline constexpr std::size_t kGonePageItems = 16384;

// Thread-safe; each lane is driven by one thread.
class LinkCore {
 public:
  enum class Lane : std::uint8_t { kLease, kWatch, kRemovals, kList };
  static constexpr std::array kLanes = {Lane::kLease, Lane::kWatch, Lane::kRemovals, Lane::kList};

  struct Call {
    wire::Method method = wire::Method::kRenew;
    std::string body;
    std::int64_t timeout_ns = 0;
  };
  // A call; or none: ask again after `wait_ns`, or earlier when there is news for the lane.
  struct Step {
    std::optional<Call> call;
    std::int64_t wait_ns = 0;
    std::uint64_t session = 0;  // in a shard's lane: pass it to AnswerShard
  };

  LinkCore(LinkTarget& target, LinkIdentity identity, std::int64_t renewal_ns, const Clock& clock);

  // Returns the lane's next step.
  Step Next(Lane lane);
  // Acts on the answer to the lane's last call, or on its failure.
  void Answer(Lane lane, const Result<std::string>& reply);
  // The same for each shard of the directory; 0 shards without a map. An empty address: no shard
  // has this number. The first shard is the leader's, whose lane is kList: call NextShard and
  // AnswerShard for the others.
  std::size_t shards() const;
  std::string ShardAddress(std::size_t number) const;
  Step NextShard(std::size_t number) KVCOVE_EXCLUDES(mutex_, route_mutex_);
  void AnswerShard(std::size_t number, std::uint64_t session, const Result<std::string>& reply)
      KVCOVE_EXCLUDES(mutex_, route_mutex_);
  // Notes that the lease's connection is lost: hello is said again over the next one.
  void Disconnected();
  // Returns whether hello has no answer yet. Until then the other lanes, but those of shards, make
  // no calls: so a returning master accepts one connection of each owner, not four, before all
  // owners have their leases.
  bool AwaitsWelcome() const;

  // Returns the call that ends the lease at the master; nothing when no master has welcomed it. No
  // lane runs any more.
  std::optional<Call> Goodbye();

  // The facts that the shell logs when they change.
  struct State {
    std::uint32_t epoch = 0;  // 0: not welcomed yet
    wire::OwnerNumber number = wire::kNoOwner;
    std::uint64_t term = 0;
    bool reported = false;
    std::uint64_t dropped = 0;  // objects that the directory refused and this owner dropped
  };
  State state() const;
  // Returns the term of the master that welcomed this owner last; 0 before the first.
  std::uint64_t term() const;
  const LinkIdentity& identity() const { return identity_; }

  // Lets the next hello name an identity that has ended, and says hello again.
  void NamePredecessor(const Id128& predecessor);
  // Returns the named identity until a master has answered a hello with it. Zero: none.
  Id128 predecessor() const;

  // ---- a successor's process; no lane runs (link_core_carry.cc)
  void Save(StateWriter& ar);
  // Reads what Save wrote into a new object, which says hello as the same owner and in the same
  // epoch, so the master continues with its state of this owner.
  void Load(StateReader& ar);
  // Drops the callbacks of the listings under way: their callers were answered by EndWaits. Shards'
  // entries are not handed over; a new epoch reports everything instead. Nor are open removals.
  void ForgetCallers();
  // Returns the reservations in the List request that has no answer yet.
  std::set<std::uint64_t> Asked() const;

 private:
  template <typename Ar>
  void CarryMembers(Ar& ar) KVCOVE_REQUIRES(mutex_);
  // A List request that has no answer yet: it is repeated unchanged.
  struct Batch {
    std::uint64_t sequence = 0;
    std::string body;
    std::vector<InventoryItem> gone;  // evicted, removed or moved
    std::vector<Listing> listings;
    std::vector<InventoryItem> inventory;
    bool waits = false;  // the walk over the inventory cannot continue yet
    // The walk had passed the whole inventory before, and `gone` has all that moved meanwhile.
    bool last = false;
  };

  Step NextLease() KVCOVE_EXCLUDES(mutex_);
  Step NextList() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  Batch MakeBatch(bool reported, std::uint32_t credit);
  bool ReportsAgain();
  bool Walked(const Batch& batch);
  void Welcomed(const wire::OwnerWelcome& welcome);
  void ForgetIdentity(const wire::OwnerWelcome& welcome);
  void Renewed(const wire::RenewReply& reply);
  void FollowPosition(std::uint32_t asked_under) KVCOVE_EXCLUDES(mutex_);
  void SetLease(std::int64_t deadline_ns) KVCOVE_EXCLUDES(mutex_);
  // `asked_under`: the epoch in which the call was made that the changes answer.
  void Apply(const wire::Changes& changes, std::uint32_t asked_under);
  void ApplyRemovals(const wire::RemovalsPage& page);
  void NoteEndedPatterns() KVCOVE_EXCLUDES(mutex_);
  // Returns how many removals by pattern may be begun now: the target has room for them, and so has
  // a request.
  std::size_t PatternRoom() KVCOVE_EXCLUDES(mutex_);
  // Returns true while the next removal is a pattern for which there is no room.
  bool AwaitsRoom() KVCOVE_EXCLUDES(mutex_);
  wire::RemovalsRequest NextRemovals() KVCOVE_REQUIRES(mutex_);
  // Returns the last removal up to which all are proven here.
  std::uint64_t Acknowledged() const KVCOVE_REQUIRES(mutex_) {
    return open_.empty() ? removals_ : std::min(removals_, open_.begin()->first - 1);
  }
  void Listed(const wire::ListReply& reply);
  void AnswerLease(const Result<std::string>& reply);
  void AnswerList(const Result<std::string>& reply);
  // ---- link_core_shards.cc
  void NoteMap(const std::shared_ptr<const wire::ShardMap>& map) KVCOVE_EXCLUDES(mutex_);
  std::uint64_t MapRevision() const KVCOVE_REQUIRES(mutex_);
  void UseMap() KVCOVE_REQUIRES(route_mutex_) KVCOVE_EXCLUDES(mutex_);
  void Route() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  bool IsReported(const InventoryItem& item) const KVCOVE_REQUIRES(mutex_);
  void NoteReportAgain(std::optional<ObjectId> from) KVCOVE_REQUIRES(mutex_);
  void CheckRounds() KVCOVE_REQUIRES(mutex_);
  bool EndsWalk() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  bool ShardsReported() KVCOVE_REQUIRES(route_mutex_) KVCOVE_EXCLUDES(mutex_);
  std::vector<Listing> EndShards() KVCOVE_REQUIRES(mutex_);
  // Mark the time in which the owner acts on a batch's answers. Begin returns the batch's number.
  // `stale`: an item of the inventory was refused as kStale.
  std::uint64_t BeginCompleting() KVCOVE_REQUIRES(mutex_);
  void EndCompleting(std::uint64_t batch, std::size_t gave_way, bool stale) KVCOVE_EXCLUDES(mutex_);
  // Returns false while another lane completes puts that were answered under an earlier map or
  // epoch. The shard that listed them may have lost its slices, and a walk that passes before the
  // owner shows these objects would leave them unlisted.
  bool MayWalk() const KVCOVE_REQUIRES(mutex_);
  bool Unwelcome() const KVCOVE_REQUIRES(mutex_) { return epoch_ == 0 || hello_wanted_; }
  void SayHelloAgain(bool new_epoch) KVCOVE_REQUIRES(mutex_);
  OwnerFacts Facts() const KVCOVE_REQUIRES(mutex_);

  LinkTarget& target_;
  // Only the lease lane changes these:
  LinkIdentity identity_;  // ForgetIdentity changes `owner`, under `mutex_`
  std::vector<SlotId> hidden_;
  const std::int64_t renewal_ns_;
  const Clock& clock_;

  mutable Mutex mutex_;
  // ---- facts from the master
  bool fresh_ KVCOVE_GUARDED_BY(mutex_) = true;  // the identity was never admitted
  Id128 predecessor_ KVCOVE_GUARDED_BY(mutex_);
  Id128 sent_predecessor_ KVCOVE_GUARDED_BY(mutex_);  // in the hello that is under way
  Id128 pool_ KVCOVE_GUARDED_BY(mutex_);
  Id128 incarnation_ KVCOVE_GUARDED_BY(mutex_);
  wire::Position seen_ KVCOVE_GUARDED_BY(mutex_);
  wire::Position sent_seen_ KVCOVE_GUARDED_BY(mutex_);  // in the hello that is under way
  // The last revision of `seen_` that FollowPosition has passed on, and the time of the next one.
  std::uint64_t followed_revision_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t next_follow_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  wire::OwnerNumber number_ KVCOVE_GUARDED_BY(mutex_) = wire::kNoOwner;
  std::uint32_t epoch_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- lease lane
  bool hello_wanted_ KVCOVE_GUARDED_BY(mutex_) = true;
  bool new_epoch_wanted_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool saying_hello_ KVCOVE_GUARDED_BY(mutex_) = false;  // the call under way is a hello
  std::int64_t sent_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t leased_until_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t lease_wait_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- generations
  std::uint64_t table_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool partial_ KVCOVE_GUARDED_BY(mutex_) = false;  // see wire::WatchRequest
  std::uint64_t naming_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::map<SlotId, SlotUpdate> slots_ KVCOVE_GUARDED_BY(mutex_);
  // ---- removals
  std::uint64_t removals_ KVCOVE_GUARDED_BY(mutex_) = 0;  // all up to it are applied, but `open_`
  // Removals by pattern that are not acknowledged yet, by number: the list lane's round before
  // which they must not be, as acknowledge_at_round_. Nothing: disks are still being walked. Others
  // are acknowledged meanwhile.
  std::map<std::uint64_t, std::optional<std::uint64_t>> open_ KVCOVE_GUARDED_BY(mutex_);
  // The last page began with a removal by pattern for which there was no room.
  bool awaits_room_ KVCOVE_GUARDED_BY(mutex_) = false;
  std::uint64_t dropped_ KVCOVE_GUARDED_BY(mutex_) = 0;  // RemovalsPage::drop_number
  std::vector<wire::RemovalsRequest::Count> matched_ KVCOVE_GUARDED_BY(mutex_);
  // The list lane's round before which removals are not acknowledged: the objects that a pattern
  // removed must be unlisted first.
  std::uint64_t acknowledge_at_round_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- listings
  bool reported_ KVCOVE_GUARDED_BY(mutex_) = false;
  ObjectId cursor_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // Items were refused as kStale: walk again.
  bool stale_reported_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Although reported, the inventory from `again_from_` on is walked once more. Not handed over: a
  // successor begins such a walk anew.
  bool reporting_again_ KVCOVE_GUARDED_BY(mutex_) = false;
  ObjectId again_from_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint32_t credit_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t sequence_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::optional<Batch> batch_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t applied_at_batch_ KVCOVE_GUARDED_BY(mutex_) = 0;  // ListRequest::applied of batch_
  // Batches, also empty ones, that the master has answered and that took all removed keys that were
  // queued.
  std::uint64_t rounds_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t list_wait_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t gave_way_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- shards
  ShardLanes shards_ KVCOVE_GUARDED_BY(mutex_);  // active from the first map with others on
  // Batches whose answers were taken and are being acted on: their numbers, and the restart
  // (ShardLanes::restarts) under which each was taken. See MayWalk and ShardsReported.
  std::map<std::uint64_t, std::uint64_t> completing_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t next_batch_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const wire::ShardMap> next_map_ KVCOVE_GUARDED_BY(mutex_);  // not in use yet
  std::uint64_t lane_session_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the list lane's call under way
  // Map revisions: all was reported under `reported_map_`; the current walk began under
  // `walk_map_`.
  std::uint64_t reported_map_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t walk_map_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t walk_from_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // not before
  // `reporting_again_` concerns the slices that began anew since `reported_map_`.
  bool only_fresh_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Marks of the lanes: reached when all of a walk, or of a round, is answered.
  std::optional<std::vector<std::uint64_t>> walk_end_ KVCOVE_GUARDED_BY(mutex_);
  // The next batch's number when `walk_end_` was reached: lanes may still act on those before it,
  // and note refusals.
  std::optional<std::uint64_t> walk_last_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<std::vector<std::uint64_t>> round_marks_ KVCOVE_GUARDED_BY(mutex_);
  // ---- epochs of the calls under way
  std::array<std::uint32_t, 4> asked_under_ KVCOVE_GUARDED_BY(mutex_) = {};
  std::array<bool, 4> pause_ KVCOVE_GUARDED_BY(mutex_) = {};  // after an error

  // Pages of changes arrive on two lanes; the lock lets them be applied one after the other. Taken
  // before `mutex_` or the owner's lock.
  Mutex apply_mutex_;
  // Held from TakeListings and TakeGone until their items are queued, so that the queues have the
  // owner's order. Taken before `mutex_` or the owner's lock; never with `apply_mutex_`.
  Mutex route_mutex_;
};

}  // namespace kvcove::owner
