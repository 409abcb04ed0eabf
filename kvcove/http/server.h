// SPDX-License-Identifier: Apache-2.0
// A small HTTP/1.1 server for operators. A silent or slow connection costs no other one anything:
// it ends after `idle_ns`, or earlier if `max_connections` is reached and a new one comes. Requests
// that a page in a browser may have sent are refused (origin.h).
//
// One loop (kvcove-http) serves all connections and runs the routes that answer at once; routes
// that wait run on a few workers (kvcove-answer). The only lock guards the way back from a TLS
// handshake, which another thread makes.
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
  std::string authorization;    // value of the header, or of the login; empty: none
  std::int64_t arrived_ns = 0;  // by SystemClock: a route that waits may begin much later
  // Returns a value of the query or of the body's JSON object; a name that is in both is refused
  // before. Errors: kInvalid when it is missing or empty.
  Result<std::string> Need(const std::string& name) const;
  // Returns the same, which may be empty, or `otherwise` when it is missing.
  std::string Get(const std::string& name, const std::string& otherwise = {}) const;
};

struct Response {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;  // further ones
};
// Returns an answer with the error's code and detail, and the status that fits the code.
Response ErrorResponse(const Error& error);
// Returns an answer with this body; bytes that are no UTF-8 are replaced.
Response JsonResponse(const nlohmann::json& body);

struct Route {
  std::string method;
  std::string path;
  bool open = false;     // needs no authorization
  bool metrics = false;  // the scope `metrics` is enough
  bool waits = false;    // may wait: runs on a worker
  // The largest body of a route that reads Request::body itself; a caller without credentials
  // cannot send so much. 0: the body is a small JSON object, whose values are in `query`.
  std::size_t body_bytes = 0;
  std::function<Response(const Request&)> answer;
};

// Returns the routes among these that monitoring needs: open ones, and those with `metrics`.
std::vector<Route> MonitoringRoutes(const std::vector<Route>& routes);

struct ServerOptions {
  // Of rpc::ListenTcp or rpc::ListenUnix; may be invalid where `relisten` returns one later.
  UniqueFd listener;
  bool loopback = true;     // it listens on loopback, so only requests to a loopback address pass
  std::size_t workers = 4;  // threads for routes that wait
  // Longest time in which a whole request must arrive, and a whole answer must be taken.
  std::int64_t idle_ns = 5'000'000'000;
  // At the limit a new connection replaces the one that has waited longest for its client.
  // Operators need few; more would take the descriptors of owners and engines.
  std::size_t max_connections = 128;
  // Of bodies above 64 KiB (Route::body_bytes) in memory at a time, from their heads to their
  // answers. A request that finds no room is answered 503, with its body unread; but one that has
  // not arrived for a second makes room, and its connection ends.
  std::size_t long_bodies_bytes = 64U << 20;
  // Returns whether the header's value lets the caller in; `metrics`: to a route for which that
  // scope is enough. Runs on the loop. Null: everyone may ask.
  std::function<bool(const std::string& authorization, bool metrics)> authorize;
  // Returns whether the process at the other end of this connected Unix socket may ask; otherwise
  // the connection is closed. Runs on the loop. Null: everyone may, and the listener is no Unix
  // socket.
  std::function<bool(int fd)> admit;
  // Called on the loop once a second. Returns a listener in place of the one that is served, whose
  // name was removed, or the first one; an invalid one: nothing has changed. Null: nobody looks.
  std::function<UniqueFd()> relisten;
  // Called on the loop once a second. Null: nothing is.
  std::function<void()> tick;
  // Serves the login of pages in browsers (docs/page.md): GET and POST /v1/login, POST /v1/logout.
  bool logins = false;
  // Makes the TLS handshake of each connection, as rpc::Tls::Accept does; null: connections are in
  // the clear. `done` may be called, and destroyed, on any thread. The result ends the handshake,
  // and may be called for as long as this function exists.
  std::function<std::function<void()>(UniqueFd fd, std::int64_t handshake_ns,
                                      std::function<void(UniqueFd)> done)>
      tunnel;
};

// Has only a life cycle; Open and the destructor may be called from any thread.
class Server {
 public:
  // Opens a server, which serves when this returns. Errors: as StartThread; kLimit
  // without descriptors; kInternal.
  static Result<std::unique_ptr<Server>> Open(ServerOptions options, std::vector<Route> routes);
  // Waits for the routes that run, and closes all connections.
  ~Server();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct CallOptions {
  std::string server = "the admin endpoint";  // as errors name the other side
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  std::string method = "GET";
  std::string target = "/";  // path and query, encoded
  std::string body;
  std::string authorization;
  std::int64_t timeout_ns = 5'000'000'000;
};
// Makes one request over a connection of its own, and waits for the answer, whatever its status.
// Errors: kUnavailable, kTimeout.
Result<Response> Call(const CallOptions& options);

}  // namespace kvcove::http
