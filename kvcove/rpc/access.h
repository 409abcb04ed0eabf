// SPDX-License-Identifier: Apache-2.0
// The access of a client to a server: its credential and its side of TLS. All functions are
// thread-safe, and so are the credential sources that they return.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvcove/rpc/credentials.h"
#include "kvcove/rpc/tls.h"

namespace kvcove::rpc {

struct Access {
  CredentialSource credentials;  // null: the server must let everyone in
  std::shared_ptr<Tls> tls;      // null: in the clear
};

// Returns access with this credential and no other.
Access AccessWith(Credential credential, std::shared_ptr<Tls> tls = nullptr);
// Returns access with a token file and TLS files; empty names: without. Errors: those of the files.
Result<Access> LoadAccess(const std::string& token_file, const TlsFiles& tls);
// Returns the access of owners and masters to each other (Credentials::OfOwner; an empty `tenant`:
// all tenants). It follows changes of the file. Null credentials: without. Errors: kInvalid where
// the file lacks the entry now.
Result<Access> ServerAccess(std::shared_ptr<Credentials> credentials, const std::string& tenant,
                            std::shared_ptr<Tls> tls);
// Returns the access of that tenant, with all its tokens in a server's file. It follows changes of
// the file. `credentials` is not null.
Access TenantAccess(std::shared_ptr<Credentials> credentials, const std::string& tenant,
                    std::shared_ptr<Tls> tls);

// Return the checks of an HTTP endpoint (http::ServerOptions). For a null pointer the function is
// empty, and the endpoint checks nothing.
using BearerCheck = std::function<bool(const std::string& authorization, bool metrics)>;
BearerCheck BearersOf(std::shared_ptr<Credentials> credentials);
using Tunnel = std::function<std::function<void()>(UniqueFd fd, std::int64_t handshake_ns,
                                                   std::function<void(UniqueFd)> done)>;
Tunnel TunnelOf(std::shared_ptr<Tls> tls);

}  // namespace kvcove::rpc
