// SPDX-License-Identifier: Apache-2.0
// One of several masters: a standby until etcd makes it the leader, then a `MasterServer`, and a
// standby again when it does not lead any more. docs/ha.md has the prose.
//
//   standby --campaign won, facts read--> leader --lost--> standby
//
// Its two ports stay open all the time: who connects while it changes its role waits for the next
// one to answer. What a leader has in memory goes with its role.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kvcove/master/etcd/etcd_client.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/tasks.h"

namespace kvcove::server {

struct ElectedMasterOptions {
  master::MasterServerOptions server;  // without a data directory
  master::TaskOptions tasks;
  master::EtcdOptions etcd;
  std::string advertise;                // how clients reach it; empty: where it listens
  std::optional<rpc::Address> admin;    // nothing: no admin endpoint
  std::optional<rpc::Address> metrics;  // as master::AdminOptions::metrics
  std::string announced_admin;          // how operators reach that; empty: where it listens
};

// Thread-safe.
class ElectedMaster {
 public:
  // A standby serves when it returns. An etcd that does not answer is waited for; each other
  // mistake is an error: kInvalid, kDenied, kIncompatible, kCorrupt, kUnavailable (an address in
  // use).
  static Result<std::unique_ptr<ElectedMaster>> Open(const ElectedMasterOptions& options,
                                                     const Clock& clock);
  // Resigns, if it leads.
  ~ElectedMaster();

  const rpc::Address& address() const;
  const std::optional<rpc::Address>& admin() const;

 private:
  class Impl;
  explicit ElectedMaster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::server
