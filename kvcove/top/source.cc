// SPDX-License-Identifier: Apache-2.0
#include "kvcove/top/source.h"

#include <fmt/core.h>
#include <sys/un.h>

#include <nlohmann/json.hpp>

#include "kvcove/base/text.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::top {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

// Returns the endpoint's reason for an answer other than 200.
std::string DetailOf(const http::Response& response) {
  const auto body = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (body.is_object() && body.contains("detail") && body["detail"].is_string()) {
    return ": " + Printable(body["detail"].get<std::string>());
  }
  return {};
}

}  // namespace

Result<Endpoint> Endpoint::Parse(const std::string& text) {
  Endpoint endpoint;
  endpoint.name_ = text;
  if (text.starts_with(kUnixPrefix) || text.starts_with('/')) {
    endpoint.socket_ = text.starts_with('/') ? text : text.substr(kUnixPrefix.size());
    if (endpoint.socket_.empty() || endpoint.socket_.size() >= sizeof(sockaddr_un::sun_path)) {
      return Fail(Code::kInvalid, fmt::format("'{}': the path of a Unix socket has 1 to {} bytes",
                                              text, sizeof(sockaddr_un::sun_path) - 1));
    }
    endpoint.host_header_ = "localhost";
    return endpoint;
  }
  KVCOVE_ASSIGN(endpoint.address_, rpc::ParseAddress(text, 7480));
  endpoint.host_header_ = endpoint.address_.ToString();
  return endpoint;
}

Result<UniqueFd> Endpoint::Connect(std::int64_t deadline_ns) const {
  if (socket_.empty()) return rpc::ConnectTcp(address_, deadline_ns);
  if (socket_.starts_with('@')) return rpc::ConnectAbstract(socket_.substr(1), deadline_ns);
  return rpc::ConnectUnix(socket_, deadline_ns);
}

Result<Answers> Endpoint::Ask(const std::string& authorization, std::int64_t deadline_ns) {
  if (connection_ != nullptr && connection_->usable()) {
    Result<Answers> answers = AskAll(authorization, deadline_ns);
    // A server closes connections that were silent for some seconds, and all of them when it ends:
    // a new one shows whether there is a server.
    if (answers || answers.error().code != Code::kUnavailable) return answers;
  }
  connection_.reset();
  missing_.clear();
  Result<UniqueFd> fd = Connect(deadline_ns);
  if (!fd) {
    return Fail(fd.error().code, fmt::format("{}: {}", name_, fd.error().detail));
  }
  connection_ = std::make_unique<http::Connection>(std::move(*fd));
  return AskAll(authorization, deadline_ns);
}

Result<Answers> Endpoint::AskAll(const std::string& authorization, std::int64_t deadline_ns) {
  Answers answers{.endpoint = name_, .bodies = {}};
  for (const char* path : kPaths) {
    if (missing_.contains(path)) continue;
    Result<http::Response> response = connection_->Ask({.method = "GET",
                                                        .host = host_header_,
                                                        .target = path,
                                                        .authorization = authorization,
                                                        .body = {}},
                                                       deadline_ns);
    if (!response) {
      return Fail(response.error().code, fmt::format("{}: {}", name_, response.error().detail));
    }
    if (response->status == 200) {
      answers.bodies[path] = std::move(response->body);
    } else if (response->status == 404) {
      missing_.insert(path);
    } else if (response->status == 401 || response->status == 403) {
      return Fail(Code::kDenied, fmt::format("{} answers {} with {}{}", name_, path,
                                             response->status, DetailOf(*response)));
    }
    // Any other status: a standby answers the leader's paths with 503. The path is asked for again.
  }
  if (!answers.bodies.empty()) return answers;
  return Fail(Code::kUnavailable, fmt::format("{} has none of the admin endpoint's paths", name_));
}

Result<std::unique_ptr<HttpSource>> HttpSource::Open(const SourceOptions& options) {
  std::unique_ptr<HttpSource> source(new HttpSource(options));
  for (const std::string& text : options.endpoints) {
    KVCOVE_ASSIGN(Endpoint endpoint, Endpoint::Parse(text));
    source->endpoints_.push_back(std::move(endpoint));
  }
  if (source->endpoints_.empty()) return Fail(Code::kInvalid, "no endpoint is named");
  return source;
}

Result<Taken> HttpSource::Take() {
  std::vector<Answers> answers;
  std::vector<Error> errors;
  for (Endpoint& endpoint : endpoints_) {
    const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + options_.timeout_ns;
    Result<Answers> some = endpoint.Ask(options_.authorization, deadline_ns);
    if (some) {
      answers.push_back(std::move(*some));
    } else {
      errors.push_back(some.error());
    }
  }
  if (answers.empty()) return std::unexpected(errors.front());
  Taken taken;
  KVCOVE_ASSIGN(taken.sample, MakeSample(answers));
  for (const Error& error : errors) {
    // A refusal is the user's to mend, also where the endpoint was not named.
    if (options_.all_expected || error.code == Code::kDenied) taken.silent.push_back(error.detail);
  }
  return taken;
}

}  // namespace kvcove::top
