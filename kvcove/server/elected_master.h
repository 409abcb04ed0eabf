// SPDX-License-Identifier: Apache-2.0
// One of several masters: a standby until etcd makes it the leader, then a `MasterServer`, and a
// standby again when it does not lead any more. docs/ha.md has the prose.
//
//   standby --campaign won, facts read--> leader --lost--> standby
//
// Its ports remain open all the time: a client that connects during a change of role waits until
// the next role answers. A leader drops all that it has in memory when it loses the leadership.
//
// One thread (kvcove-elect) campaigns, leads and changes roles. The only lock guards the request to
// stop.
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
  std::string advertise;                // address for clients; empty: where it listens
  std::optional<rpc::Address> admin;    // nothing: no admin endpoint
  std::optional<rpc::Address> metrics;  // as master::AdminOptions::metrics
  std::string announced_admin;          // address of `admin` for operators; empty: where it listens
};

// Thread-safe.
class ElectedMaster {
 public:
  // Opens a standby, which serves when this returns. Waits in the background for an etcd that does
  // not answer. Errors: kInvalid, kDenied, kIncompatible, kCorrupt, kUnavailable (an address in
  // use), those of StartThread.
  static Result<std::unique_ptr<ElectedMaster>> Open(const ElectedMasterOptions& options,
                                                     const Clock& clock);
  // Stops serving, and resigns if this master leads.
  ~ElectedMaster();

  // Return where it listens, with the ports that were chosen.
  const rpc::Address& address() const;
  const std::optional<rpc::Address>& admin() const;

 private:
  class Impl;
  explicit ElectedMaster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::server
