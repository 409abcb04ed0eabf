// SPDX-License-Identifier: Apache-2.0
// Makes the calls of a ShardReplica: follows the leader, pulls the entries of slices that move to
// this shard, and asks the leader whether values may be replaced. Threads: one that follows (its
// answers are the shard's lease), one worker that moves entries, one that asks; a long move delays
// neither lease nor questions. The lock guards only which leader is followed, and no call is made
// under it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "kvcove/base/mutex.h"
#include "kvcove/base/result.h"
#include "kvcove/master/shards/shard_replica.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/workers.h"

namespace kvcove::master {

// Thread-safe.
class ShardFollower {
 public:
  // `access`: how this master calls others.
  ShardFollower(const ShardReplicaOptions& options, rpc::Access access, const Clock& clock);
  // Joins the threads: waits for their calls to other masters, 5 s at most each.
  ~ShardFollower();

  // Starts the threads. Errors: as StartThread.
  Status Start();

  // Sets the leader to follow, from the next request on; empty: nobody leads. Waits for nothing.
  void Follow(const std::string& leader);
  ShardReplica& replica() { return replica_; }
  const ShardReplica& replica() const { return replica_; }
  // Returns the function by which the replica asks the leader. The function must not be called
  // after this object's end; its reply comes from another thread, or at once with kLimit if too
  // many questions wait.
  ShardReplica::Ask ask();

 private:
  using ChannelPtr = std::shared_ptr<rpc::TcpChannel>;
  void Run();
  // Makes one request, which the leader holds until it has news, and applies the answer.
  void SyncOnce(const ChannelPtr& leader);
  // Pulls the entries of a move, on the worker: from its giver, or from the leader that named it.
  void Take(const wire::ShardMove& move, const ChannelPtr& leader);
  ChannelPtr leader() const;
  // Waits, unless this object ends or another leader is set.
  void Pause(std::int64_t duration_ns);

  const Clock& clock_;
  const rpc::Access access_;
  ShardReplica replica_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::string leader_ KVCOVE_GUARDED_BY(mutex_);
  ChannelPtr channel_ KVCOVE_GUARDED_BY(mutex_);  // to the leader; null: nobody leads
  // Only the following thread uses these.
  std::string said_;              // the error that was logged last
  std::uint64_t taking_ = 0;      // the move that was begun last
  std::uint64_t taking_for_ = 0;  // ShardReplica::following_number at that time
  rpc::Workers moves_{1};
  rpc::Workers asks_{1};
  std::thread thread_;
};

}  // namespace kvcove::master
