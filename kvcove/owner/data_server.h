// SPDX-License-Identifier: Apache-2.0
// An owner's door for other hosts: whole batches in one exchange over TCP. What is put goes from
// the socket into the segment, what is got from the segment to the socket, with no copy between.
//
// A get lends its objects to the transfer, so their memory is not reused while it lasts; a put
// reserves, receives, checks and commits. A connection that makes no progress for `stall_ns` ends.
#pragma once

#include <memory>
#include <string>

#include "kvcove/http/metrics.h"
#include "kvcove/owner/owner.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"

namespace kvcove::owner {

struct DataServerOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 0};
  std::size_t loops = 2;
  std::size_t max_connections = 4096;
  std::int64_t hello_ns = 5 * kSecond;            // to say hello
  std::int64_t stall_ns = 10 * kSecond;           // without a byte in the middle of an exchange
  bool checksum = true;                           // checks what arrives, and sends checksums along
  std::string tenant;                             // the only one that is served; empty: all
  std::shared_ptr<rpc::Credentials> credentials;  // null: whoever comes may do everything
  std::shared_ptr<rpc::Tls> tls;                  // null: in the clear
  rpc::Access access;                             // to other owners, for copies
};

// Thread-safe.
class DataServer {
 public:
  // Listens when it returns. Errors: kUnavailable, kInvalid.
  static Result<std::unique_ptr<DataServer>> Open(Owner& owner, const DataServerOptions& options,
                                                  const Clock& clock);
  ~DataServer();
  const rpc::Address& address() const;
  void Collect(http::Metrics& metrics) const;

 private:
  class Impl;
  explicit DataServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::owner
