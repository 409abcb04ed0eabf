// SPDX-License-Identifier: Apache-2.0
// The shards of the directory, at the leader: the other masters that serve slices of it, their
// leases and acknowledgements, and slices that move. No I/O. docs/ha.md says why this is safe.
//
// A shard follows the leader by repeated requests (Sync); each answer is its lease. A removal or a
// generation is proven at a shard when the shard's next request acknowledges the answer with it, or
// when the lease is over. A shard whose lease is over is lost: its slices begin again without
// entries at the leader, and owners list them again.
//
// A move:  freezing (the giver lists nothing more of these slices)
//       -> loading (the taker gets the entries)
//       -> closing (the giver acknowledges that a key which it does not find may be elsewhere)
//       -> ending (the taker serves; the giver answers look-ups until the taker acknowledges that)
// The leader takes slices of a drained shard only when no other shard is left to take them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/control/control.h"
#include "kvcove/master/directory/directory_service.h"

namespace kvcove::master {

struct ShardsOptions {
  bool on = false;  // other masters may join
  std::int64_t lease_ns = kSecond;
  std::int64_t hold_ns = 100 * kMillisecond;  // a request without news is answered after this
};

// A shard as operators see it.
struct ShardDescription {
  wire::ShardNumber number = 0;
  std::string address;  // empty: the leader
  std::size_t slices = 0;
  std::uint64_t entries = 0;
  bool draining = false;
  std::int64_t lease_ns = 0;  // the rest of its lease
};

// Thread-safe. Calls replies, `done` and Control::SetShardMap without its lock; reads the control
// and uses the directory under it (docs/threads.md has the lock order).
class Shards {
 public:
  Shards(const ShardsOptions& options, std::uint64_t term, std::uint64_t first_removal,
         Standings& standings, DirectoryService& directory, const Clock& clock);
  // Begins the term; call it before all other methods. `leads_ns`: returns for how long this master
  // leads at least; called under the lock.
  void Begin(Control& control, std::function<std::int64_t()> leads_ns);

  bool on() const { return options_.on; }
  // Returns the map; null: the leader has all slices, and no shard ever had one.
  std::shared_ptr<const wire::ShardMap> map() const;

  // ---- calls of shards
  // Answers when there are changes for the shard, or after `hold_ns`. A request of another term or
  // session joins as a new shard. Errors: kExists while an earlier lease of this address runs,
  // kStale for a request that a later one replaces or whose lease has ended; kLimit, kDenied,
  // kUnavailable.
  void Sync(const wire::ShardSyncRequest& request, Reply<wire::ShardSyncReply> reply);
  // Returns a page of entries that move away from the leader. Errors: kStale for another move.
  Result<wire::ShardPage> Pull(const wire::ShardPullRequest& request);

  // ---- a move to the leader. One thread makes these calls, and those of the giver.
  // Returns the move whose entries the leader must load; `id` 0: none.
  wire::ShardMove Wanted() const;
  // Loads a page. Returns false when the move is over.
  bool Load(std::uint64_t move, const wire::ShardPage& page);
  void LoadFailed(std::uint64_t move);

  // ---- proofs
  // Removes keys at every shard, and calls `done` once each has acknowledged that or is lost.
  // Codes by key: kOk if a shard had it. Numbers may come out of order.
  void Remove(const wire::Removal& removal, std::function<void(std::vector<Code>)> done);
  // Calls `done` when each shard has acknowledged an answer that was built after this call, or its
  // lease is over. Errors: kTimeout at the deadline, kUnavailable.
  void AwaitAll(std::int64_t deadline_ns, Reply<void> done);

  // ---- administration
  std::vector<ShardDescription> Describe() const;
  // Returns the entries of each slot: those of its current generation at this master, and at other
  // shards as each has reported lately, including dead ones that are not swept yet.
  std::vector<std::uint64_t> EntriesBySlot() const;
  // Returns the bytes of each slot's values, likewise.
  std::vector<std::uint64_t> BytesBySlot() const;
  // Starts or stops to move the shard's slices to others. Errors: kInvalid for an unknown address.
  Status SetDraining(const std::string& address, bool draining);

  void Tick();
  void Stop();

