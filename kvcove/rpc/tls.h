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
  std::string authority;    // who signs certificates of both sides
  std::string certificate;  // of this process, with its chain
  std::string key;          // closed to other users
  // A client of a server that is not kvcove's: TLS 1.2, too, and without a certificate of its own
  // where none is named.
  bool foreign_server = false;
  bool empty() const { return authority.empty() && certificate.empty() && key.empty(); }
};

// Thread-safe. It looks at the files at most once a second, when a connection is made: those that
// have changed count for the connections that are made from then on. Files that cannot be read, or
// do not fit each other, change nothing and are logged.
class Tls {
 public:
  // Errors: kInvalid with the file and what OpenSSL says of it, kDenied for a key that others may
  // read.
  static Result<std::shared_ptr<Tls>> Open(const TlsFiles& files);
  ~Tls();

  // Looks at the files now.
  void Refresh();
  // Seconds until this process's certificate expires, less than 0 if it has; nothing without one.
  std::optional<std::int64_t> ExpiresInS() const;
  // Clients whose certificate was refused, or that refused this process's.
  std::uint64_t refused() const;

  // A socket that speaks with the server behind `fd`, whose certificate must be for `host`. Errors:
  // kDenied when either side does not trust the other, kTimeout, kUnavailable.
  Result<UniqueFd> Connect(UniqueFd fd, const std::string& host, std::int64_t deadline_ns);

  // Calls `done` from this object's thread with a socket that speaks with the client behind `fd`,
  // or not at all when the client is not trusted or not done within `handshake_ns`. What it returns
  // ends a handshake that is still going on; it is good for as long as this object lives.
  std::function<void()> Accept(UniqueFd fd, std::int64_t handshake_ns,
                               std::function<void(UniqueFd)> done);

 private:
  class Impl;
  explicit Tls(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
