// SPDX-License-Identifier: Apache-2.0
// `kvcove serve`: one host's pool as a daemon on a Unix socket.
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
  // Whose processes may connect there besides this user's.
  rpc::UnixAccess unix_access;
  // From the process that serves `socket_path` now, which ends then (docs/upgrade.md): see
  // OpenDaemons.
  bool take_over = false;
  // Another process has taken over. Called on a thread of its own; must end this process without
  // touching anything else: its memory, files and sockets are the other one's. Empty: no process
  // may take over.
  std::function<void(std::int32_t pid)> on_taken_over;
  std::function<void(UpgradeStage)> on_stage;  // of taking over; for tests
  // Several tenants use its memory. A mapping would show them all of it, so nobody gets one.
  bool Shared() const {
    return host.cluster && host.cluster->credentials != nullptr && host.cluster->tenant.empty();
  }
};

class Daemon {
 public:
  // Listens when it returns. Errors: kInvalid, kUnavailable (socket or data directory in use),
  // kIncompatible.
  static Result<std::unique_ptr<Daemon>> Open(const DaemonOptions& options, const Clock& clock);
  // The same, without listening; then that. Of several owners none may be found before all have
  // their disks open: a removal asks all of them, and a put looks whether any has the key.
  static Result<std::unique_ptr<Daemon>> Make(const DaemonOptions& options, const Clock& clock);
  Status Listen();
  // Stops: no new calls, sockets closed and removed, the lease ended, the end written down.
  ~Daemon();
  // All of the process that serves `options.front().socket_path`, or none; grouped. Errors: as
  // UpgradeTaker::Begin, and what does not fit.
  static Result<std::vector<std::unique_ptr<Daemon>>> TakeOver(
      const std::vector<DaemonOptions>& options, const Clock& clock);
  // Those of one process, in their order, once each listens: from now on a successor can take them
  // over, all together.
  static void Group(const std::vector<std::unique_ptr<Daemon>>& daemons);

  pool::LocalHost& host();
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
