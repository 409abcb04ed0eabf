// SPDX-License-Identifier: Apache-2.0
// The control plane: members and leases, the generation table, the removal log and barriers, which
// owners follow; and the proofs that they did. Every call is short and waits for nothing: an answer
// that needs an owner or the store comes later. docs/control-plane.md has the rules.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "kvcove/master/control/generation_keeper.h"
#include "kvcove/master/control/members.h"
#include "kvcove/master/control/removal_log.h"
#include "kvcove/master/control/slot_table.h"
#include "kvcove/master/control/standings.h"
#include "kvcove/wire/shards.h"

namespace kvcove::master {

struct ControlOptions {
  MembersOptions members;
  RemovalLog::Limits removals;
  std::size_t table_page_bytes = SlotTable::kPageBytes;
  std::size_t removal_bytes_behind = 32 << 20;  // unapplied by owners with a lease, at most
  std::uint64_t tenant_removals_per_second = 200'000;
  // Removals by pattern that owners apply to disks at a time, at most. Fewer than an owner may have
  // open (wire::kMaxOpenRemovals): with more, removals of keys would wait for walks. The last of
  // them are for tenants that have none: others may begin new ones as soon as theirs end.
  std::size_t tenant_patterns = 16;
  std::size_t patterns = 48;
  std::size_t patterns_with_first = 60;
  // False: switches a rule off, so that a simulation shows that it notices.
  bool barriers = true;
  bool wait = true;
};

// The term of the master that runs now.
struct Leadership {
  Id128 pool;
  wire::Position position;  // revision: at the start
  std::vector<TermFact> terms;
  // No owner has joined under this id. If the store was lost, owners may know the pool by another.
  bool new_pool = false;
};

// Thread-safe.
class Control final : public GenerationSink {
 public:
  // Calls to other parts of the master; made without a lock.
  struct Hooks {
    // Begins another incarnation: an owner knows of facts that the store has lost.
    std::function<void()> facts_lost;
    // Gives the pool this id, and calls `stored` when the store has it.
    std::function<void(const Id128& pool, Reply<void> stored)> adopt_pool;
    // Notes a renewal of the owner's process, and the end of its membership.
    std::function<void(const Id128& process)> heard;
    std::function<void(const Id128& process)> ended;
    // Calls `done` when no shard answers from state older than this call, or at the deadline with
    // kTimeout. Null: there are no shards.
    std::function<void(std::int64_t deadline_ns, Reply<void> done)> await_shards;
  };
  Control(const ControlOptions& options, const Leadership& leadership, Id128 incarnation,
          OrderedCommits& commits, Standings& standings, Hooks hooks, const Clock& clock);
  // Loads the members of an earlier master. Its leases may run until `leases_until_ns`, those of
  // owners that the store does not know until `unknown_leases_until_ns`.
  void Load(const StoredState& state, std::int64_t leases_until_ns,
            std::int64_t unknown_leases_until_ns);

  // ---- owners
  // Welcomes an owner, stores a fresh one first, or refuses it. `connection`: the lease lane's;
  // when it ends, look-ups do not find the owner's objects any more. Errors: kStale: say hello
  // again; kIncompatible, kUnavailable, and those of Members::Admit and FactFor.
  void Hello(const wire::OwnerHello& hello, std::uint64_t connection,
             const Reply<wire::OwnerWelcome>& reply);
  // Renews a lease. Errors: kStale when the owner must say hello, kUnavailable.
  Result<wire::RenewReply> Renew(const wire::RenewRequest& request);
  // Answers when there are changes, or with none after 2 s. Takes the place of the owner's earlier
  // watch. Removals does the same. Errors: kStale.
  void Watch(const wire::WatchRequest& request, Reply<wire::Changes> reply);
  void Removals(const wire::RemovalsRequest& request, Reply<wire::RemovalsPage> reply);
  // Ends the owner's lease, and its membership unless it has a disk.
  void Goodbye(const wire::WatchRequest& request);
  // Hides the owner's objects from look-ups. The lease still runs.
  void Disconnected(std::uint64_t connection);
  // Raises barriers so that values in these absent owners' slots may be replaced. Calls `done` when
  // all are stored, so that a later master knows. Errors: kUnavailable; kTimeout after 2 s.
  using OwnerSlot = std::pair<OwnerNumber, SlotId>;
  void BarOvertaken(const std::vector<OwnerSlot>& overtaken, Reply<void> done);
  // Returns the slots in which this owner may list nothing before it has dropped them.
  std::vector<SlotId> DropsOf(OwnerNumber number) const;

