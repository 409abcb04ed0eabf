// SPDX-License-Identifier: Apache-2.0
// What an operator asks an owner over HTTP: /healthz, /readyz, /metrics, /v1/stat.
#pragma once

#include <memory>

#include "kvcove/http/server.h"
#include "kvcove/pool/local_host.h"

namespace kvcove::pool {

// Serves when it returns. `listener`: as rpc::ListenTcp gives it for `address`; it is made before
// the host is, so that a port in use is noticed before the master knows the owner. `host` outlives
// it. Errors: as StartThread.
Result<std::unique_ptr<http::Server>> ServeAdmin(LocalHost& host, UniqueFd listener,
                                                 const rpc::Address& address,
                                                 std::shared_ptr<rpc::Credentials> credentials,
                                                 const Clock& clock);

}  // namespace kvcove::pool
