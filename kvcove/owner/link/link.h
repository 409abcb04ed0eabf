// SPDX-License-Identifier: Apache-2.0
// An owner's link to the master of its cluster: a thread and a connection for each lane of
// `LinkCore`, so that no kind of call waits for another one.
//
//   created -> running (Start) -> stopped (Stop: the lease is ended at the master)
//                ^--> paused (Pause), while a successor's process takes over; Resume undoes it
//
//   created -> loaded (Load: another process's lease; Stop does nothing) -> running (Start)
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
  rpc::Addresses master;  // one of them leads
  LinkIdentity identity;
  rpc::Access access;
  std::int64_t lease_renewal_ns = 0;  // as OwnerOptions
  // Called with each answer of a master that knows this owner, by the lease's thread: it must not
  // wait. A new master, or one that was unreachable for long, may not know the engines'
  // registrations.
  std::function<void(std::uint64_t term)> on_heard;
  // The segment's lineage; null: the end of this owner, or of an earlier one here, has no proof.
  Lineage* lineage = nullptr;
};

// Thread-safe, but for Start, Pause, Resume, Load, SetLineage and Stop: call these one at a time.
class Link {
 public:
  // `outbox`: the queue from which `target` takes its listings. All outlive the link.
  Link(LinkTarget& target, Outbox& outbox, const LinkOptions& options, const Clock& clock);
  ~Link();
  // Starts the threads. Errors: those of StartThread; threads that run already end with Stop.
  Status Start();
  // Joins the threads without a goodbye: the lease and the epoch remain valid, for Resume or for a
  // successor's process, which continues with the state.
  void Pause();
  void Resume();
  // Lets the lease's lane renew at once. Does not wait for the answer.
  void RenewNow();
  void Save(StateWriter& ar) { core_.Save(ar); }
  // Before Start. Until then the lease is the other process's, which continues if the take-over
  // fails: Stop and the destructor end nothing.
  void Load(StateReader& ar);
  const Id128& identity() const { return core_.identity().owner; }
  // Before Start.
  void SetLineage(Lineage* lineage) { options_.lineage = lineage; }
  std::set<std::uint64_t> Asked() const { return core_.Asked(); }
  // Draws the opening of the clean end, joins the threads, ends the lease and says goodbye to the
  // master: waits 500 ms at most for it, and as long for a data directory.
  void Stop();
  LinkCore::State state() const { return core_.state(); }

 private:
  using Lane = LinkCore::Lane;
  void Run(Lane lane);
  // `limit_ns`: of this attempt, and then of the next one. Errors: those of rpc::Client::Connect.
  Result<rpc::Client> Connect(const rpc::Address& master, std::int64_t& limit_ns);
  // Starts the thread of each shard but the leader's, once the map has an address for it.
  void StartShardLanes();
  void RunShard(std::size_t number);
  Result<std::string> CallShard(std::size_t number, rpc::Client& client,
                                const LinkCore::Call& call);
  void WaitRouted(std::int64_t duration_ns);
  void Wait(Lane lane, std::int64_t duration_ns);
  // Notes that a call to `master` failed: another one may lead. If so, the other lanes' calls end,
  // and they follow.
  void NoteMaster(Lane lane, const rpc::Address& master, const Error& error,
                  std::int64_t waited_ns);
  // Ends the calls that still wait for a former master.
  void EndWaits();
  // Returns the master's answer; kUnavailable and kTimeout when the connection is broken.
  Result<std::string> Call(Lane lane, rpc::Client& client, const rpc::Address& master,
                           const LinkCore::Call& call);
  // Renews the lease at once when the inventory is reported: an owner that had to report everything
  // first gets its lease then.
  void NoteReported();
  void NoteReply(const Result<std::string>& reply);
  // Reports that `predecessor` has ended. True once the master knows; false: not within 1 s.
  bool ReportEnded(const Id128& predecessor);
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
  // A call was sent, so some master may know this identity.
  bool called_ KVCOVE_GUARDED_BY(mutex_) = false;
  bool renew_now_ KVCOVE_GUARDED_BY(mutex_) = false;
  // The connections on which lanes wait for answers; Join and EndWaits shut these down. -1: none.
  std::array<int, LinkCore::kLanes.size()> fds_ KVCOVE_GUARDED_BY(mutex_) = {-1, -1, -1, -1};

  std::atomic<bool> reported_{false};  // LinkCore::State::reported at the last NoteReported

  CondVar routed_;  // notified when a shard's lane may have entries to report
  std::array<int, wire::kMaxShards> shard_fds_ KVCOVE_GUARDED_BY(mutex_);

  // Only the lease's thread uses these: the state that was logged last.
  bool logged_away_ = false;
  std::string logged_refused_;  // the master's reason
  LogLimit refusals_;
  Id128 identity_;
  std::uint64_t term_ = 0;

  std::array<std::thread, LinkCore::kLanes.size()> threads_;
  LogLimit refused_;
  std::array<std::thread, wire::kMaxShards> shard_threads_;  // started by the lease's thread
};

}  // namespace kvcove::owner
