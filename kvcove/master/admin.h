// SPDX-License-Identifier: Apache-2.0
// What an operator asks a master over HTTP, and `kvcove admin` with him. docs/operating.md lists
// the paths.
#pragma once

#include <memory>

#include "kvcove/http/server.h"
#include "kvcove/master/server.h"
#include "kvcove/master/tasks.h"

namespace kvcove::master {

// Methods and paths that only a leader answers; a standby says who leads.
std::vector<std::pair<std::string, std::string>> LeaderPaths();

struct AdminOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 7480};
  std::shared_ptr<rpc::Credentials> credentials;  // null: every client may do everything
};

// Thread-safe.
class Admin {
 public:
  // Serves when it returns. `cluster` and `tasks` outlive it. Errors: kUnavailable, kInvalid.
  static Result<std::unique_ptr<Admin>> Open(MasterServer& cluster, Tasks& tasks,
                                             const AdminOptions& options, const Clock& clock);
  const rpc::Address& address() const { return address_; }

 private:
  Admin() = default;
  rpc::Address address_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace kvcove::master