  // ---- removals
  // Splits a removal into small parts. Errors: kLimit when owners are behind, the tenant has
  // removed its share, or, for one with a pattern, disks are walked for too many.
  Result<std::vector<wire::Removal>> Prepare(wire::Removal removal);
  // Appends a part to the log and returns its number. Owners see it from Show on, which must
  // follow.
  std::uint64_t Append(wire::Removal part);
  void Show(std::uint64_t removal);
  // Starts to count the objects that owners report as removed by this removal.
  void CountMatches(std::uint64_t removal);
  // Ends the count and returns it.
  std::uint64_t TakeMatches(std::uint64_t removal);
  // Calls `proven` with Ok when no owner shows the removed objects, now or ever again.
  // `generation`: the caller's; if the slot has another one, that must be proven instead. Errors:
  // kTimeout, kUnavailable.
  void AwaitRemoval(std::uint64_t removal, SlotId slot, Generation generation,
                    std::int64_t deadline_ns, Reply<void> proven);

  // ---- shards (docs/ha.md)
  // Publishes the map to owners. `lost`: slices began without entries with this revision.
  void SetShardMap(std::shared_ptr<const wire::ShardMap> map, bool lost);
  // Adds the slots in which an owner may list nothing (DropsOf), for each owner with such slots.
  // Returns the end of the owners' numbers.
  OwnerNumber OwnersForShards(std::map<OwnerNumber, std::vector<SlotId>>& drops) const;
  std::uint64_t shown() const;  // owners may have applied removals up to this one
  // Answers a shard whether values of these slots may be replaced (Standings::GivesWay), once their
  // barriers are stored.
  void AnswerBars(const std::vector<OwnerSlot>& values, Reply<wire::ShardBarReply> reply);

  // ---- GenerationSink
  void Publish(const Id128& incarnation, const std::vector<Generations::Published>& updates,
               Deferred& after) override;
  void SetUnnamed(std::vector<SlotId> unnamed, Deferred& after) override;
  void Await(std::int64_t deadline_ns, Reply<void> proven) override;

  // Answers calls whose deadline has passed or whose proof the time has completed; ends members
  // that are away for too long. Called every few milliseconds.
  void Tick();
  // Ends every wait with kUnavailable; later calls fail, too.
  void Stop();

  // ---- administration
  // Ends a member. Errors: kDenied while its lease runs, kInvalid, kUnavailable.
  Status Forget(OwnerNumber number);
  Status SetDraining(OwnerNumber number, bool draining);
  std::vector<wire::OwnerStat> Owners() const;
  std::vector<MemberDescription> Describe() const;
  // Returns true while objects may exist that are not listed yet, so that a miss is not final.
  bool Warming() const;
  // Since this master started.
  std::int64_t RunsForNs() const;
  bool LeaseRunning() const;
  struct Counts {
    std::uint64_t table = 0;
    std::uint64_t removals = 0;
    std::size_t removal_entries = 0;
    std::size_t removal_bytes = 0;
    std::size_t members = 0;
    std::size_t barriers = 0;
    std::size_t proofs = 0;
    std::size_t watches = 0;
    std::uint64_t removals_refused = 0;
  };
  Counts Count() const;

 private:
  struct Proof {
    bool removal = false;
    std::uint64_t target = 0;  // a revision of the table, or a removal's number
    SlotId slot = 0;
    Generation generation = 0;
    std::int64_t deadline_ns = 0;
    std::vector<MemberRef> waiting;
    Reply<void> done;
  };
  struct WatchWaiting {
    std::int64_t since_ns = 0;
    wire::WatchRequest request;
    Reply<wire::Changes> reply;
  };
  struct RemovalsWaiting {
    std::int64_t since_ns = 0;
    wire::RemovalsRequest request;
    Reply<wire::RemovalsPage> reply;
  };