 private:
  using Row = wire::ShardSyncReply::Owner;
  struct Removing {
    std::uint64_t number = 0;
    std::size_t waiting = 0;
    std::vector<Code> codes;
    std::function<void(std::vector<Code>)> done;
  };
  struct Pending {  // a removal that one shard has not acknowledged
    std::shared_ptr<const wire::Removal> removal;
    std::shared_ptr<Removing> removing;
    bool sent = false;
  };
  struct Member {
    Id128 process;
    std::string address;
    std::uint64_t session = 0;
    std::int64_t lease_until_ns = 0;
    std::uint64_t position = 0;      // of the last answer
    std::uint64_t acknowledged = 0;  // the last position that the shard has named
    std::uint64_t floor = 0;         // removals up to this number are not sent to the shard
    std::uint64_t map_sent = 0;
    std::uint64_t serves_sent = 0;  // of serves_version_
    std::uint64_t move_sent = 0;
    // Ids of moves, as the shard has reported them.
    std::uint64_t frozen = 0;
    std::uint64_t loaded = 0;
    std::uint64_t failed = 0;
    std::uint64_t frozen_sent = 0;  // `frozen` when the last answer was built
    std::uint64_t full_sent = 0;    // of full_version_
    std::uint64_t entries = 0;
    std::vector<std::pair<SlotId, std::uint64_t>> entries_of_slots;
    std::vector<std::uint64_t> bytes_of_slots;
    bool fresh = true;  // the next answer has everything
    bool draining = false;
    // The last answer's, to compute what has changed since.
    std::vector<Row> owners;
    std::vector<std::pair<Generation, std::uint64_t>> slots;
    std::map<std::uint64_t, Pending> removals;
    std::int64_t since_ns = 0;          // when the waiting request arrived
    Reply<wire::ShardSyncReply> reply;  // null: no request waits
  };
  enum class Stage : std::uint8_t { kNone, kFreezing, kLoading, kClosing, kEnding };
  struct Waiter {
    std::map<std::uint64_t, std::uint64_t> sessions;  // to the position that is awaited
    std::int64_t deadline_ns = 0;
    Reply<void> done;
  };
  using Runs = std::vector<std::function<void()>>;

  Member* MemberOf(std::uint64_t session) KVCOVE_REQUIRES(mutex_);
  Result<wire::ShardNumber> Join(const wire::ShardSyncRequest& request) KVCOVE_REQUIRES(mutex_);
  void Acknowledge(Member& member, const wire::ShardSyncRequest& request, Runs& runs)
      KVCOVE_REQUIRES(mutex_);
  // Returns true if a change must be sent at once, before `hold_ns`.
  bool HasNews(const Member& member) KVCOVE_REQUIRES(mutex_);
  void Answer(wire::ShardNumber number, Runs& runs) KVCOVE_REQUIRES(mutex_);
  using Drops = std::map<OwnerNumber, std::vector<SlotId>>;
  Row RowOf(OwnerNumber number, const Drops& drops) const;
  std::vector<wire::SliceState> ServesOf(wire::ShardNumber number) const KVCOVE_REQUIRES(mutex_);
  void CheckWaiters(Runs& runs) KVCOVE_REQUIRES(mutex_);
  void Lose(wire::ShardNumber number, Runs& runs) KVCOVE_REQUIRES(mutex_);
  void Share(Runs& runs) KVCOVE_REQUIRES(mutex_);
  void NewMap(bool lost, Runs& runs) KVCOVE_REQUIRES(mutex_);
  void PlanMove() KVCOVE_REQUIRES(mutex_);
  void CheckMove(Runs& runs) KVCOVE_REQUIRES(mutex_);
  void HandOver(Runs& runs) KVCOVE_REQUIRES(mutex_);
  bool IsLoading(std::uint64_t move) const KVCOVE_REQUIRES(mutex_);
  void CountShares() KVCOVE_REQUIRES(mutex_);
  void AddEntriesElsewhere(std::vector<std::uint64_t>& to) const KVCOVE_REQUIRES(mutex_);
  void EndMove() KVCOVE_REQUIRES(mutex_);
  void SetOwnSlices() KVCOVE_REQUIRES(mutex_);
  std::size_t CountOf(wire::ShardNumber number) const KVCOVE_REQUIRES(mutex_);

  const ShardsOptions options_;
  const std::uint64_t term_;
  Standings& standings_;
  DirectoryService& directory_;
  const Clock& clock_;
  Control* control_ = nullptr;
  std::function<std::int64_t()> leads_ns_;

  mutable Mutex mutex_;
  std::map<wire::ShardNumber, Member> members_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t next_session_ KVCOVE_GUARDED_BY(mutex_) = 1;
  wire::ShardMap now_ KVCOVE_GUARDED_BY(mutex_);  // the next map_, while it changes
  std::shared_ptr<const wire::ShardMap> map_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t serves_version_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::uint64_t last_removal_ KVCOVE_GUARDED_BY(mutex_);
  wire::ShardMove move_ KVCOVE_GUARDED_BY(mutex_);
  Directory::Slices moving_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t gathers_until_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // 0: it has ended
  // No shard serves these slices before the control has been notified of their loss (NewMap).
  Directory::Slices held_ KVCOVE_GUARDED_BY(mutex_);
  // The leader still has entries of these slices, which it gave away or did not get after all. Tick
  // removes them (ForgetSlices).
  Directory::Slices forget_ KVCOVE_GUARDED_BY(mutex_);
  Stage stage_ KVCOVE_GUARDED_BY(mutex_) = Stage::kNone;
  std::int64_t move_began_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_move_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::uint64_t closing_position_ KVCOVE_GUARDED_BY(mutex_) = 0;  // of the giver
  std::uint64_t ending_position_ KVCOVE_GUARDED_BY(mutex_) = 0;   // of the taker
  std::uint64_t own_loaded_ KVCOVE_GUARDED_BY(mutex_) = 0;        // moves to the leader
  std::uint64_t own_failed_ KVCOVE_GUARDED_BY(mutex_) = 0;
  DirectoryService::Full full_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t full_version_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t next_count_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t next_plan_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<Waiter> waiters_ KVCOVE_GUARDED_BY(mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
};

}  // namespace kvcove::master
