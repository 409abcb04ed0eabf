// SPDX-License-Identifier: Apache-2.0
// `kvcove serve`: one host's pool as a daemon on a Unix socket.
#pragma once

#include <memory>
#include <string>

#include "kvcove/pool/local_host.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::pool {

struct DaemonOptions {
  LocalHostOptions host;
  // Not opened by an owner that several tenants share.
  std::string socket_path;
  // Whose processes may connect there besides this user's.
  rpc::UnixAccess unix_access;
};

class Daemon {
 public:
  // Listens when it returns. Errors: kInvalid, kUnavailable (socket or data directory in use),
  // kIncompatible.
  static Result<std::unique_ptr<Daemon>> Open(const DaemonOptions& options, const Clock& clock);
  // Stops: no new calls, sockets closed and removed, the lease ended, the end written down.
  ~Daemon();

  LocalHost& host();
  // No connection attends it (wire::Attendance), and none has for 1 s, or for 10 s from the start.
  // Thread-safe.
  bool Unattended() const;

 private:
  class Impl;
  explicit Daemon(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::pool
