// SPDX-License-Identifier: Apache-2.0
// The daemon of `kvcove serve`, `owner` and `run`: it offers one owner (LocalHost) to the processes
// of its host over a Unix socket. It grants sessions with mappings of the memory, ends the sessions
// of processes that have died, and hands the owner over to a successor's process.
//
// Connections and sessions belong to the server's event loop (kvcove-rpc). Calls that may wait run
// on workers; an upgrade runs on a thread of its own (kvcove-upgrade).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcove/pool/local_host.h"
#include "kvcove/rpc/unix_access.h"
#include "kvcove/server/upgrade.h"

namespace kvcove::server {

struct DaemonOptions {
  pool::LocalHostOptions host;
  // Not opened by an owner that several tenants share.
  std::string socket_path;
  // The users that may connect, besides this process's user.
  rpc::UnixAccess unix_access;
  // Takes over from the process that serves `socket_path`, which then ends (docs/upgrade.md): see
  // OpenDaemons.
  bool take_over = false;
  // Called on kvcove-upgrade when process `pid` has taken over. Must end this process and touch
  // nothing else: memory, files and sockets belong to the other process. Empty: no process may take
  // over.
  std::function<void(std::int32_t pid)> on_taken_over;
  std::function<void(UpgradeStage)> on_stage;  // called as a take-over proceeds; for tests
  // Returns whether several tenants use the memory. A mapping would show each of them all values,
  // so no process gets one.
  bool Shared() const {
    return host.cluster && host.cluster->credentials != nullptr && host.cluster->tenant.empty();
  }
};

// Belongs to one thread, but for the functions that say otherwise.
class Daemon {
 public:
  // Opens the owner and listens. Errors: kInvalid, kUnavailable (socket or data directory in use),
  // kIncompatible.
  static Result<std::unique_ptr<Daemon>> Open(const DaemonOptions& options, const Clock& clock);
  // Make opens the owner, Listen opens the socket. With several owners, no Listen may come before
  // each owner's disks are open: a removal asks all owners, and a put looks whether any has the
  // key.
  static Result<std::unique_ptr<Daemon>> Make(const DaemonOptions& options, const Clock& clock);
  Status Listen();
  // Ends calls and sessions, closes and removes the socket, ends the lease and records a clean end.
  ~Daemon();
  // Takes over all daemons of the process that serves `options.front().socket_path`, or none.
  // Returns them serving and grouped. Errors: as UpgradeTaker::Begin; kIncompatible for a state
  // that this build cannot read.
  static Result<std::vector<std::unique_ptr<Daemon>>> TakeOver(
      const std::vector<DaemonOptions>& options, const Clock& clock);
  // Groups all daemons of this process, in their order, once each listens: from now on a successor
  // can take them over, all together.
  static void Group(const std::vector<std::unique_ptr<Daemon>>& daemons);

  pool::LocalHost& host();
  // Run what an operator asks for where the calls of sessions run, so that none is under way while
  // the owner is handed over: changes of generations, and what walks over all objects. False: too
  // many are waiting. Thread-safe, once the daemon listens.
  bool PostControl(std::function<void()> call);
  bool PostWalk(std::function<void()> call);
  // No connection attends it (wire::Attendance), and none has for 1 s, or for 10 s from the start.
  // Thread-safe.
  bool Unattended() const;

 private:
  class Impl;
  struct Taking;
  static Result<pool::LocalHostOptions> HostOptionsOf(const DaemonOptions& options);
  static Result<Taking> PrepareTaking(const DaemonOptions& options);
  static Status Take(UpgradeTaker& taker, std::vector<Taking>& all, const Clock& clock);
  static Status Load(Taking& taking, UpgradeState state, const Clock& clock);
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::server
