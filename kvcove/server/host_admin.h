// SPDX-License-Identifier: Apache-2.0
// The admin interface of a pool of one host: the paths of a master's that such a pool has
// (host_pool.h), at a Unix socket and, on request, over TCP. docs/operating.md ("One host") has the
// prose. Each endpoint has a kvcove-http, and one or two kvcove-answer.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kvcove/http/server.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/socket_file.h"
#include "kvcove/rpc/unix_access.h"
#include "kvcove/server/host_pool.h"

namespace kvcove::server {

struct HostAdminOptions {
  // Path of the Unix socket, at which this process's user and root may ask; empty: none. It is
  // bound again when its name is removed. An interface that cannot have it is without, and tries
  // again each second: no owner ends because of it.
  std::string socket_path;
  // Of the data socket, which is in the same directory.
  rpc::UnixAccess directory_access;
  // For so long another process may still have the socket: the predecessor of a take-over.
  std::int64_t patience_ns = 0;
  // In place of a path, for a process that leaves no file behind: a name in the abstract namespace
  // for which kvcove/cli/find_pool.cc looks, "kvcove/UID/embedded-PID-N".
  bool embedded = false;
  UniqueFd listener;  // of rpc::ListenTcp, for `address`
  std::optional<rpc::Address> address;
  std::shared_ptr<rpc::Credentials> credentials;  // of TCP; null: everybody may ask
  std::shared_ptr<rpc::Tls> tls;                  // of TCP; null: in the clear
};

// Has only a life cycle; belongs to one thread.
class HostAdmin {
 public:
  // Serves when it returns. Errors: as StartThread.
  static Result<std::unique_ptr<HostAdmin>> Open(HostPoolOptions pool, HostAdminOptions options,
                                                 const Clock& clock);
  // Serves that of a pool inside an engine's process. Null, with a line in the log, where it cannot
  // be served: an engine works without.
  static std::unique_ptr<HostAdmin> OpenEmbedded(HostPoolOptions pool, const Clock& clock);
  // Waits for the requests under way, and removes the socket.
  ~HostAdmin();
  // Returns where a command finds the Unix socket: "unix:PATH" or "unix:@NAME"; empty: there was
  // none when Open returned.
  const std::string& endpoint() const { return endpoint_; }

 private:
  HostAdmin() = default;
  Status ServeUnix(const HostAdminOptions& options, const std::vector<http::Route>& routes,
                   const Clock& clock);

  std::string endpoint_;
  std::unique_ptr<rpc::SocketFile> file_;  // belongs to the loop of `unix_` while that exists
  std::unique_ptr<http::Server> unix_;
  std::unique_ptr<http::Server> tcp_;
};

}  // namespace kvcove::server
