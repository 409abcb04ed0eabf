// SPDX-License-Identifier: Apache-2.0
// A command's way to an admin endpoint: that of a master, over TCP, or that of a pool of one host,
// at its Unix socket or over TCP.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "kvcove/http/server.h"
#include "kvcove/rpc/tls.h"

namespace kvcove::cli {

struct AdminAccessOptions {
  std::string token;  // file
  rpc::TlsFiles tls;
  bool as_json = false;
};
// Adds the options of the token and of TLS.
void AddAccessOptions(CLI::App& app, AdminAccessOptions& options);
// Adds these and --json.
void AddAdminAccessOptions(CLI::App& app, AdminAccessOptions& options);

// Returns the value of the header Authorization; empty without a token. Errors: as LoadCredential.
Result<std::string> AuthorizationOf(const AdminAccessOptions& options);

// Where a master's admin endpoint is by default.
inline constexpr const char* kMasterHere = "127.0.0.1:7480";

struct Endpoint {
  std::string address;  // HOST:PORT, several with commas, unix:PATH, or unix:@NAME
  // Whether it may see the user's token: the user has named it or its cluster, or its process is
  // one of this user. Any other user of the host may listen at a port that was only looked at.
  bool trusted = true;
};

// Belongs to one thread.
class AdminClient {
 public:
  // Of several the one that leads is asked. Connects to nobody yet, unless there are several. An
  // endpoint that is not trusted is asked without the token. Errors: kInvalid, kDenied.
  static Result<AdminClient> Open(const Endpoint& endpoint, const AdminAccessOptions& options);

  // Returns the endpoint that is asked.
  const std::string& endpoint() const { return endpoint_; }
  void SetTimeout(std::int64_t timeout_ns) { timeout_ns_ = timeout_ns; }
  // Returns how long an answer may take at most. The endpoint may wait for as long as it is asked
  // to, by "timeout_ms", before it answers.
  std::int64_t AnswerTimeNs(const std::map<std::string, std::string>& arguments) const;
  // Asks over a connection of its own. Errors: kUnavailable, kTimeout, kInvalid, kDenied.
  Result<http::Response> Ask(const std::string& method, const std::string& path,
                             const std::map<std::string, std::string>& arguments) const;
  // Returns the answer's JSON. An answer that is no 200 is an error with the endpoint's text.
  Result<nlohmann::json> Json(const std::string& method, const std::string& path,
                              const std::map<std::string, std::string>& arguments) const;
  // Sends a body that is more than a few strings. Errors: as Json.
  Result<nlohmann::json> Post(const std::string& path, const nlohmann::json& body) const;

 private:
  static constexpr std::int64_t kCallNs = 30'000'000'000;
  Result<UniqueFd> Connect(std::int64_t deadline_ns) const;
  Result<http::Response> Send(const std::string& method, const std::string& target,
                              const std::string& body, std::int64_t timeout_ns) const;
  Result<nlohmann::json> JsonOf(std::string_view method, const std::string& path,
                                const http::Response& response) const;
  void FindLeader(const std::string& endpoints);

  std::string endpoint_;
  std::string authorization_;
  std::shared_ptr<rpc::Tls> tls_;
  std::int64_t timeout_ns_ = kCallNs;
};

}  // namespace kvcove::cli
