// SPDX-License-Identifier: Apache-2.0
// What an operator asks a master over HTTP, and `kvcove admin` with him. docs/operating.md lists
// the paths.
#pragma once

#include <memory>
#include <optional>

#include "kvcove/http/server.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/tasks.h"
#include "kvcove/rpc/access.h"

namespace kvcove::master {

// Methods and paths that only a leader answers; a standby says who leads.
std::vector<std::pair<std::string, std::string>> LeaderPaths();

struct AdminOptions {
  std::optional<rpc::Address> listen;   // nothing: no admin endpoint
  std::optional<rpc::Address> metrics;  // a port for monitoring alone, with TLS where there is any
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
};

// /metrics and what is open, of these routes. Listens at `address`, and gives it its port. Errors:
// kUnavailable, kInvalid.
Result<std::unique_ptr<http::Server>> ServeMetrics(rpc::Address& address,
                                                   std::shared_ptr<rpc::Credentials> credentials,
                                                   std::shared_ptr<rpc::Tls> tls,
                                                   const std::vector<http::Route>& routes);

// Thread-safe.
class Admin {
 public:
  // Serves when it returns. `cluster` and `tasks` outlive it. Errors: kUnavailable, kInvalid.
  static Result<std::unique_ptr<Admin>> Open(MasterServer& cluster, Tasks& tasks,
                                             const AdminOptions& options, const Clock& clock);
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
