// SPDX-License-Identifier: Apache-2.0
// What an operator asks an owner over HTTP: /healthz, /readyz, /metrics, /v1/stat.
#pragma once

#include <memory>

#include "kvcove/http/server.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/rpc/access.h"

namespace kvcove::server {

struct AdminOptions {
  UniqueFd listener;  // as rpc::ListenTcp gives it for `address`
  rpc::Address address;
  std::shared_ptr<rpc::Credentials> credentials;  // null: everybody may ask
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  bool metrics_only = false;                      // /metrics, /healthz and /readyz
};

// Serves when it returns. The listener is made before the host is, so that a port in use is noticed
// before the master knows the owner. `host` outlives it. Errors: as StartThread.
Result<std::unique_ptr<http::Server>> ServeAdmin(pool::LocalHost& host, AdminOptions options,
                                                 const Clock& clock);

}  // namespace kvcove::server
