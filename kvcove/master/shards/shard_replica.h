// SPDX-License-Identifier: Apache-2.0
// A shard of the directory at a master that does not lead: it follows the leader (Shards), serves
// look-ups and listings of its slices while its lease runs, and takes slices over from others. No
// I/O: ShardFollower makes the calls. docs/ha.md says why this is safe.
//
// Its knowledge of owners and generations lags behind the leader's. Owners are the authority over
// generations and removals, so its answers to look-ups are hints; only the leader decides that a
// value may be replaced.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/control/deferred.h"
#include "kvcove/master/directory/directory_service.h"
#include "kvcove/wire/shards.h"

namespace kvcove::master {

struct ShardReplicaOptions {
  std::string address;  // how owners and requesters reach this master
  DirectoryService::Options directory;
};

// Thread-safe.
class ShardReplica {
 public:
  ShardReplica(const ShardReplicaOptions& options, const Clock& clock)
      : options_(options), clock_(clock) {}

  // ---- following. One call at a time, from one thread.
  wire::ShardSyncRequest NextSync();
  // Applies the leader's answer. `sent_ns`: when the request was sent; the lease counts from then.
  void Apply(const wire::ShardSyncReply& reply, std::int64_t sent_ns);
  // Returns the move whose entries this shard must load; `id` 0: none.
  wire::ShardMove Wanted() const;
  // Removes entries that are left from an earlier time with these slices.
  void BeginLoad(const wire::ShardMove& move);
  void Load(std::uint64_t move, const wire::ShardPage& page);
  void LoadFailed(std::uint64_t move);
  // Removes the entries of slices that this shard has given away. Not at the same time as a load.
  void Forget();
  bool Forgets() const {
    const MutexLock lock(mutex_);
    return forget_.any();
  }

  // ---- calls. The caller reads Serving() before a call, and sends the answer only if Serving() is
  // the same after it: else the lease has ended meanwhile, and another shard may have the slices.
  // Returns the number of the following while its lease runs; 0: it does not.
  std::uint64_t Serving() const {
    return Serves() ? following_number_.load(std::memory_order_acquire) : 0;
  }
  // Returns a number that grows each time the shard begins anew.
  std::uint64_t following_number() const {
    return following_number_.load(std::memory_order_acquire);
  }
  std::uint64_t term() const {
    const MutexLock lock(mutex_);
    return term_;
  }
  bool Serves() const { return clock_.NowNs() < serves_until_ns_.load(std::memory_order_acquire); }
  // Asks the leader whether values may be replaced; may answer later, from another thread.
  using Ask = std::function<void(const wire::ShardBarRequest&, Reply<wire::ShardBarReply>)>;
  // Lists as DirectoryService::List does. Errors: kInProgress also while this shard does not know
  // the owner's epoch or a generation yet.
  void List(const wire::ListRequest& request, const Ask& ask, Reply<wire::ListReply> reply);
  // Looks keys up. Errors: kStale when the token's generation is older than the current one;
  // kInProgress when this shard does not know it yet; kUnavailable.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes);
  // As DirectoryService. Errors: as Lookup.
  Result<std::vector<wire::Place>> NoteSaves(SavesUnderWay::Writer writer, const Token& token,
                                             std::span<const Id128> hashes, SaveNotice notice);
  void EndSaves(SavesUnderWay::Writer writer);
  Result<wire::ShardPage> Pull(const wire::ShardPullRequest& request);
  std::vector<wire::HeldKey> Held(const wire::ShardFindRequest& request) const;
  // Return TenantTags, for credentials: of the only tenant that an owner serves (0: all), and of a
  // slot (~0: unknown).
  std::uint64_t TenantOfOwner(OwnerNumber number) const;
  std::uint64_t TenantOfSlot(SlotId slot) const;

  struct Stat {
    bool serves = false;
    wire::ShardNumber number = 0;
    std::size_t slices = 0;
    std::uint64_t entries = 0;
    std::uint64_t lookups = 0;
    std::uint64_t listed = 0;
  };
  Stat stat() const;
  void Tick();

 private:
  // The state of one following; the next one begins anew.
  struct Following {
    Following(const DirectoryService::Options& options, const Clock& clock)
        : standings(clock), directory(options, standings, clock) {
      standings.BeReplica();
    }
    Standings standings;
    DirectoryService directory;
    std::atomic<bool> warming{true};
    std::atomic<std::uint64_t> newest{0};  // the highest counter of a generation
    mutable Mutex mutex;
    std::map<OwnerNumber, std::vector<SlotId>> drops KVCOVE_GUARDED_BY(mutex);
  };
  using FollowingPtr = std::shared_ptr<Following>;
  FollowingPtr following() const {
    const MutexLock lock(mutex_);
    return following_;
  }
  // Returns the following that may answer under this token. Errors: as Lookup.
  Result<FollowingPtr> FollowingOf(const Token& token) const;
  // Adds the entries and the bytes of each slot to `to`, unless they were reported less than 50 ms
  // ago.
  void AddSlots(const Following* from, wire::ShardSyncRequest& to);
  void Begin(const wire::ShardSyncReply& reply);
  // Returns true if this generation is later than those that the following knows.
  static bool Lags(const Following& to, SlotId slot, Generation generation);
  // Removes what `reply`, an answer with everything, does not name.
  void ForgetUnnamed(Following& to, const wire::ShardSyncReply& reply) const;
  void ApplyOwners(Following& to, const wire::ShardSyncReply& reply) const;
  void ApplyRemovals(Following& to, const wire::ShardSyncReply& reply);

  const ShardReplicaOptions options_;
  const Clock& clock_;
  const Id128 process_ = RandomId();
  std::atomic<std::int64_t> serves_until_ns_{0};
  std::atomic<std::uint64_t> following_number_{0};

  mutable Mutex mutex_;
  FollowingPtr following_ KVCOVE_GUARDED_BY(mutex_);  // null: it has followed no leader yet
  std::uint64_t term_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t session_ KVCOVE_GUARDED_BY(mutex_) = 0;
  wire::ShardNumber number_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t position_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t frozen_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // frozen_ in the last request, and in the last request that was answered. Every value that was
  // listed in the frozen slices was put after no later removal than that answer's `shown`.
  std::uint64_t frozen_named_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t frozen_heard_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t loaded_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t failed_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t shown_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t floor_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<wire::SliceState> serves_ KVCOVE_GUARDED_BY(mutex_);
  wire::ShardMove move_ KVCOVE_GUARDED_BY(mutex_);
  Directory::Slices forget_ KVCOVE_GUARDED_BY(mutex_);
  // Applied removals whose acknowledgement the leader may not have.
  std::map<std::uint64_t, std::vector<Code>> removed_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> named_ KVCOVE_GUARDED_BY(mutex_);  // of these, in the last request
  std::int64_t counted_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;       // when entries were reported
};

}  // namespace kvcove::master
