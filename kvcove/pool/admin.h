// SPDX-License-Identifier: Apache-2.0
// What an operator asks an owner over HTTP: /healthz, /readyz, /metrics, /v1/stat.
#pragma once

#include <memory>

#include "kvcove/http/server.h"
#include "kvcove/pool/local_host.h"

namespace kvcove::pool {

// Serves when it returns; `address.port` 0 becomes the port that was chosen. `host` outlives it.
// Errors: kUnavailable, kInvalid.
Result<std::unique_ptr<http::Server>> ServeAdmin(LocalHost& host, rpc::Address& address,
                                                 std::shared_ptr<rpc::Credentials> credentials,
                                                 const Clock& clock);

}  // namespace kvcove::pool
