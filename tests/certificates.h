// SPDX-License-Identifier: Apache-2.0
// Certificates for tests of TLS: NAME-ca.pem, NAME.pem and NAME.key for the authorities "good" and
// "evil", for 127.0.0.1.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <string>

namespace kvcove {

// False: openssl could not make them.
inline bool MakeCertificates(const std::string& directory) {
  const std::string script = fmt::format(
      "cd '{}' && exec 2>/dev/null && for ca in good evil; do "
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "
      "/CN=$ca "
      "-keyout $ca-ca.key -out $ca-ca.pem && "
      "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=host "
      "-keyout $ca.key -out $ca.csr && "
      "printf 'subjectAltName=IP:127.0.0.1,DNS:localhost' > ext && "
      "openssl x509 -req -in $ca.csr -CA $ca-ca.pem -CAkey $ca-ca.key -CAcreateserial -days 2 "
      "-extfile ext -out $ca.pem && chmod 600 $ca.key || exit 1; done",
      directory);
  return std::system(script.c_str()) == 0;
}

}  // namespace kvcove
