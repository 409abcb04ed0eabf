// SPDX-License-Identifier: Apache-2.0
// How a daemon goes from one process to another (docs/upgrade.md). The running process
// *gives*, the new one *takes*; they talk over a connection to the running one's socket.
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
// A process with several daemons (--numa all) is handed over whole: files and state come once for
// each, everything else once.
//
// Until it reads "mine", the giver can go on: it kills the taker first, by pidfd, so that two never
// write. A taker that has said "loaded" and sees that the giver has died goes on, too: a giver that
// wanted to go on would have killed it.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvcove/base/carry.h"
#include "kvcove/base/clock.h"
#include "kvcove/base/priority.h"
#include "kvcove/rpc/fd_message.h"
#include "kvcove/rpc/server.h"

namespace kvcove::server {

// Of the conversation. One that the other side does not know is refused.
inline constexpr std::uint32_t kUpgradeVersion = 3;

// What must be equal on both sides, or is refused with both values.
struct UpgradeHello {
  std::uint32_t version = kUpgradeVersion;
  std::uint32_t layout = 0;  // of the memory
  std::string role;          // "serve" or "owner"
  std::uint64_t memory_bytes = 0;
  std::uint64_t max_objects = 0;
  std::string data;   // the directory of generations
  std::string disks;  // as options name them, with commas
  // In a cluster:
  std::string master;
  std::string listen;
  std::string tenant;
};
// One a daemon of the process, with an empty line between them. Errors: kCorrupt.
std::string EncodeHellos(std::span<const UpgradeHello> hellos);
Result<std::vector<UpgradeHello>> DecodeHellos(std::string_view text);
// Why `running` does not hand over to `asking`; empty: it does.
std::string Mismatch(std::span<const UpgradeHello> running, std::span<const UpgradeHello> asking);

// All that goes from one process to the other, after the files.
struct UpgradeState {
  std::vector<UniqueFd> states;  // StateWriter's files; how many, both sides know
  std::vector<std::pair<std::uint64_t, UniqueFd>> pages;  // by session
  rpc::HandedServer server;
  UniqueFd lineage;                     // in a cluster, where there is one
  UniqueFd disk_lock;                   // in a cluster, with disks
  std::vector<UniqueFd> tcp_listeners;  // in a cluster
};

enum class UpgradeStage { kHello, kFiles, kMapped, kState, kLoaded, kGo };

// One daemon of the process that gives. All calls come from the thread of Give.
class UpgradeGiver {
 public:
  virtual ~UpgradeGiver() = default;
  // What the taker may have while this process serves: the memory.
  virtual Result<std::vector<UniqueFd>> Files() = 0;
  // While calls are served: what may take long.
  virtual void Prepare() = 0;
  // No call is served after it, and none is under way. Errors: kInProgress where one does not end.
  virtual Status Quiet() = 0;
  // Only the lease goes on after it.
  virtual Status Freeze() = 0;
  // When the lease ends if nobody renews it; in a cluster nobody does while all is frozen.
  virtual std::int64_t LeaseUntilNs() const = 0;
  virtual Result<UpgradeState> Save() = 0;
  // Nobody renews the lease from here on; until when it runs.
  virtual std::int64_t StopLease() = 0;
  // As if nothing had happened; also without a Freeze, or after one that failed.
  virtual void Thaw() = 0;
};
// Talks to the taker at `socket`, whose process is `pidfd`. Ok: the taker owns all, and this
// process must end at once, touching nothing. Else it goes on, and the error says why.
Status Give(std::span<UpgradeGiver* const> givers, const UniqueFd& socket, const UniqueFd& pidfd,
            const Clock& clock);

// Answers a taker's first call, and gives on a thread of its own. Begin belongs to the server's
// loop.
class UpgradeThread {
 public:
  // `on_taken_over` does not return. Empty: nobody may take over.
  UpgradeThread(std::function<void(std::int32_t pid)> on_taken_over, const Clock& clock)
      : on_taken_over_(std::move(on_taken_over)), clock_(clock) {}
  ~UpgradeThread() { Join(); }
  void Join();

  // From the handler's call about connection `id`, which comes from process `pid` and is let in.
  // True: the connection is the server's no more.
  bool Begin(rpc::Server& server, rpc::ConnectionId id, std::int32_t pid,
             std::vector<UpgradeGiver*> givers, const rpc::Responder& respond);

 private:
  const std::function<void(std::int32_t pid)> on_taken_over_;
  const Clock& clock_;
  std::atomic<bool> runs_ = false;
  std::thread thread_;
};

// The process that takes. Belongs to one thread, which has a raised priority while puts wait.
class UpgradeTaker {
 public:
  // `on_stage` is for tests; may be empty.
  using OnStage = std::function<void(UpgradeStage)>;
  // Errors: kUnavailable when none runs there; kIncompatible and kInvalid with the reason; kDenied.
  static Result<UpgradeTaker> Begin(const std::string& socket_path,
                                    std::span<const UpgradeHello> hellos, const Clock& clock,
                                    OnStage on_stage);

  // Once for each daemon.
  Result<std::vector<UniqueFd>> ReceiveFiles(std::size_t count);
  // Everybody's files are mapped.
  Status SayMapped();
  // Once for each daemon.
  Result<UpgradeState> ReceiveState(std::size_t states);
  // Says that all is loaded. Ok: this process is the owner, as soon as it renews the lease.
  Status AwaitGo();
  // Returns when the giver has read that, or has ended: until then it may still go on, and would
  // end this process first. So nothing that this process answers to anybody is ever taken back.
  void SayMine();
  // Tells the giver why this process gives up.
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
  std::unique_ptr<RaisedPriority> raised_;  // while others wait: from SayMapped until it serves
};

}  // namespace kvcove::server
