// SPDX-License-Identifier: Apache-2.0
// An owner's tie to its master, without threads and sockets: what each of four lanes asks next, and
// what its answer does. `Link` gives each lane a thread and a connection; the simulation drives the
// lanes as they are. docs/control-plane.md has the prose.
//
//   lease     says hello, renews the lease, and nothing else, so that no call ever costs a lease
//   watch     hears of generations at once, publishes them, and acknowledges
//   removals  hears of removals, applies them, and acknowledges
//   list      tells the master what was stored and what is gone, and everything after a new hello
//
// Where several masters serve shards of the directory, the list lane is that of the leader's shard,
// and each other shard has one more (shard_lanes.h).
//
// Each lane has one call under way at most. Its answers are never mixed up with those of an earlier
// epoch: what an answer does is bound to the epoch under which it was asked.
#pragma once

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
  Id128 owner;    // of its memory
  Id128 process;  // of this process
  std::string address;
  std::string socket;
  std::string host;
  std::string tenant;
  bool disk = false;  // the identity outlives the process
  // Of an owner with a disk that has followed a master before.
  std::optional<OwnerFacts> before;
};

// A lane waits so long after an error, and when it has nothing to do.
inline constexpr std::int64_t kLanePauseNs = 20 * kMillisecond;
// Limits of a list call, to the one master or to a shard.
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
  // A call, or nothing to ask before `wait_ns` are over or something happens.
  struct Step {
    std::optional<Call> call;
    std::int64_t wait_ns = 0;
    std::uint64_t session = 0;  // of a shard's lane: for AnswerShard
  };

  LinkCore(LinkTarget& target, LinkIdentity identity, std::int64_t renewal_ns, const Clock& clock);

  Step Next(Lane lane);
  void Answer(Lane lane, const Result<std::string>& reply);
  // The same for each shard of the directory. Empty addresses: nobody has this number; the first is
  // the leader's, whose lane is kList (AnswerShard is for the others).
  std::size_t shards() const;
  std::string ShardAddress(std::size_t number) const;
  Step NextShard(std::size_t number) KVCOVE_EXCLUDES(mutex_, route_mutex_);
  void AnswerShard(std::size_t number, std::uint64_t session, const Result<std::string>& reply)
      KVCOVE_EXCLUDES(mutex_, route_mutex_);
  // The lease's connection is lost: hello is said again over the next one.
  void Disconnected();
  // Until hello is answered the other lanes (but those of shards) ask nothing, so a master that is
  // back has one connection of each owner to take before all have their leases, not four.
  bool AwaitsWelcome() const;

  // What ends the lease at the master; nothing when it does not know this owner.
  std::optional<Call> Goodbye();

  // What the log says once, for the shell.
  struct State {
    std::uint32_t epoch = 0;  // 0: not welcomed yet
    wire::OwnerNumber number = wire::kNoOwner;
    std::uint64_t term = 0;
    bool told = false;
    std::uint64_t dropped = 0;  // objects that gave way to another owner's value
  };
  State state() const;
  // Grows with each master that welcomed this owner.
  std::uint64_t term() const;
  const LinkIdentity& identity() const { return identity_; }

  // An identity that is over: the next hello names it, and hello is said again for it.
  void NamePredecessor(const Id128& predecessor);
  // The one that was named, until a master has heard of it. Zero: none.
  Id128 predecessor() const;

  // ---- a successor's process; no lane runs (link_core_carry.cc)
  void Save(StateWriter& ar);
  // Into a new one, which says hello as the same owner and in the same epoch: the master goes on
  // with it where it was.
  void Load(StateReader& ar);
  // Nobody waits for the answers to what is being listed any more.
  void ForgetCallers();
  // The reservations in the List request that has no answer yet.
  std::set<std::uint64_t> Asked() const;

 private:
  template <typename Ar>
  void CarryMembers(Ar& ar) KVCOVE_REQUIRES(mutex_);
  // A List request that has no answer yet: it is repeated as it is.
  struct Batch {
    std::uint64_t sequence = 0;
    std::string body;
    std::vector<InventoryItem> gone;  // or moved
    std::vector<Listing> listings;
    std::vector<InventoryItem> inventory;
    bool waits = false;  // the inventory does not go on yet
    // The inventory had been walked before, and `gone` has all that moved meanwhile.
    bool last = false;
  };

  Step NextLease() KVCOVE_EXCLUDES(mutex_);
  Step NextList() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  Batch MakeBatch(bool told, std::uint32_t credit);
  bool TellsAgain();
  bool Walked(const Batch& batch);
  void Welcomed(const wire::OwnerWelcome& welcome);
  void ForgetIdentity(const wire::OwnerWelcome& welcome);
  void Renewed(const wire::RenewReply& reply);
  void SetLease(std::int64_t deadline_ns) KVCOVE_EXCLUDES(mutex_);
  void Apply(const wire::Changes& changes);
  void ApplyRemovals(const wire::RemovalsPage& page);
  void Listed(const wire::ListReply& reply);
  void AnswerLease(const Result<std::string>& reply);
  void AnswerList(const Result<std::string>& reply);
  // ---- link_core_shards.cc
  void NoteMap(const std::shared_ptr<const wire::ShardMap>& map) KVCOVE_EXCLUDES(mutex_);
  std::uint64_t MapRevision() const KVCOVE_REQUIRES(mutex_);
  void UseMap() KVCOVE_REQUIRES(route_mutex_) KVCOVE_EXCLUDES(mutex_);
  void Route() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  bool IsTold(const InventoryItem& item) const KVCOVE_REQUIRES(mutex_);
  void NoteTellAgain(std::optional<ObjectId> from) KVCOVE_REQUIRES(mutex_);
  void CheckRounds() KVCOVE_REQUIRES(mutex_);
  bool EndsWalk() KVCOVE_EXCLUDES(mutex_, route_mutex_);
  bool ShardsTold() KVCOVE_REQUIRES(route_mutex_) KVCOVE_EXCLUDES(mutex_);
  std::vector<Listing> EndShards() KVCOVE_REQUIRES(mutex_);
  // From when the answers are taken until the owner has acted on all of them. Returns the batch's
  // number. `stale`: some of what was told was refused so.
  std::uint64_t BeginCompleting() KVCOVE_REQUIRES(mutex_);
  void EndCompleting(std::uint64_t batch, std::size_t gave_way, bool stale) KVCOVE_EXCLUDES(mutex_);
  // False while another lane completes puts that were answered under an earlier map or epoch. The
  // shard that listed them may be gone, and a walk that passed before the owner shows them would
  // leave them to nobody.
  bool MayWalk() const KVCOVE_REQUIRES(mutex_);
  bool Unwelcome() const KVCOVE_REQUIRES(mutex_) { return epoch_ == 0 || hello_wanted_; }
  void SayHelloAgain(bool new_epoch) KVCOVE_REQUIRES(mutex_);
  OwnerFacts Facts() const KVCOVE_REQUIRES(mutex_);

  LinkTarget& target_;
  // Of the lease lane:
  LinkIdentity identity_;  // `owner` changes when it was forgotten
  std::vector<SlotId> hidden_;
  const std::int64_t renewal_ns_;
  const Clock& clock_;

  mutable Mutex mutex_;
  // ---- what the master said
  bool fresh_ KVCOVE_GUARDED_BY(mutex_) = true;  // the identity was never admitted
  Id128 predecessor_ KVCOVE_GUARDED_BY(mutex_);
  Id128 sent_predecessor_ KVCOVE_GUARDED_BY(mutex_);  // in the hello that is under way
  Id128 pool_ KVCOVE_GUARDED_BY(mutex_);
  Id128 incarnation_ KVCOVE_GUARDED_BY(mutex_);
  wire::Position seen_ KVCOVE_GUARDED_BY(mutex_);
  wire::Position sent_seen_ KVCOVE_GUARDED_BY(mutex_);  // in the hello that is under way
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
  std::uint64_t removals_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t dropped_ KVCOVE_GUARDED_BY(mutex_) = 0;  // RemovalsPage::drop_number
  std::vector<wire::RemovalsRequest::Count> matched_ KVCOVE_GUARDED_BY(mutex_);
  // What removals took away must be unlisted before they are acknowledged: not before this round.
  std::uint64_t acknowledge_at_round_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- listings
  bool told_ KVCOVE_GUARDED_BY(mutex_) = false;
  ObjectId cursor_ KVCOVE_GUARDED_BY(mutex_) = 0;
  bool stale_told_ KVCOVE_GUARDED_BY(mutex_) = false;  // some of it was refused: tell again
  // Although told, what lies behind `again_from_` is walked once more. Begun anew by a successor.
  bool telling_again_ KVCOVE_GUARDED_BY(mutex_) = false;
  ObjectId again_from_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint32_t credit_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t sequence_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::optional<Batch> batch_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t applied_at_batch_ KVCOVE_GUARDED_BY(mutex_) = 0;  // ListRequest::applied of it
  std::uint64_t rounds_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t list_wait_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t gave_way_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // ---- shards
  ShardLanes shards_ KVCOVE_GUARDED_BY(mutex_);  // active from the first map with others on
  // Batches whose answers were taken and are being acted on: their numbers, and the restart
  // (ShardLanes::restarts) under which each was taken. See MayWalk and ShardsTold.
  std::map<std::uint64_t, std::uint64_t> completing_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t next_batch_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const wire::ShardMap> next_map_ KVCOVE_GUARDED_BY(mutex_);  // not in use yet
  std::uint64_t lane_session_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the list lane's call under way
  // Map revisions: all was told under the first; the walk that is under way began under the other.
  std::uint64_t told_map_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t walk_map_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t walk_from_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // not before
  bool only_fresh_ KVCOVE_GUARDED_BY(mutex_) = false;  // `telling_again_`: slices since told_map_
  // Reached when the walk's end is told, and when a round is over.
  std::optional<std::vector<std::uint64_t>> walk_end_ KVCOVE_GUARDED_BY(mutex_);
  // When `walk_end_` was reached: the next batch. Those before it may still have refusals to note.
  std::optional<std::uint64_t> walk_last_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<std::vector<std::uint64_t>> round_marks_ KVCOVE_GUARDED_BY(mutex_);
  // ---- epochs of the calls under way
  std::array<std::uint32_t, 4> asked_under_ KVCOVE_GUARDED_BY(mutex_) = {};
  std::array<bool, 4> pause_ KVCOVE_GUARDED_BY(mutex_) = {};  // after an error

  // Changes come over two lanes; they are applied one page after the other.
  Mutex apply_mutex_;
  // What is taken from the owner reaches the queues in the order in which it was taken.
  Mutex route_mutex_;
};

}  // namespace kvcove::owner
