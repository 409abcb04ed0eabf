// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/access.h"

namespace kvcove::rpc {

Access AccessWith(Credential credential, std::shared_ptr<Tls> tls) {
  return {.credentials = [shown = std::vector{std::move(credential)}]() { return shown; },
          .tls = std::move(tls)};
}

Result<Access> LoadAccess(const std::string& token_file, const TlsFiles& tls) {
  Access access;
  if (!token_file.empty()) {
    KVCOVE_ASSIGN(access.credentials, CredentialFile(token_file));
  }
  if (!tls.empty()) {
    KVCOVE_ASSIGN(access.tls, Tls::Open(tls));
  }
  return access;
}

Result<Access> ServerAccess(std::shared_ptr<Credentials> credentials, const std::string& tenant,
                            std::shared_ptr<Tls> tls) {
  Access access{.credentials = {}, .tls = std::move(tls)};
  if (credentials == nullptr) return access;
  KVCOVE_TRY(credentials->OfOwner(tenant));
  access.credentials = [credentials = std::move(credentials), tenant] {
    credentials->Refresh();
    return credentials->OfOwner(tenant);
  };
  return access;
}

Access TenantAccess(std::shared_ptr<Credentials> credentials, const std::string& tenant,
                    std::shared_ptr<Tls> tls) {
  Access access{.credentials = {}, .tls = std::move(tls)};
  access.credentials = [credentials = std::move(credentials), tenant] {
    credentials->Refresh();
    return credentials->OfTenant(tenant);
  };
  return access;
}

BearerCheck BearersOf(std::shared_ptr<Credentials> credentials) {
  if (credentials == nullptr) return {};
  return [credentials = std::move(credentials)](const std::string& authorization, bool metrics) {
    return MayAsk(*credentials, authorization, metrics);
  };
}

Tunnel TunnelOf(std::shared_ptr<Tls> tls) {
  if (tls == nullptr) return {};
  return [tls = std::move(tls)](UniqueFd fd, std::int64_t handshake_ns,
                                std::function<void(UniqueFd)> done) {
    return tls->Accept(std::move(fd), handshake_ns, std::move(done));
  };
}

}  // namespace kvcove::rpc
