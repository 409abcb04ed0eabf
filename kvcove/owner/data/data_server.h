// SPDX-License-Identifier: Apache-2.0
// The endpoint of an owner for other hosts: batches of values through `DataService`, and small
// calls (pins, statistics, inventories, copies for the master's tasks), over the transport of the
// options.
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
  std::int64_t hello_ns = 5 * kSecond;   // to say hello
  std::int64_t stall_ns = 10 * kSecond;  // without a byte in the middle of an exchange
  bool checksum = true;                  // checks what arrives, and sends checksums along
  std::string tenant;                    // the only one that is served; empty: all
  std::shared_ptr<rpc::Credentials> credentials;
  std::shared_ptr<rpc::Tls> tls;  // null: in the clear
  rpc::Access access;             // to other owners, for copies
  kvcove::transport::Transport* transport = &kvcove::transport::Preferred();
  // No engine that works as it should meets them; docs/security.md says how to choose others.
  rpc::CallLimitsOptions limits{.tenant = {.calls_per_second = 200'000, .bytes = 16ULL << 30},
                                .all = {.bytes = 64ULL << 30}};
};

// Thread-safe.
class DataServer {
 public:
  // Listens when it returns. Errors: kUnavailable, kInvalid.
  static Result<std::unique_ptr<DataServer>> Open(Owner& owner, const DataServerOptions& options,
                                                  const Clock& clock);
  // Waits until nothing can land in, or be read from, the owner's memory.
  ~DataServer();
  const rpc::Address& address() const;
  void Collect(Metrics& metrics) const;
  rpc::CallLimits::Stat Load() const;

 private:
  class Impl;
  explicit DataServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::owner
