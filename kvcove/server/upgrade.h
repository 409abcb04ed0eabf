// SPDX-License-Identifier: Apache-2.0
// The conversation by which the daemons of one process are handed over to another one
// (docs/upgrade.md). The running process *gives*, the new one *takes*; they talk over a connection
// to the running one's socket.
//
//   takes                          gives                            who owns
//   hello (versions, sizes)  --->  refuses with the reason, or:     old
//                            <---  files                            old
//   maps them; "mapped"      --->  ends what is under way, freezes, old (its lease goes on)
//                                  saves its state
//                            <---  state, sessions, connections     old
//   loads; "loaded"          --->  renews the lease a last time     old
//                            <---  "go"                             nobody writes
//   renews the lease; "mine" --->                                  new, once it is read
//                            <---  "yours", and ends
//   serves
//
// A process with several daemons (--numa all) is handed over whole: files and state are sent once
// for each daemon, everything else once.
//
// Until it reads "mine", the giver can continue as the owner. It first kills the taker by pidfd and
// waits for its end, so that two processes never write. A taker that has said "loaded" and then
// sees that the giver has ended takes over, too: a giver that wanted to continue would have killed
// it. Each wait of the giver has a deadline, and ends before a lease that nobody renews.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/host/priority.h"
#include "kvcove/rpc/fd_message.h"
#include "kvcove/rpc/server.h"

namespace kvcove::server {

// Version of the conversation; another one is refused.
inline constexpr std::uint32_t kUpgradeVersion = 4;

// Properties that must be equal on both sides; a difference is refused, with both values.
struct UpgradeHello {
  std::uint32_t version = kUpgradeVersion;
  std::uint32_t layout = 0;  // of the memory
  std::string role;          // "serve" or "owner"
  std::uint64_t memory_bytes = 0;
  std::uint64_t max_objects = 0;
  std::string data;   // directory of the generations
  std::string disks;  // as the options name them, with commas
  // ---- in a cluster, else empty
  std::string master;
  std::string listen;
  std::string tenant;
};
// Write and read the hellos of a process, one for each daemon, with an empty line between them.
// Errors: kCorrupt.
std::string EncodeHellos(std::span<const UpgradeHello> hellos);
Result<std::vector<UpgradeHello>> DecodeHellos(std::string_view text);
// Returns why `running` does not hand over to `asking`; empty: it does.
std::string Mismatch(std::span<const UpgradeHello> running, std::span<const UpgradeHello> asking);

// State of one daemon, which follows its files.
struct UpgradeState {
  std::vector<UniqueFd> states;  // files of StateWriter; both sides know their number
  std::vector<std::pair<std::uint64_t, UniqueFd>> pages;  // by session
  rpc::HandedServer server;
  UniqueFd lineage;                     // in a cluster, where there is one
  UniqueFd disk_lock;                   // in a cluster, with disks
  std::vector<UniqueFd> tcp_listeners;  // in a cluster
};

enum class UpgradeStage { kHello, kFiles, kMapped, kState, kLoaded, kGo };

// One daemon of the process that gives. Give calls Files, Prepare, Quiet, Freeze, Save and
// StopLease in this order, each for all daemons before the next, from one thread; and Thaw if it
// fails after Prepare.
class UpgradeGiver {
 public:
  virtual ~UpgradeGiver() = default;
  // Returns copies of the files of the memory, which the taker maps while this process serves.
  virtual Result<std::vector<UniqueFd>> Files() = 0;
  // Does the parts of the hand-over that may take long, while calls are still served.
  virtual void Prepare() = 0;
  // Stops serving calls, and waits for those under way. Errors: kInProgress where one does not end.
  virtual Status Quiet() = 0;
  // Stops everything but the lease.
  virtual Status Freeze() = 0;
  // Returns when the lease ends if nobody renews it. In a cluster nobody does after Freeze.
  virtual std::int64_t LeaseUntilNs() const = 0;
  // Writes the state. The daemon must be frozen.
  virtual Result<UpgradeState> Save() = 0;
  // Stops renewing the lease; returns when it ends.
  virtual std::int64_t StopLease() = 0;
  // Undoes all of this: the daemon serves again. Also without a Freeze, or after one that failed.
  virtual void Thaw() = 0;
};
// Hands all daemons over to the taker at `socket`, whose process is `pidfd`. Ok: the taker owns
// everything, and this process must end at once, without touching anything. Error: this process
// serves again, and the error says why.
Status Give(std::span<UpgradeGiver* const> givers, const UniqueFd& socket, const UniqueFd& pidfd,
            const Clock& clock);

// Answers the first call of a taker, and gives on a thread of its own (kvcove-upgrade). Begin
// belongs to the server's loop, Join to the owner of this object.
class UpgradeThread {
 public:
  // `on_taken_over` is called on the thread and does not return. Empty: nobody may take over.
  UpgradeThread(std::function<void(std::int32_t pid)> on_taken_over, const Clock& clock)
      : on_taken_over_(std::move(on_taken_over)), clock_(clock) {}
  ~UpgradeThread() { Join(); }
  // Waits for a hand-over that is under way.
  void Join();

