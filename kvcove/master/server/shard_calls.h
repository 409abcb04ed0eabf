// SPDX-License-Identifier: Apache-2.0
// The calls of the leader to the shards of its directory: what they know of keys, and the entries
// of slices that come back to the leader. docs/ha.md has the prose.
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

// Asks `giver` for the entries of a move, page by page. `load` is false when the move is over. The
// giver may hear of the move a little later than its taker, and is asked again until then.
Status PullMove(const wire::ShardMove& move, std::uint64_t term, rpc::TcpChannel& giver,
                const std::function<bool(const wire::ShardPage&)>& load, const Clock& clock);

// Thread-safe. One thread of its own, which moves entries.
class ShardCalls {
 public:
  // `master` outlives it.
  ShardCalls(Master& master, rpc::Access access, const Clock& clock)
      : master_(master), access_(std::move(access)), clock_(clock) {}
  ~ShardCalls() { stopping_ = true; }
  // Errors: as StartThread.
  Status Start() { return workers_.Start(); }

  using Key = std::pair<SlotId, Id128>;
  struct Found {
    std::vector<wire::HeldKey> keys;  // one for each that was asked for
    std::string away;                 // why some are kShardAway; empty: none is
  };
  // Of the whole directory: waits for other masters, each until `deadline_ns` at most.
  Found Find(std::span<const Key> keys, std::int64_t deadline_ns);

  // Every few milliseconds: takes what is to come back to the leader.
  void Tick();

 private:
  using ChannelPtr = std::shared_ptr<rpc::TcpChannel>;
  // Which of the keys are whose.
  std::map<wire::ShardNumber, std::vector<std::size_t>> Split(std::span<const Key> keys,
                                                              const std::vector<std::size_t>& which,
                                                              const wire::ShardMap* map) const;
  Result<std::vector<wire::HeldKey>> Ask(const std::string& address, std::span<const Key> keys,
                                         std::int64_t deadline_ns);
  Result<ChannelPtr> ChannelTo(const std::string& address);
  void Take(const wire::ShardMove& move);

  Master& master_;
  const rpc::Access access_;
  const Clock& clock_;
  std::atomic<bool> stopping_{false};
  std::uint64_t taking_ = 0;  // the ticking thread's: the move that was begun last
  Mutex mutex_;
  std::map<std::string, ChannelPtr> channels_ KVCOVE_GUARDED_BY(mutex_);  // by address
  rpc::Workers workers_{1};
};

}  // namespace kvcove::master
