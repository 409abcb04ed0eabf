// SPDX-License-Identifier: Apache-2.0
// A shard of the directory at a master that does not lead: it follows the leader (Shards), serves
// look-ups and listings of its slices while its lease runs, and takes slices over from others. No
// I/O: ShardFollower makes the calls. docs/ha.md has the prose and why this is safe.
//
// What it knows of owners and generations lags behind. Owners are the authority over generations
// and removals, so what it finds is a hint; that a value gives way, only the leader says.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
  // `sent_ns`: when the request was sent.
  void Apply(const wire::ShardSyncReply& reply, std::int64_t sent_ns);
  // Slices that this shard is to get, and has not got yet; `id` 0: none.
  wire::ShardMove Wanted() const;
  // Nothing is left of an earlier time with these slices.
  void BeginLoad(const wire::ShardMove& move);
  void Load(std::uint64_t move, const wire::ShardPage& page);
  void LoadFailed(std::uint64_t move);
  // Drops what this shard has given away; not at the same time as a load.
  void Forget();
  bool Forgets() const {
    const MutexLock lock(mutex_);
    return forget_.any();
  }

  // ---- calls. What comes out is answered only if Serving() is what it was before.
  // Which following it serves; 0: it does not. An answer counts if this is the same as it was
  // before.
  std::uint64_t Serving() const {
    return Serves() ? following_number_.load(std::memory_order_acquire) : 0;
  }
  // Another one for each time that it has begun anew.
  std::uint64_t following_number() const {
    return following_number_.load(std::memory_order_acquire);
  }
  std::uint64_t term() const {
    const MutexLock lock(mutex_);
    return term_;
  }
  bool Serves() const { return clock_.NowNs() < serves_until_ns_.load(std::memory_order_acquire); }
  // `ask` says whether values give way; it may answer later, from another thread.
  using Ask = std::function<void(const wire::ShardBarRequest&, Reply<wire::ShardBarReply>)>;
  void List(const wire::ListRequest& request, const Ask& ask, Reply<wire::ListReply> reply);
  // Errors: kStale when the token's generation is not the current one here.
  Result<std::vector<wire::Place>> Lookup(const Token& token, std::span<const Id128> hashes);
  Result<wire::ShardPage> Pull(const wire::ShardPullRequest& request);
  std::vector<wire::HeldKey> Held(const wire::ShardFindRequest& request) const;
  // TenantTags, for credentials: of the only tenant that an owner serves (0: all), and of a slot.
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
  // What one following has learned; the next one begins anew.
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
  // Empty: it was told a moment ago.
  std::vector<std::pair<SlotId, std::uint64_t>> EntriesToTell(const Following* to);
  void Begin(const wire::ShardSyncReply& reply);
  static bool Lags(const Following& to, SlotId slot, Generation generation);
  void ApplyOwners(Following& to, const wire::ShardSyncReply& reply) const;
  void ApplyRemovals(Following& to, const wire::ShardSyncReply& reply);

  const ShardReplicaOptions options_;
  const Clock& clock_;
  const Id128 process_ = RandomId();
  std::atomic<std::int64_t> serves_until_ns_{0};
  std::atomic<std::uint64_t> following_number_{0};

  mutable Mutex mutex_;
  FollowingPtr following_ KVCOVE_GUARDED_BY(mutex_);  // null: of nobody
  std::uint64_t term_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t session_ KVCOVE_GUARDED_BY(mutex_) = 0;
  wire::ShardNumber number_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t position_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t frozen_ KVCOVE_GUARDED_BY(mutex_) = 0;
  // As frozen_, in the last request; and in the last one that was answered. What was listed in the
  // frozen slices was put behind no removal that this answer does not call shown.
  std::uint64_t frozen_named_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t frozen_heard_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t loaded_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t failed_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t shown_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::uint64_t floor_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<wire::SliceState> serves_ KVCOVE_GUARDED_BY(mutex_);
  wire::ShardMove move_ KVCOVE_GUARDED_BY(mutex_);
  Directory::Slices forget_ KVCOVE_GUARDED_BY(mutex_);
  // Applied removals that the leader may not have heard of.
  std::map<std::uint64_t, std::vector<Code>> removed_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> named_ KVCOVE_GUARDED_BY(mutex_);  // of these, in the last request
  std::int64_t counted_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;       // when its entries were told
};

}  // namespace kvcove::master
