// SPDX-License-Identifier: Apache-2.0
// One kept HTTP/1.1 connection of a client: one request at a time, without a thread, over a socket
// that somebody else has opened (and may have put behind TLS). Belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcove/base/posix.h"
#include "kvcove/http/server.h"

namespace kvcove::http {

struct PostOptions {
  std::string_view host;           // the header's value
  std::string_view target;         // path, encoded
  std::string_view authorization;  // the header's value, or empty
  std::string_view body;           // JSON
};

class Connection {
 public:
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)) {}

  // Errors: kTimeout, kUnavailable when the connection ended, kCorrupt for what is no HTTP. After
  // one of them the connection is of no use any more, and the server may have carried the request
  // out all the same.
  Result<Response> Post(const PostOptions& options, std::int64_t deadline_ns);
  // False after an error, and when the server said that it closes.
  bool usable() const { return fd_.valid(); }

 private:
  Status Send(std::string_view bytes, std::int64_t deadline_ns);
  Status Wait(short events, std::int64_t deadline_ns);
  Result<Response> Receive(std::size_t max_bytes, std::int64_t deadline_ns);

  UniqueFd fd_;
};

}  // namespace kvcove::http