  bool KnowsLessThan(const wire::Position& seen) const KVCOVE_REQUIRES(mutex_);
  // Returns true if the store was lost and the pool may still take the id that its owners know.
  bool MayAdopt() const KVCOVE_REQUIRES(mutex_);
  void Adopt(const wire::OwnerHello& hello, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void Join(const wire::OwnerHello& hello, std::uint64_t connection,
            const Reply<wire::OwnerWelcome>& reply, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void FinishHello(const wire::OwnerHello& hello, std::uint64_t connection,
                   const Reply<wire::OwnerWelcome>& reply, Deferred& deferred)
      KVCOVE_REQUIRES(mutex_);
  void ShowStanding(OwnerNumber number) KVCOVE_REQUIRES(mutex_);
  void HideStanding(OwnerNumber number) KVCOVE_REQUIRES(mutex_);
  // Returns the changes that this owner lacks.
  wire::Changes ChangesSince(OwnerNumber number, std::uint64_t table, std::uint64_t naming,
                             std::uint64_t map) const KVCOVE_REQUIRES(mutex_);
  // Returns true if owners walk over their disks for as many removals by pattern as they may.
  bool WalksForMany(std::string_view tenant, std::int64_t now_ns) KVCOVE_REQUIRES(mutex_);
  wire::RemovalsPage PageFor(const wire::RemovalsRequest& request) KVCOVE_REQUIRES(mutex_);
  void EndWatches(OwnerNumber number, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void AnswerWatches(Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void AnswerRemovals(Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void Delete(std::vector<std::string> keys) KVCOVE_REQUIRES(mutex_);
  void VoidDisks(OwnerNumber number) KVCOVE_REQUIRES(mutex_);
  void StoreOpening(OwnerNumber number, const Id128& opening) KVCOVE_REQUIRES(mutex_);
  // Answers a hello with `forgotten`, and ends the member that it names, if there is one.
  void AnswerForgotten(const wire::OwnerHello& hello, bool rolled_back,
                       const Reply<wire::OwnerWelcome>& reply, Deferred& deferred)
      KVCOVE_REQUIRES(mutex_);
  void EndMember(OwnerNumber number, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  // Answers a proof that is complete or late, and returns true; raises missing barriers.
  bool CheckProof(Proof& proof, std::int64_t now_ns, Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void RaiseBarrier(const MemberRef& ref, const Proof& proof) KVCOVE_REQUIRES(mutex_);
  void StoreBarrier(const MemberRef& ref, SlotId slot, const Members::RaisedBarrier& barrier)
      KVCOVE_REQUIRES(mutex_);
  // Calls `done` of each BarOvertaken whose barriers are stored now, or could not be stored.
  void CheckBarring(Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void CheckProofs(Deferred& deferred) KVCOVE_REQUIRES(mutex_);
  void AddProof(Proof proof, Deferred& deferred) KVCOVE_REQUIRES(mutex_);

  const ControlOptions options_;
  OrderedCommits& commits_;
  Standings& standings_;
  const Hooks hooks_;
  const Clock& clock_;

  mutable Mutex mutex_;
  std::int64_t started_ns_ KVCOVE_GUARDED_BY(mutex_);
  Leadership leadership_ KVCOVE_GUARDED_BY(mutex_);
  Id128 incarnation_ KVCOVE_GUARDED_BY(mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  // The id that this master drew before the pool took its owners' id, and the owners that know the
  // pool by the drawn one.
  Id128 former_pool_ KVCOVE_GUARDED_BY(mutex_);
  std::set<OwnerNumber> know_former_pool_ KVCOVE_GUARDED_BY(mutex_);
  bool adopting_ KVCOVE_GUARDED_BY(mutex_) = false;
  // An owner has shown that the store lacks facts. No lease is granted until the next incarnation
  // is stored, because the store does not say which objects are void.
  bool lost_ KVCOVE_GUARDED_BY(mutex_) = false;
  Members members_ KVCOVE_GUARDED_BY(mutex_);
  SlotTable table_ KVCOVE_GUARDED_BY(mutex_);
  RemovalLog removals_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t unknown_leases_until_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t naming_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<SlotId> unnamed_ KVCOVE_GUARDED_BY(mutex_);
  std::shared_ptr<const wire::ShardMap> map_ KVCOVE_GUARDED_BY(mutex_);  // null: no shards
  std::map<OwnerNumber, WatchWaiting> watches_ KVCOVE_GUARDED_BY(mutex_);
  std::map<OwnerNumber, RemovalsWaiting> removal_watches_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, OwnerNumber> lease_connections_ KVCOVE_GUARDED_BY(mutex_);
  // Owners whose void disks are being stored.
  std::set<OwnerNumber> voiding_ KVCOVE_GUARDED_BY(mutex_);
  // Owners that are being stored, and their connections; 0: it has ended.
  std::map<Id128, std::uint64_t> joining_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Proof>> proofs_ KVCOVE_GUARDED_BY(mutex_);
  struct Barring {  // a call of BarOvertaken
    std::vector<std::pair<MemberRef, SlotId>> waiting;
    std::int64_t since_ns = 0;
    Reply<void> done;
  };
  std::vector<Barring> barring_ KVCOVE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> matches_ KVCOVE_GUARDED_BY(mutex_);  // by removal
  // Removals by pattern, and their tenants. The next one erases those that owners have applied.
  std::map<std::uint64_t, std::string> patterns_ KVCOVE_GUARDED_BY(mutex_);
  struct Bucket {  // keys that a tenant has removed, less its rate
    double keys = 0;
    std::int64_t at_ns = 0;
  };
  std::map<std::string, Bucket, std::less<>> buckets_ KVCOVE_GUARDED_BY(mutex_);  // by tenant
  std::uint64_t removals_refused_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t swept_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcove::master
