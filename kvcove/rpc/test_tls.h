// SPDX-License-Identifier: Apache-2.0
// For tests: TLS with a certificate of its own for 127.0.0.1, which is its own authority.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "kvcove/rpc/tls.h"

namespace kvcove::rpc {

// Needs the command `openssl`. The files are gone when it returns.
inline Result<std::shared_ptr<Tls>> SelfSignedTls() {
  std::string directory = std::filesystem::temp_directory_path() / "kvcove-tls-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return FailErrno(Code::kInternal, directory);
  const std::string script = fmt::format(
      "cd '{}' && exec 2>/dev/null && openssl req -x509 -newkey ec -pkeyopt "
      "ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=host -addext "
      "subjectAltName=IP:127.0.0.1 -keyout a.key -out a.pem && chmod 600 a.key",
      directory);
  const bool made = std::system(script.c_str()) == 0;
  const std::string pem = directory + "/a.pem";
  auto tls = Tls::Open({.authority = pem, .certificate = pem, .key = directory + "/a.key"});
  std::filesystem::remove_all(directory);
  if (!made) return Fail(Code::kInternal, "openssl could not make a certificate");
  return tls;
}

}  // namespace kvcove::rpc
