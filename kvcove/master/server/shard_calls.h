// SPDX-License-Identifier: Apache-2.0
// The leader's calls to the shards of its directory: looks up keys there, and pulls the entries of
// slices that move back to the leader. `Shards` decides which slices move; this class waits for
// other masters in its place. docs/ha.md has the prose. One worker thread, which moves entries.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/master.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/workers.h"

namespace kvcove::master {

// Asks `giver` for the entries of a move, page by page, and passes each page to `load`, which
// returns false when the move is over. The giver may learn of the move later than its taker, so for
// 5 s kStale is asked again; before each repetition `load` gets an empty page that is not `done`.
// Returns Ok also for a move that is over. Errors: kCorrupt, and those of the calls, 5 s each.
Status PullMove(const wire::ShardMove& move, std::uint64_t term, rpc::TcpChannel& giver,
                const std::function<bool(const wire::ShardPage&)>& load, const Clock& clock);

// Thread-safe, but for Tick: one thread calls it.
class ShardCalls {
 public:
  // `master` outlives this object. `access`: how this master calls others.
  ShardCalls(Master& master, rpc::Access access, const Clock& clock)
      : master_(master), access_(std::move(access)), clock_(clock) {}
  // Joins the worker: waits for its call to another master, 5 s at most each.
  ~ShardCalls() { stopping_ = true; }
  // Starts the worker. Errors: as StartThread.
  Status Start() { return workers_.Start(); }

  using Key = std::pair<SlotId, Id128>;
  struct Found {
    std::vector<wire::HeldKey> keys;  // in the order of the call
    std::string away;                 // why some are kShardAway; empty: none is
  };
  // Looks keys up in the whole directory. Waits for other masters, one after the other, until
  // `deadline_ns` at most. A key whose shard does not answer is a miss with kShardAway.
  Found Find(std::span<const Key> keys, std::int64_t deadline_ns);

  // Counts the owners of these keys, a prefix, in the whole directory; waits as Find does.
  void CountPrefix(SlotId slot, std::span<const Id128> hashes, std::int64_t deadline_ns,
                   PrefixCount& count);

  // Begins to pull the slices that move to the leader, if a new move wants that. Call it every few
  // milliseconds.
  void Tick();

 private:
  using ChannelPtr = std::shared_ptr<rpc::TcpChannel>;
  // Each counts the next part of a prefix: in this master's directory, or at all shards.
  void CountOwn(SlotId slot, std::span<const Id128> hashes, PrefixCount& count);
  void CountHeld(SlotId slot, std::span<const Id128> hashes, std::int64_t deadline_ns,
                 PrefixCount& count);
  // Groups the keys at `which` by shard; a null map: all are the leader's.
  std::map<wire::ShardNumber, std::vector<std::size_t>> Split(std::span<const Key> keys,
                                                              const std::vector<std::size_t>& which,
                                                              const wire::ShardMap* map) const;
  // Asks one shard. Errors: those of the call, kCorrupt.
  Result<std::vector<wire::HeldKey>> Ask(const std::string& address, std::span<const Key> keys,
                                         std::int64_t deadline_ns);
  // Returns the channel to a master, without connecting. Errors: kInvalid for the address.
  Result<ChannelPtr> ChannelTo(const std::string& address);
  // Pulls the entries of a move, on the worker.
  void Take(const wire::ShardMove& move);

  Master& master_;
  const rpc::Access access_;
  const Clock& clock_;
  std::atomic<bool> stopping_{false};
  std::uint64_t taking_ = 0;  // the move that was begun last; only Tick uses it
  Mutex mutex_;
  std::map<std::string, ChannelPtr> channels_ KVCOVE_GUARDED_BY(mutex_);  // by address
  rpc::Workers workers_{1};
};

}  // namespace kvcove::master
