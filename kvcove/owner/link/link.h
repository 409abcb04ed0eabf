// SPDX-License-Identifier: Apache-2.0
// An owner's tie to the master of its cluster: a thread and a connection for each lane of
// `LinkCore`, so that no kind of call ever waits for another one.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/owner/link/lineage.h"
#include "kvcove/owner/link/link_core.h"
#include "kvcove/owner/link/outbox.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/leader.h"

namespace kvcove::owner {

struct LinkOptions {
  rpc::Addresses master;  // of which one leads
  LinkIdentity identity;
  rpc::Access access;
  std::int64_t lease_renewal_ns = 0;  // as OwnerOptions
  // Called with each answer of a master that knows this owner, by the lease's thread: it must not
  // wait. A new master, or one that this owner was cut off from, may know no registrations.
  std::function<void(std::uint64_t term)> on_heard;
  // Of the segment; null: nobody proves the end of this owner, or of the one before it.
  Lineage* lineage = nullptr;
};

class Link {
 public:
  // `outbox` is where `target` takes its listings from.
  Link(LinkTarget& target, Outbox& outbox, const LinkOptions& options, const Clock& clock);
  ~Link();
  // Errors: as StartThread; the threads that it has started end with Stop.
  Status Start();
  // Joins the threads, and keeps the lease and the master's knowledge of this owner: for Start, or
  // for a successor's process, which goes on with the state.
  void Pause();
  void Resume();
  // Does not wait for the answer.
  void RenewNow();
  void Save(StateWriter& ar) { core_.Save(ar); }
  // Before Start.
  void Load(StateReader& ar);
  const Id128& identity() const { return core_.identity().owner; }
  // Before Start.
  void SetLineage(Lineage* lineage) { options_.lineage = lineage; }
  std::set<std::uint64_t> Asked() const { return core_.Asked(); }
  // Gives the lease back. Joins the threads.
  void Stop();
  LinkCore::State state() const { return core_.state(); }

 private:
  using Lane = LinkCore::Lane;
  void Run(Lane lane);
  // Each shard of the directory but the leader's has a thread, from its first map on.
  void StartShardLanes();
  void RunShard(std::size_t number);
  Result<std::string> CallShard(std::size_t number, rpc::Client& client,
                                const LinkCore::Call& call);
  void WaitRouted(std::int64_t duration_ns);
  void Wait(Lane lane, std::int64_t duration_ns);
  // A call at `master` failed so: another one may lead. Then the other lanes follow.
  void NoteMaster(Lane lane, const rpc::Address& master, const Error& error,
                  std::int64_t waited_ns);
  // Another master leads: ends the calls that still wait for the last one.
  void EndWaits();
  // What it answered; kUnavailable and kTimeout when the connection is of no use any more.
  Result<std::string> Call(Lane lane, rpc::Client& client, const rpc::Address& master,
                           const LinkCore::Call& call);
  // An owner that had to tell everything first gets its lease as soon as it has.
  void NoteTold();
  void Tell(const Result<std::string>& reply);
  // True once the master knows that this identity is over.
  bool TellEnded(const Id128& predecessor);
  bool stopping() const;
  void Join();
  void SayGoodbye();

  LinkTarget& target_;
  Outbox& outbox_;
  LinkOptions options_;
  const Clock& clock_;
  LinkCore core_;
  rpc::LeaderFinder finder_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ KVCOVE_GUARDED_BY(mutex_) = false;
  // A call went out, so some master may know this identity.
  bool called_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool renew_now_ KVCOVE_GUARDED_BY(mutex_) = false;
  // Where each lane waits for its answer; Stop ends that. -1: nowhere.
  std::array<int, LinkCore::kLanes.size()> fds_ KVCOVE_GUARDED_BY(mutex_) = {-1, -1, -1, -1};

  std::atomic<bool> told_{false};  // what NoteTold saw

  CondVar routed_;  // a shard's lane may have something to tell
  std::array<int, wire::kMaxShards> shard_fds_ KVCOVE_GUARDED_BY(mutex_);

  // Of the lease lane: what was logged.
  bool logged_away_ = false;
  std::string logged_refused_;  // the master's reason
  LogLimit refusals_;
  Id128 identity_;
  std::uint64_t term_ = 0;

  std::array<std::thread, LinkCore::kLanes.size()> threads_;
  LogLimit refused_;
  std::array<std::thread, wire::kMaxShards> shard_threads_;  // started by the lease's
};

}  // namespace kvcove::owner