  // Begins a hand-over to process `pid`, which is let in, over connection `id`. Called from the
  // handler's call about that connection; answers it. True: the connection does not belong to the
  // server any more.
  bool Begin(rpc::Server& server, rpc::ConnectionId id, std::int32_t pid,
             std::vector<UpgradeGiver*> givers, const rpc::Responder& respond);

 private:
  const std::function<void(std::int32_t pid)> on_taken_over_;
  const Clock& clock_;
  std::atomic<bool> runs_ = false;  // a hand-over is under way; one at a time
  std::thread thread_;
};

// The conversation at the process that takes. Belongs to one thread, which has a raised priority
// from SayMapped to the end of this object: puts wait meanwhile.
class UpgradeTaker {
 public:
  // `on_stage` is for tests; may be empty.
  using OnStage = std::function<void(UpgradeStage)>;
  // Asks the process that serves `socket_path` to hand over. Errors: kUnavailable when none serves
  // there; kIncompatible and kInvalid with the reason; kDenied.
  static Result<UpgradeTaker> Begin(const std::string& socket_path,
                                    std::span<const UpgradeHello> hellos, const Clock& clock,
                                    OnStage on_stage);

  // Receives the `count` files of one daemon; call it once for each.
  Result<std::vector<UniqueFd>> ReceiveFiles(std::size_t count);
  // Says that the files of all daemons are mapped.
  Status SayMapped();
  // Receives the state of one daemon, with `states` files; call it once for each.
  Result<UpgradeState> ReceiveState(std::size_t states);
  // Says that all is loaded, and waits for "go". Ok: this process is the owner as soon as it renews
  // the lease; also where the giver has ended.
  Status AwaitGo();
  // Says that this process owns the memory, and waits until the giver has read that or has ended:
  // until then the giver may still kill this process and continue. So no answer of this process is
  // ever taken back.
  void SayMine();
  // Reports to the giver why this process gives up.
  void SayFailed(const Error& error);
  std::int32_t giver_pid() const { return pid_; }

 private:
  UpgradeTaker(UniqueFd socket, std::int32_t pid, const Clock& clock, OnStage on_stage)
      : socket_(std::move(socket)), pid_(pid), clock_(&clock), on_stage_(std::move(on_stage)) {}
  void Reach(UpgradeStage stage) const {
    if (on_stage_) on_stage_(stage);
  }
  Result<rpc::FdMessage> Receive(std::string_view wanted, std::int64_t wait_ns);
  Status ReceiveFds(std::vector<UniqueFd>& fds, std::size_t count);

  UniqueFd socket_;
  std::int32_t pid_ = 0;
  const Clock* clock_;
  OnStage on_stage_;
  std::unique_ptr<RaisedPriority> raised_;  // null before SayMapped
};

}  // namespace kvcove::server
