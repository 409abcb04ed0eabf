// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 server for operators. A silent, slow or garbage connection costs nobody but
// itself: it ends after `idle_ns`, or earlier if `max_connections` is reached and a new one comes.
// Routes that wait do not hold the loop. Requests that a page in somebody's browser may have sent
// are refused (origin.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kvcove/base/posix.h"

namespace kvcove::http {

struct Request {
  std::string method;  // "GET", "POST"
  std::string path;    // without the query, decoded
  std::map<std::string, std::string> query;
  std::string body;
  std::string authorization;  // the header's value, or empty
  // Of the query or, in a POST, of the body's JSON object. Errors: kInvalid when it is missing.
  Result<std::string> Need(const std::string& name) const;
  std::string Get(const std::string& name, const std::string& otherwise = {}) const;
};

struct Response {
  int status = 200;
  std::string body;
  std::string type = "application/json";
};
Response ErrorResponse(const Error& error);
// Bytes that are no UTF-8 are replaced.
Response JsonResponse(const nlohmann::json& body);

struct Route {
  std::string method;
  std::string path;
  bool open = false;     // without authorization
  bool metrics = false;  // the scope `metrics` is enough
  bool waits = false;    // runs on a worker
  std::function<Response(const Request&)> answer;
};

// Of these, those that operators' monitoring needs.
std::vector<Route> MonitoringRoutes(const std::vector<Route>& routes);

struct ServerOptions {
  UniqueFd listener;     // as rpc::ListenTcp gives it
  bool loopback = true;  // it listens there: then only requests to a loopback address are answered
  // For a whole request to come, and for a whole answer to go.
  std::int64_t idle_ns = 5'000'000'000;
  // At the limit a new connection takes the place of the one that has waited longest for its
  // client. Operators need few; more would take the descriptors of owners and engines.
  std::size_t max_connections = 128;
  // True if the header's value lets this caller in, for a route of its own or one with `metrics`;
  // null: everyone.
  std::function<bool(const std::string& authorization, bool metrics)> authorize;
  // As rpc::Tls::Accept, for all connections; null: they are in the clear. `done` may be called,
  // and destroyed, in any thread. What it returns may be called as long as this function lives.
  std::function<std::function<void()>(UniqueFd fd, std::int64_t handshake_ns,
                                      std::function<void(UniqueFd)> done)>
      tunnel;
};

// Thread-safe.
class Server {
 public:
  // Serves when it returns. Errors: as StartThread.
  static Result<std::unique_ptr<Server>> Open(ServerOptions options, std::vector<Route> routes);
  ~Server();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CallOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string method = "GET";
  std::string target = "/";  // path and query, encoded
  std::string body;
  std::string authorization;
  std::int64_t timeout_ns = 5'000'000'000;
};
// One request. Errors: kUnavailable, kTimeout.
Result<Response> Call(const CallOptions& options);

}  // namespace kvcove::http
