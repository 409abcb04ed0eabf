// SPDX-License-Identifier: Apache-2.0
// The leader's admin endpoint: what operators and `kvcove admin` ask of it over HTTP, and the port
// for metrics alone. docs/operating.md lists the paths. Requests run on the threads of
// http::Server; the answers need no lock of their own, because MasterServer and Tasks are
// thread-safe.
#pragma once

#include <memory>
#include <optional>

#include "kvcove/http/server.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/rpc/access.h"

namespace kvcove::master {

// Returns the methods and paths that only a leader answers; a standby answers them with the
// leader's address.
std::vector<std::pair<std::string, std::string>> LeaderPaths();

struct AdminOptions {
  std::optional<rpc::Address> listen;   // not set: no admin endpoint
  std::optional<rpc::Address> metrics;  // a port for monitoring alone, with TLS where there is any
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
};

// Serves those of the routes that need no credential or are for monitoring: /metrics, /healthz,
// /readyz. Listens when it returns, and writes the chosen port to `address`. Errors: kUnavailable
// (the address is in use), kInvalid.
Result<std::unique_ptr<http::Server>> ServeMetrics(rpc::Address& address,
                                                   std::shared_ptr<rpc::Credentials> credentials,
                                                   std::shared_ptr<rpc::Tls> tls,
                                                   const std::vector<http::Route>& routes);

// Thread-safe.
class Admin {
 public:
  // Serves when it returns. `cluster` and `tasks` outlive it. Errors: kUnavailable (an address is
  // in use), kInvalid.
  static Result<std::unique_ptr<Admin>> Open(MasterServer& cluster, Tasks& tasks,
                                             const AdminOptions& options, const Clock& clock);
  // Return the addresses with the chosen ports; defaults where AdminOptions names none.
  const rpc::Address& address() const { return address_; }
  const rpc::Address& metrics_address() const { return metrics_address_; }

 private:
  Admin() = default;
  rpc::Address address_;
  rpc::Address metrics_address_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<http::Server> metrics_;
};

}  // namespace kvcove::master
