// SPDX-License-Identifier: Apache-2.0
// One kept HTTP/1.1 connection of a client, over a socket that the caller has opened (and may have
// put behind TLS): one request at a time, without a thread. Belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "kvcove/base/posix.h"
#include "kvcove/http/server.h"

namespace kvcove::http {

struct RequestOptions {
  std::string_view method = "POST";
  std::string_view host;           // value of the header Host
  std::string_view target;         // path, encoded
  std::string_view authorization;  // value of the header Authorization; empty: none
  std::string_view body;           // JSON
};

class Connection {
 public:
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)) {}

  // Sends a request and waits for the answer, whatever its status. Errors: kTimeout, kUnavailable
  // when the connection ended, kCorrupt for an answer that is no HTTP. After an error the
  // connection is not usable any more, and the server may have carried out the request all the
  // same.
  Result<Response> Ask(const RequestOptions& options, std::int64_t deadline_ns);

  // Takes a part of a body, on the thread that waits for the answer. An error ends the connection.
  using TakePart = std::function<Status(std::string_view part)>;
  // Sends a request and calls `take` with the body of an answer of status 200 as it arrives; the
  // result has the status without a body. An answer of another status is whole in the result.
  // Errors: as Ask, and those of `take`.
  Result<Response> Stream(const RequestOptions& options, std::int64_t deadline_ns,
                          const TakePart& take);
  // Returns false after an error, and when the server has announced that it closes.
  bool usable() const { return fd_.valid(); }

 private:
  Status Send(std::string_view bytes, std::int64_t deadline_ns);
  Status Wait(short events, std::int64_t deadline_ns);
  Result<Response> Receive(std::size_t max_bytes, std::int64_t deadline_ns, const TakePart& take);

  UniqueFd fd_;
};

}  // namespace kvcove::http
