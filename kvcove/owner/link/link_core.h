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
// The lanes' state is in parts without a lock of their own, each with its rules and its tests:
// Membership, GenerationTable, RemovalProgress, InventoryReport, ListRounds, AnsweredBatches and
// ShardLanes. LinkCore has the locks, the order of the calls of its target, and the lanes.
//
// Each lane has at most one call under way. An answer has an effect only in the epoch in which its
// call was made (`asked_under_`), so a late answer of an earlier epoch changes nothing.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/owner/link/generation_table.h"
#include "kvcove/owner/link/inventory_report.h"
#include "kvcove/owner/link/link_target.h"
#include "kvcove/owner/link/list_progress.h"
#include "kvcove/owner/link/membership.h"
#include "kvcove/owner/link/removal_progress.h"
#include "kvcove/owner/link/shard_lanes.h"
#include "kvcove/wire/frame.h"
#include "kvcove/wire/owner_link.h"

namespace kvcove::owner {

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
  static constexpr std::int64_t kWatchNs = 5 * kSecond;
  static constexpr std::size_t Index(Lane lane) { return static_cast<std::size_t>(lane); }

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

  // ---- hello, lease and generations (link_core.cc)
  Step NextLease() KVCOVE_EXCLUDES(mutex_);
  Step NextWatch() KVCOVE_EXCLUDES(mutex_);
  void AnswerLease(const Result<std::string>& reply);
  void Welcomed(const wire::OwnerWelcome& welcome);
  void ForgetIdentity(const wire::OwnerWelcome& welcome);
  void Renewed(const wire::RenewReply& reply);
  void FollowPosition(std::uint32_t asked_under) KVCOVE_EXCLUDES(mutex_);
  void SetLease(std::int64_t deadline_ns) KVCOVE_EXCLUDES(mutex_);
  // `asked_under`: the epoch in which the call was made that the changes answer.
  void Apply(const wire::Changes& changes, std::uint32_t asked_under);
  // ---- removals (link_core_removals.cc)
  Step NextRemovals() KVCOVE_EXCLUDES(mutex_);
  void NoteEndedPatterns() KVCOVE_EXCLUDES(mutex_);
  // Returns how many removals by pattern may be begun now: the target has room for them, and so has
  // a request.
  std::size_t PatternRoom() KVCOVE_EXCLUDES(mutex_);
  // Returns true while the next removal is a pattern for which there is no room.
  bool AwaitsRoom() KVCOVE_EXCLUDES(mutex_);
  void ApplyRemovals(const wire::RemovalsPage& page);
  // ---- listings at a single master (link_core_list.cc)
  Step NextList() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  Batch MakeBatch(bool reported, std::uint32_t credit);
  bool ReportsAgain();
  void AnswerList(const Result<std::string>& reply);
  void Listed(const wire::ListReply& reply);
  bool Walked(const Batch& batch);
  // ---- listings at shards (link_core_shards.cc)
  void NoteMap(const std::shared_ptr<const wire::ShardMap>& map) KVCOVE_EXCLUDES(mutex_);
  std::uint64_t MapRevision() const KVCOVE_REQUIRES(mutex_);
  void UseMap() KVCOVE_REQUIRES(route_mutex_) KVCOVE_EXCLUDES(mutex_);
  void Route() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  bool EndsWalk() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  bool ShardsReported() KVCOVE_REQUIRES(route_mutex_) KVCOVE_EXCLUDES(mutex_);
  std::vector<Listing> EndShards() KVCOVE_REQUIRES(mutex_);
  // ---- both
  // Ends the use of shards, and drops the batch. Returns all puts that have no answer.
  std::vector<Listing> TakeUnanswered() KVCOVE_REQUIRES(mutex_);
  // Notes that the owner has acted on a batch's answers (AnsweredBatches). `stale`: an item of the
  // inventory was refused as kStale.
  void EndCompleting(std::uint64_t batch, std::size_t gave_way, bool stale) KVCOVE_EXCLUDES(mutex_);

  LinkTarget& target_;
  // Only the lease lane changes these:
  LinkIdentity identity_;  // ForgetIdentity changes `owner`, under `mutex_`
  std::vector<SlotId> hidden_;
  const std::int64_t renewal_ns_;
  const Clock& clock_;

  mutable Mutex mutex_;
  Membership member_ KVCOVE_GUARDED_BY(mutex_);
  PositionPace pace_ KVCOVE_GUARDED_BY(mutex_);
  GenerationTable table_ KVCOVE_GUARDED_BY(mutex_);
  RemovalProgress removals_ KVCOVE_GUARDED_BY(mutex_);
  InventoryReport report_ KVCOVE_GUARDED_BY(mutex_);
  ListRounds rounds_ KVCOVE_GUARDED_BY(mutex_);
  AnsweredBatches answered_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t gave_way_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- listings at a single master
  std::uint32_t credit_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t sequence_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::optional<Batch> batch_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t applied_at_batch_ KVCOVE_GUARDED_BY(mutex_) = 0;  // ListRequest::applied of batch_
  std::int64_t list_wait_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- at shards
  ShardLanes shards_ KVCOVE_GUARDED_BY(mutex_);  // active from the first map with others on
  std::shared_ptr<const wire::ShardMap> next_map_ KVCOVE_GUARDED_BY(mutex_);  // not in use yet
  std::uint64_t lane_session_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the list lane's call under way
  // ---- by lane: the epochs of the calls under way
  std::array<std::uint32_t, kLanes.size()> asked_under_ KVCOVE_GUARDED_BY(mutex_) = {};
  std::array<bool, kLanes.size()> pause_ KVCOVE_GUARDED_BY(mutex_) = {};  // after an error

  // Pages of changes arrive on two lanes; the lock lets them be applied one after the other. Taken
  // before `mutex_` or the owner's lock.
  Mutex apply_mutex_;
  // Held from TakeListings and TakeGone until their items are queued, so that the queues have the
  // owner's order. Taken before `mutex_` or the owner's lock; never with `apply_mutex_`.
  Mutex route_mutex_;
};

}  // namespace kvcove::owner
