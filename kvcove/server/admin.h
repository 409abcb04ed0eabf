// SPDX-License-Identifier: Apache-2.0
// The HTTP endpoint of one owner for operators: /healthz, /readyz, /metrics, /v1/stat, answered
// from this process alone. The last two run on a worker (kvcove-answer): they take the core's lock,
// which a hand-over to another process holds while it writes the owner's state. host_admin.h has
// the admin interface of a pool of one host.
#pragma once

#include <memory>

#include "kvcove/http/server.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/rpc/access.h"

namespace kvcove::server {

struct AdminOptions {
  UniqueFd listener;  // of rpc::ListenTcp, for `address`
  rpc::Address address;
  std::shared_ptr<rpc::Credentials> credentials;  // null: everybody may ask
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  bool metrics_only = false;                      // only /metrics, /healthz and /readyz
};

// Adds the metrics of one owner, without those of its process. `labels`: of all samples but those
// of one disk, which are told apart by their paths.
void CollectOwner(pool::LocalHost& host, const Clock& clock, Metrics& metrics,
                  const Labels& labels = {});

// Serves when it returns. The listener is made before the host is, so that a port in use is noticed
// before the master knows the owner. `host` outlives it. Errors: as StartThread.
Result<std::unique_ptr<http::Server>> ServeAdmin(pool::LocalHost& host, AdminOptions options,
                                                 const Clock& clock);

}  // namespace kvcove::server
