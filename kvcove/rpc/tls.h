// SPDX-License-Identifier: Apache-2.0
// Mutual TLS around connections, with OpenSSL: each side shows a certificate that the same
// authority has signed. The user of a connection sees an ordinary socket: a thread of this object
// moves the bytes between it and the encrypted one, so no other code knows of TLS. That costs one
// more copy on each side, beside the encryption.
//
// A connection ends as a whole: when either side closes, so does the other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kvcove/base/posix.h"

namespace kvcove::rpc {

// PEM files.
struct TlsFiles {
  std::string authority;    // certificate of the authority that signs those of both sides
  std::string certificate;  // of this process, with its chain
  std::string key;          // must be closed to other users
  // For a client of a server that is not kvcove's: allows TLS 1.2, and no certificate of its own.
  bool foreign_server = false;
  bool empty() const { return authority.empty() && certificate.empty() && key.empty(); }
};

// Thread-safe. When a connection is made it looks at the files, at most once a second; changed
// files count for later connections. Files that cannot be read, or do not fit each other, change
// nothing and are logged. The mutex guards the current context and is taken alone.
class Tls {
 public:
  // Reads the files and starts the thread (kvcove-tls). Errors: kInvalid with the file and what
  // OpenSSL says of it, kDenied for a key that others may read.
  static Result<std::shared_ptr<Tls>> Open(const TlsFiles& files);
  ~Tls();

  // Looks at the files now, and reads changed ones.
  void Refresh();
  // Returns the seconds until this process's certificate expires, below 0 if it has. Nothing: it
  // has none.
  std::optional<std::int64_t> ExpiresInS() const;
  // Returns how many clients were refused, or have refused this process's certificate.
  std::uint64_t refused() const;

  // Returns a socket that speaks with the server behind `fd`, whose certificate must be for `host`.
  // Errors: kDenied when either side does not trust the other, kTimeout, kUnavailable.
  Result<UniqueFd> Connect(UniqueFd fd, const std::string& host, std::int64_t deadline_ns);

  // Makes the handshake with the client behind `fd`. Calls `done` on kvcove-tls with a socket that
  // speaks with the client, or only destroys it when the client is not trusted or not ready within
  // `handshake_ns`. Returns a function that ends a handshake that is still under way, and may be
  // called for as long as this object exists.
  std::function<void()> Accept(UniqueFd fd, std::int64_t handshake_ns,
                               std::function<void(UniqueFd)> done);

 private:
  class Impl;
  explicit Tls(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
