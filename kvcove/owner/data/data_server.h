// SPDX-License-Identifier: Apache-2.0
// The endpoint of an owner for other hosts and for the master's tasks, over the transport of the
// options: batches of values (DataService), small calls (pins, statistics, loads ahead),
// measurements of the way to it, and calls that may wait (inventories, copies).
//
// The transport's loops (kvcove-data) serve connections and never wait. Calls that may wait run on
// two workers of this object.
#pragma once

#include <memory>
#include <string>

#include "kvcove/base/metrics.h"
#include "kvcove/owner/owner.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/transport/pick/transports.h"

namespace kvcove::owner {

struct DataServerOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 0};
  std::size_t loops = 2;
  std::size_t max_connections = 16384;
  std::int64_t hello_ns = 5 * kSecond;   // time of a new connection to say hello
  std::int64_t stall_ns = 10 * kSecond;  // longest silence within an exchange
  bool checksum = true;                  // check values that arrive, and send checksums with values
  std::string tenant;                    // the only tenant that is served; empty: all tenants
  std::shared_ptr<rpc::Credentials> credentials;  // null: every caller may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  rpc::Access access;                             // to other owners, for copies
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
  // An engine that works as it should meets none of them; docs/security.md says how to choose.
  rpc::CallLimitsOptions limits{.tenant = {.calls_per_second = 200'000, .bytes = 16ULL << 30},
                                .all = {.bytes = 64ULL << 30}};
};

// Thread-safe.
class DataServer {
 public:
  // Opens the endpoint, which listens when this returns. `owner` outlives it. Errors: kUnavailable
  // (address in use), kInvalid, those of StartThread.
  static Result<std::unique_ptr<DataServer>> Open(Owner& owner, const DataServerOptions& options,
                                                  const Clock& clock);
  // Ends all connections, and waits until nothing can land in, or be read from, the owner's memory.
  ~DataServer();
  // Errors: kInProgress; an RDMA device does not end a transfer, for which the destructor would
  // wait.
  Status MayEnd() const;
  // Ends all connections as the destructor does, but waits for an RDMA device for so long only.
  // Errors: kInProgress; a transfer has not ended. This object and the owner must live on then,
  // until another call succeeds or the destructor has waited.
  Status EndWithin(std::int64_t most_ns);
  // Returns where it listens, with the port that was chosen.
  const rpc::Address& address() const;
  // Adds the metrics of other hosts' calls.
  void Collect(Metrics& metrics) const;
  // Returns the limits of callers, and what they use now.
  rpc::CallLimits::Stat Load() const;

 private:
  class Impl;
  explicit DataServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::owner
