// SPDX-License-Identifier: Apache-2.0
// Sources of samples: the admin endpoints of masters, owners and hosts, over HTTP.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/http/connection.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/tls.h"
#include "kvcove/top/sample.h"

namespace kvcove::top {

// A sample, and why endpoints that were asked are not in it.
struct Taken {
  Sample sample;
  std::vector<std::string> silent;
};

// Belongs to one thread.
class Source {
 public:
  virtual ~Source() = default;
  // Waits for the answers. Errors: those of the first endpoint, where none has answered.
  virtual Result<Taken> Take() = 0;
};

struct SourceOptions {
  // "host:port", "unix:PATH", "unix:@NAME" of an abstract socket; more than one for an owner's own
  // figures beside those of the master, and for several masters.
  std::vector<std::string> endpoints;
  bool all_expected = true;               // false: an endpoint that does not answer is not named
  std::string authorization;              // value of the header
  rpc::TlsFiles tls;                      // of the endpoints over TCP; empty: in the clear
  std::int64_t timeout_ns = 2 * kSecond;  // for all answers of an endpoint
};

// One endpoint, over a connection that is kept. Paths that it does not have are asked for again
// over the next connection only.
class Endpoint {
 public:
  // Errors: kInvalid.
  static Result<Endpoint> Parse(const std::string& text);
  bool is_unix() const { return !socket_.empty(); }
  // Speaks TLS from the next connection on. For an endpoint over TCP.
  void UseTls(std::shared_ptr<rpc::Tls> tls) { tls_ = std::move(tls); }
  // Asks for all paths. Errors: kUnavailable, kTimeout, kDenied, kCorrupt.
  Result<Answers> Ask(const std::string& authorization, std::int64_t deadline_ns);

 private:
  Result<UniqueFd> Connect(std::int64_t deadline_ns) const;
  Status Open(std::int64_t deadline_ns);
  Result<Answers> AskAll(const std::string& authorization, std::int64_t deadline_ns);

  std::string name_;
  rpc::Address address_;  // where `socket_` is empty
  std::string socket_;    // the path of a Unix socket, or '@' and the name of an abstract one
  std::shared_ptr<rpc::Tls> tls_;
  std::string host_header_;
  std::unique_ptr<http::Connection> connection_;
  std::set<std::string> missing_;
};

// Asks the endpoints one after the other.
class HttpSource final : public Source {
 public:
  // Errors: kInvalid for an endpoint that is none, and those of rpc::Tls::Open. Connects to nothing
  // yet.
  static Result<std::unique_ptr<HttpSource>> Open(const SourceOptions& options);
  Result<Taken> Take() override;

 private:
  explicit HttpSource(SourceOptions options) : options_(std::move(options)) {}
  const SourceOptions options_;
  std::vector<Endpoint> endpoints_;
};

}  // namespace kvcove::top
