// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/admin_client.h"

#include <fmt/core.h>

#include <charconv>
#include <optional>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/text.h"
#include "kvcove/cli/command.h"
#include "kvcove/cli/tables.h"
#include "kvcove/http/connection.h"
#include "kvcove/http/url.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/leader.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::cli {
namespace {

using nlohmann::json;

constexpr std::uint16_t kAdminPort = 7480;
constexpr std::int64_t kLookNs = 2 * kSecond;
constexpr std::string_view kUnix = "unix:";

// Returns the path with its query, and sets `body` for a POST.
Result<std::string> TargetOf(const std::string& method, const std::string& path,
                             const std::map<std::string, std::string>& arguments,
                             std::string& body) {
  std::string target = path;
  json object;
  char joint = '?';
  for (const auto& [key, value] : arguments) {
    if (method != "POST") {
      target += fmt::format("{}{}={}", joint, http::UrlEncode(key), http::UrlEncode(value));
      joint = '&';
      continue;
    }
    if (!IsUtf8(value)) {
      return Fail(Code::kInvalid,
                  fmt::format("{} is not UTF-8: {}; a prefix that is can name such keys", key,
                              Printable(value)));
    }
    object[key] = value;
  }
  if (!object.is_null()) body = object.dump();
  return target;
}

}  // namespace

void AddAccessOptions(CLI::App& app, AdminAccessOptions& options) {
  app.add_option("--token", options.token, "token file of a tenant with the scope admin");
  const auto add = [&](const char* flag, std::string& file, const char* help) {
    app.add_option(flag, file, help)->group(kEndpointTls);
  };
  add("--tls-authority", options.tls.authority,
      "PEM file with the authority that signs both sides' certificates");
  add("--tls-certificate", options.tls.certificate, "PEM file with this command's certificate");
  add("--tls-key", options.tls.key, "PEM file of mode 0600 with its key");
}

void AddAdminAccessOptions(CLI::App& app, AdminAccessOptions& options) {
  AddAccessOptions(app, options);
  app.add_flag("--json", options.as_json, "print the endpoint's answer as it is");
}

Result<std::string> AuthorizationOf(const AdminAccessOptions& options) {
  if (options.token.empty()) return std::string();
  KVCOVE_ASSIGN(const rpc::Credential credential, rpc::LoadCredential(options.token));
  return "Bearer " + rpc::BearerOf(credential);
}

Result<AdminClient> AdminClient::Open(const Endpoint& endpoint, const AdminAccessOptions& options) {
  AdminClient client;
  client.endpoint_ = endpoint.address;
  // Also for an endpoint that does not see it: a wrong file must not look like a missing token.
  KVCOVE_ASSIGN(std::string authorization, AuthorizationOf(options));
  if (endpoint.trusted) client.authorization_ = std::move(authorization);
  if (endpoint.address.starts_with(kUnix)) return client;
  if (!options.tls.empty()) {
    KVCOVE_ASSIGN(client.tls_, rpc::Tls::Open(options.tls));
  }
  KVCOVE_ASSIGN(const rpc::Addresses addresses, rpc::ParseAddresses(endpoint.address, kAdminPort));
  client.endpoint_ = addresses.front().ToString();
  if (addresses.several()) client.FindLeader(endpoint.address);
  return client;
}

// The one that says it leads; else the first that answers, whose answer says why not.
void AdminClient::FindLeader(const std::string& endpoints) {
  const auto addresses = rpc::ParseAddresses(endpoints, kAdminPort);
  std::optional<std::string> leads;
  std::optional<std::string> answers;
  timeout_ns_ = kLookNs;
  for (const rpc::Address& address : addresses->list()) {
    endpoint_ = address.ToString();
    const Result<json> status = Json("GET", "/v1/status", {});
    if (status && !answers) answers = endpoint_;
    if (!status || TextOf(status->value("role", json("leader"))) != "leader") continue;
    leads = endpoint_;
    break;
  }
  timeout_ns_ = kCallNs;
  endpoint_ = leads ? *leads : answers.value_or(addresses->front().ToString());
}

