// SPDX-License-Identifier: Apache-2.0
// The shards of the directory, as the leader has them: which other masters serve slices of it, for
// how long, what each has heard, and slices that move. No I/O. docs/ha.md has the prose and why
// this is safe.
//
// A shard follows by asking (Sync), again and again; each answer is its lease. What it must know
// before something is proven (a removal, a generation) is proven when it has asked again, or when
// its lease is over. A shard whose lease is over is lost: its slices begin again without entries at
// the leader, and owners tell them again.
//
// A move:  freezing (the giver lists nothing more of these slices)
//       -> loading (the taker gets the entries)
//       -> closing (from when the giver has heard it, it calls no key unknown that it does not
//       find)
//       -> ending (the taker serves; the giver answers look-ups until the taker has heard so)
// The leader takes slices only when nobody else is left to take what a drained shard gives away.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/control/control.h"
#include "kvcove/master/directory/directory_service.h"

namespace kvcove::master {

struct ShardsOptions {
  bool on = false;  // other masters may join
  std::int64_t lease_ns = kSecond;
  std::int64_t hold_ns = 100 * kMillisecond;  // a request without news
  std::int64_t move_ns = 60 * kSecond;        // after which a move is given up
  // At first nothing is listed: masters that follow by then get their parts before owners tell.
  std::int64_t gather_ns = 200 * kMillisecond;
  // Entries that move at a time: their keys' listings wait so long.
  std::uint64_t move_entries = 400'000;
};

// What operators see.
struct ShardDescription {
  wire::ShardNumber number = 0;
  std::string address;  // empty: the leader
  std::size_t slices = 0;
  std::uint64_t entries = 0;
  bool draining = false;
  std::int64_t lease_ns = 0;  // what is left
};

// Thread-safe. Calls its replies and the control without a lock.
class Shards {
 public:
  Shards(const ShardsOptions& options, std::uint64_t term, std::uint64_t first_removal,
         Standings& standings, DirectoryService& directory, const Clock& clock);
  // Before the first call. `leads_ns`: for how long this master leads at least.
  void Begin(Control& control, std::function<std::int64_t()> leads_ns);

  bool on() const { return options_.on; }
  // Null: the leader has all slices, and nobody else ever had one.
  std::shared_ptr<const wire::ShardMap> map() const;

  // ---- calls of shards
  void Sync(const wire::ShardSyncRequest& request, Reply<wire::ShardSyncReply> reply);
  // Errors: kStale for a move that is not under way from the leader.
  Result<wire::ShardPage> Pull(const wire::ShardPullRequest& request);

  // ---- a move to the leader. One thread makes these calls, and those of the giver.
  // Slices that the leader is to get, and has not got yet; `id` 0: none.
  wire::ShardMove Wanted() const;
  // False: the move is over.
  bool Load(std::uint64_t move, const wire::ShardPage& page);
  void LoadFailed(std::uint64_t move);

  // ---- what shards must know. `done` is called once, within a lease at the latest.
  // Codes by key: kOk where a shard had it. Numbers may come out of order.
  void Remove(const wire::Removal& removal, std::function<void(std::vector<Code>)> done);
  void AwaitAll(std::int64_t deadline_ns, Reply<void> done);

  // ---- administration
  std::vector<ShardDescription> Describe() const;
  // Of all shards, as each has told lately; with entries that are dead but not swept yet.
  std::vector<std::uint64_t> EntriesBySlot() const;
  // Its slices go to others. Errors: kInvalid.
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
  struct Pending {  // a removal that a shard has not acknowledged
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
    std::uint64_t acknowledged = 0;  // the last position that it has named
    std::uint64_t floor = 0;
    std::uint64_t map_sent = 0;
    std::uint64_t serves_sent = 0;  // of serves_version_
    std::uint64_t move_sent = 0;
    std::uint64_t frozen = 0;
    std::uint64_t loaded = 0;
    std::uint64_t failed = 0;
    std::uint64_t frozen_sent = 0;
    std::uint64_t full_sent = 0;  // of full_version_
    std::uint64_t entries = 0;
    std::vector<std::pair<SlotId, std::uint64_t>> entries_of_slots;
    bool fresh = true;  // gets everything with its first answer
    bool draining = false;
    std::vector<Row> owners;
    std::vector<std::pair<Generation, std::uint64_t>> slots;
    std::map<std::uint64_t, Pending> removals;
    std::int64_t since_ns = 0;          // of what waits
    Reply<wire::ShardSyncReply> reply;  // null: nothing waits
  };
  enum class Stage : std::uint8_t { kNone, kFreezing, kLoading, kClosing, kEnding };
  struct Waiter {
    std::map<std::uint64_t, std::uint64_t> sessions;  // the positions that are awaited
    std::int64_t deadline_ns = 0;
    Reply<void> done;
  };
  using Runs = std::vector<std::function<void()>>;

  Member* MemberOf(std::uint64_t session) KVCOVE_REQUIRES(mutex_);
  Result<wire::ShardNumber> Join(const wire::ShardSyncRequest& request) KVCOVE_REQUIRES(mutex_);
  void Acknowledge(Member& member, const wire::ShardSyncRequest& request, Runs& runs)
      KVCOVE_REQUIRES(mutex_);
  // Whether something changed that does not wait.
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
  wire::ShardMap now_ KVCOVE_GUARDED_BY(mutex_);  // what map_ has, or will have
  std::shared_ptr<const wire::ShardMap> map_ KVCOVE_GUARDED_BY(mutex_);
  std::uint64_t serves_version_ KVCOVE_GUARDED_BY(mutex_) = 1;
  std::uint64_t last_removal_ KVCOVE_GUARDED_BY(mutex_);
  wire::ShardMove move_ KVCOVE_GUARDED_BY(mutex_);
  Directory::Slices moving_ KVCOVE_GUARDED_BY(mutex_);
  std::int64_t gathers_until_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // 0: no more
  // These slices are served when the control has heard of their loss; and the leader has entries of
  // those that it gave away, or did not get after all (ForgetSlices, by Tick).
  Directory::Slices held_ KVCOVE_GUARDED_BY(mutex_);
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
