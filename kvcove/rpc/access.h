// SPDX-License-Identifier: Apache-2.0
// With what a client comes to a server.
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

// That credential and no other.
Access AccessWith(Credential credential, std::shared_ptr<Tls> tls = nullptr);
// From a token file and TLS files; empty names: without. Errors: those of the files.
Result<Access> LoadAccess(const std::string& token_file, const TlsFiles& tls);
// What owners and masters show each other (Credentials::OfOwner; an empty `tenant`: all). It
// follows the file. Null credentials: without. Errors: kInvalid where the file lacks the entry now.
Result<Access> ServerAccess(std::shared_ptr<Credentials> credentials, const std::string& tenant,
                            std::shared_ptr<Tls> tls);
// As that tenant itself, all of whose tokens the server's file has.
Access TenantAccess(std::shared_ptr<Credentials> credentials, const std::string& tenant,
                    std::shared_ptr<Tls> tls);

// What an HTTP endpoint asks of its callers (http::ServerOptions); of a null pointer an empty
// function, which asks nothing.
using BearerCheck = std::function<bool(const std::string& authorization, bool metrics)>;
BearerCheck BearersOf(std::shared_ptr<Credentials> credentials);
using Tunnel = std::function<std::function<void()>(UniqueFd fd, std::int64_t handshake_ns,
                                                   std::function<void(UniqueFd)> done)>;
Tunnel TunnelOf(std::shared_ptr<Tls> tls);

}  // namespace kvcove::rpc