Result<UniqueFd> AdminClient::Connect(std::int64_t deadline_ns) const {
  if (endpoint_.starts_with(kUnix)) {
    const std::string path = endpoint_.substr(kUnix.size());
    return path.starts_with('@') ? rpc::ConnectAbstract(path.substr(1), deadline_ns)
                                 : rpc::ConnectUnix(path, deadline_ns);
  }
  KVCOVE_ASSIGN(const rpc::Address address, rpc::ParseAddress(endpoint_, kAdminPort));
  KVCOVE_ASSIGN(UniqueFd fd, rpc::ConnectTcp(address, deadline_ns));
  if (tls_ == nullptr) return fd;
  return tls_->Connect(std::move(fd), address.host, deadline_ns);
}

Result<http::Response> AdminClient::Ask(const std::string& method, const std::string& path,
                                        const std::map<std::string, std::string>& arguments) const {
  std::string body;
  KVCOVE_ASSIGN(const std::string target, TargetOf(method, path, arguments, body));
  return Send(method, target, body, AnswerTimeNs(arguments));
}

std::int64_t AdminClient::AnswerTimeNs(const std::map<std::string, std::string>& arguments) const {
  const auto asked = arguments.find("timeout_ms");
  if (asked == arguments.end()) return timeout_ns_;
  // The endpoint refuses what is no number.
  std::uint32_t asked_ms = 0;
  const std::string& text = asked->second;
  (void)std::from_chars(text.data(), text.data() + text.size(), asked_ms);
  return timeout_ns_ + std::int64_t{asked_ms} * kMillisecond;
}

Result<http::Response> AdminClient::Send(const std::string& method, const std::string& target,
                                         const std::string& body, std::int64_t timeout_ns) const {
  const std::int64_t deadline_ns = SystemClock::Instance().NowNs() + timeout_ns;
  const auto failed = [&](const Error& error) {
    return Fail(error.code, fmt::format("the admin endpoint {}: {}", endpoint_, error.detail));
  };
  auto fd = Connect(deadline_ns);
  if (!fd) {
    return failed({fd.error().code, fd.error().detail + "; --admin HOST:PORT or --admin unix:PATH "
                                                        "names another endpoint"});
  }
  http::Connection connection(std::move(*fd));
  auto answer = connection.Ask(
      {.method = method,
       .host = endpoint_.starts_with(kUnix) ? std::string_view("localhost") : endpoint_,
       .target = target,
       .authorization = authorization_,
       .body = body},
      deadline_ns);
  if (!answer) return failed(answer.error());
  return answer;
}

Result<json> AdminClient::Json(const std::string& method, const std::string& path,
                               const std::map<std::string, std::string>& arguments) const {
  KVCOVE_ASSIGN(const http::Response response, Ask(method, path, arguments));
  return JsonOf(method, path, response);
}

Result<json> AdminClient::Post(const std::string& path, const json& body) const {
  KVCOVE_ASSIGN(
      const http::Response response,
      Send("POST", path, body.dump(-1, ' ', false, json::error_handler_t::replace), timeout_ns_));
  return JsonOf("POST", path, response);
}

Result<json> AdminClient::JsonOf(std::string_view method, const std::string& path,
                                 const http::Response& response) const {
  json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (response.status == 200 && body.is_object()) return body;
  const bool no_path = !body.is_object() || !body.contains("detail") ||
                       body.value("error", json()) == "no such path";
  if (response.status == 404 && no_path) {
    return Fail(Code::kInvalid,
                fmt::format("{} has no {}: it is not the admin endpoint of a master, or of a pool "
                            "of one host that has this command. docs/operating.md lists what each "
                            "has; a master's is at HOST:{} by default",
                            endpoint_, path, kAdminPort));
  }
  std::string detail = fmt::format("{} {} answered {}", method, path, response.status);
  if (body.is_object() && body.contains("detail")) detail += ": " + TextOf(body["detail"]);
  return Fail(response.status == 401 || response.status == 403 ? Code::kDenied
              : response.status < 500                          ? Code::kInvalid
                                                               : Code::kUnavailable,
              detail);
}

}  // namespace kvcove::cli
