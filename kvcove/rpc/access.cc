// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/access.h"

namespace kvcove::rpc {

Result<Access> LoadAccess(const std::string& token_file, const TlsFiles& tls) {
  Access access;
  if (!token_file.empty()) {
    KVCOVE_ASSIGN(access.credential, LoadCredential(token_file));
  }
  if (!tls.empty()) {
    KVCOVE_ASSIGN(access.tls, Tls::Open(tls));
  }
  return access;
}

}  // namespace kvcove::rpc
