// SPDX-License-Identifier: Apache-2.0
// With what a client comes to a server.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/tls.h"

namespace kvcove::rpc {

struct Access {
  std::optional<Credential> credential;  // empty: the server must let everyone in
  std::shared_ptr<Tls> tls;              // null: in the clear
};

// From a token file and TLS files; empty names: without. Errors: those of the files.
Result<Access> LoadAccess(const std::string& token_file, const TlsFiles& tls);

}  // namespace kvcove::rpc
