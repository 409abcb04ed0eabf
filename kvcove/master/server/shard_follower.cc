// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/shard_follower.h"

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/master/server/shard_calls.h"

namespace kvcove::master {
namespace {

// For an answer. The leader holds a request without news for ShardsOptions::hold_ns, far less.
constexpr std::int64_t kSyncNs = kSecond;
constexpr std::int64_t kAskNs = kSecond;
constexpr std::int64_t kFollowPauseNs = 50 * kMillisecond;

}  // namespace

ShardFollower::ShardFollower(const ShardReplicaOptions& options, rpc::Access access,
                             const Clock& clock)
    : clock_(clock), access_(std::move(access)), replica_(options, clock) {}

Status ShardFollower::Start() {
  KVCOVE_TRY(moves_.Start());
  KVCOVE_TRY(asks_.Start());
  KVCOVE_ASSIGN(thread_, StartThread("kvcove-follow", [this] { Run(); }));
  return {};
}

ShardFollower::~ShardFollower() {
  stopping_ = true;
  {
    // Under the lock, though `stopping_` is atomic: Pause checks it under the lock, so the
    // notification cannot fall between its check and its wait.
    const MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  JoinIfStarted(thread_);
}

void ShardFollower::Follow(const std::string& leader) {
  // Made before the lock; it connects with its first call.
  ChannelPtr channel;
  if (const auto address = rpc::ParseAddress(leader, 7400); !leader.empty() && address) {
    channel = std::make_shared<rpc::TcpChannel>(*address, access_);
  }
  const MutexLock lock(mutex_);
  if (leader == leader_) return;
  leader_ = leader;
  channel_ = std::move(channel);
  changed_.NotifyAll();
}

ShardFollower::ChannelPtr ShardFollower::leader() const {
  const MutexLock lock(mutex_);
  return channel_;
}

void ShardFollower::Pause(std::int64_t duration_ns) {
  const MutexLock lock(mutex_);
  if (!stopping_) changed_.WaitFor(mutex_, std::chrono::nanoseconds(duration_ns));
}

void ShardFollower::Run() {
  while (!stopping_) {
    if (const ChannelPtr channel = leader(); channel != nullptr) {
      SyncOnce(channel);
    } else {
      Pause(kFollowPauseNs);
    }
  }
}

void ShardFollower::SyncOnce(const ChannelPtr& leader) {
  // The lease counts from here. The leader counts from its answer, which is later, so this shard
  // stops to serve before the leader takes the lease for ended.
  const wire::ShardSyncRequest request = replica_.NextSync();
  const std::int64_t sent_ns = clock_.NowNs();
  const auto body = leader->Call(wire::Method::kShardSync, wire::AsBytes(wire::Encode(request)),
                                 sent_ns + kSyncNs);
  const auto reply = body ? wire::DecodeShardSyncReply(wire::AsBytes(*body))
                          : Result<wire::ShardSyncReply>(std::unexpected(body.error()));
  if (!reply) {
    const std::string& why = reply.error().detail;
    if (said_ != why) LogDebug("this shard does not follow: {}", reply.error().ToString());
    said_ = why;
    return Pause(kFollowPauseNs);
  }
  said_.clear();
  replica_.Apply(*reply, sent_ns);
  replica_.Tick();
  const wire::ShardMove wanted = replica_.Wanted();
  // A new following may be one of another leader, which counts moves from 1 again.
  if (replica_.following_number() != taking_for_) taking_ = 0;
  taking_for_ = replica_.following_number();
  if (wanted.id <= taking_) {
    // On the worker: it may not run at the same time as a load, which may take the same slices.
    if (replica_.Forgets()) (void)moves_.Post([this] { replica_.Forget(); });
    return;
  }
  taking_ = wanted.id;
  (void)moves_.Post([this, wanted, leader] { Take(wanted, leader); });
}

void ShardFollower::Take(const wire::ShardMove& move, const ChannelPtr& leader) {
  replica_.BeginLoad(move);
  // Not leader(): a move that the former leader named means nothing to the next one.
  ChannelPtr giver = leader;
  if (!move.address.empty()) {
    const auto address = rpc::ParseAddress(move.address, 7400);
    if (!address) return replica_.LoadFailed(move.id);
    giver = std::make_shared<rpc::TcpChannel>(*address, access_);
  }
  const auto load = [&](const wire::ShardPage& page) {
    if (stopping_ || replica_.Wanted().id != move.id) return false;
    replica_.Load(move.id, page);
    return true;
  };
  const Status pulled = PullMove(move, replica_.term(), *giver, load, clock_);
  if (!pulled) {
    LogWarn("{} slices of the directory cannot be taken over from {}: {}", move.slices.size(),
            move.address.empty() ? "the leader" : move.address, pulled.error().ToString());
    replica_.LoadFailed(move.id);
  }
}

ShardReplica::Ask ShardFollower::ask() {
  return [this](const wire::ShardBarRequest& request, const Reply<wire::ShardBarReply>& reply) {
    const bool posted = asks_.Post([this, request, reply] {
      const ChannelPtr channel = leader();
      if (stopping_ || channel == nullptr) {
        return reply(Fail(Code::kUnavailable, "nobody leads"));
      }
      const auto body = channel->Call(wire::Method::kShardBar, wire::AsBytes(wire::Encode(request)),
                                      clock_.NowNs() + kAskNs);
      if (!body) return reply(std::unexpected(body.error()));
      reply(wire::DecodeShardBarReply(wire::AsBytes(*body), request.values.size()));
    });
    if (!posted) reply(Fail(Code::kLimit, "too many questions wait for the leader"));
  };
}

}  // namespace kvcove::master
