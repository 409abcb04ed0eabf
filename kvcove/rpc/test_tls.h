// SPDX-License-Identifier: Apache-2.0
// TLS for tests: a self-signed certificate for 127.0.0.1, and authorities that sign certificates of
// both sides. Needs the command `openssl`.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "kvcove/rpc/tls.h"

namespace kvcove::rpc {

// Returns TLS with a self-signed certificate. The files are removed when it returns.
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

class TestAuthority {
 public:
  struct Certificate {
    std::string subject = "/CN=node1";
    std::string names = "IP:127.0.0.1";
    int days = 2;               // -1: it has expired
    bool with_rsa_key = false;  // another key than the certificate's, of another kind
  };
  TestAuthority() {
    if (mkdtemp(directory_.data()) == nullptr) return;
    Run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
        "-subj /CN=authority -keyout ca.key -out ca.pem");
  }
  ~TestAuthority() { std::filesystem::remove_all(directory_); }
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // Returns a side that shows a certificate of this authority and trusts those of `trusted`.
  Result<std::shared_ptr<Tls>> Issue(const Certificate& certificate,
                                     const TestAuthority& trusted) const {
    // Files of its own: a side reads its files again when they change.
    const std::string name = fmt::format("{}/{}", directory_, ++issued_);
    const bool made = Run(fmt::format(
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '{0}' -keyout "
        "{3}.key -out {3}.csr && echo 'subjectAltName={1}' > {3}.names && openssl x509 -req -in "
        "{3}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days {2} -extfile {3}.names -out "
        "{3}.pem && chmod 600 {3}.key",
        certificate.subject, certificate.names, certificate.days, name));
    if (!made ||
        (certificate.with_rsa_key &&
         !Run(fmt::format("openssl genrsa -out {0}.key 2048 && chmod 600 {0}.key", name)))) {
      return Fail(Code::kInternal, "openssl could not make a certificate");
    }
    return Tls::Open({.authority = trusted.directory_ + "/ca.pem",
                      .certificate = name + ".pem",
                      .key = name + ".key"});
  }

 private:
  bool Run(const std::string& commands) const {
    const std::string script =
        fmt::format("cd '{}' && exec 2>/dev/null && {}", directory_, commands);
    return std::system(script.c_str()) == 0;
  }
  std::string directory_ = std::filesystem::temp_directory_path() / "kvcove-tls-XXXXXX";
  mutable int issued_ = 0;
};

}  // namespace kvcove::rpc
