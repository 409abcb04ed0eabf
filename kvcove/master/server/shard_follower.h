// SPDX-License-Identifier: Apache-2.0
// Makes the calls of a ShardReplica: follows the leader, takes slices over, and asks whether values
// give way. Threads: one that follows, one worker that moves entries, one that asks.
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
  ~ShardFollower();

  // Errors: as StartThread.
  Status Start();

  // Who leads; empty: nobody.
  void Follow(const std::string& leader);
  ShardReplica& replica() { return replica_; }
  const ShardReplica& replica() const { return replica_; }
  ShardReplica::Ask ask();

 private:
  using ChannelPtr = std::shared_ptr<rpc::TcpChannel>;
  void Run();
  void SyncOnce(const ChannelPtr& leader);
  void Take(const wire::ShardMove& move, const ChannelPtr& leader);
  ChannelPtr leader() const;
  void Pause(std::int64_t duration_ns);

  const Clock& clock_;
  const rpc::Access access_;
  ShardReplica replica_;
  std::atomic<bool> stopping_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  std::string leader_ KVCOVE_GUARDED_BY(mutex_);
  ChannelPtr channel_ KVCOVE_GUARDED_BY(mutex_);  // to the leader; null: nobody leads
  std::string said_;                              // the thread's: the error that was logged last
  std::uint64_t taking_ = 0;                      // the thread's: the move that was begun last
  std::uint64_t taking_for_ = 0;                  // the thread's: ShardReplica::following_number
  rpc::Workers moves_{1};
  rpc::Workers asks_{1};
  std::thread thread_;
};

}  // namespace kvcove::master
