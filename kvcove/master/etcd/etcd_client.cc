// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/etcd/etcd_client.h"

#include <fmt/core.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>

namespace kvcove::master {
namespace {

using nlohmann::json;

constexpr std::uint16_t kEtcdPort = 2379;
constexpr std::size_t kMaxEndpoints = 16;
constexpr std::size_t kMaxPrefixBytes = 256;
constexpr int kMaxLatePasswords = 2;

// gRPC's codes, which the gateway passes on.
enum Grpc : int {
  kInvalidArgument = 3,
  kNotFound = 5,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kOutOfRange = 11,
  kUnauthenticated = 16,
};

bool TokenIsOld(const Error& error) {
  return error.detail.find("invalid auth token") != std::string::npos ||
         error.detail.find("revision of auth store is old") != std::string::npos;
}

// Translates etcd's error. Any other code is ambiguous: etcd may have made the call.
Error ErrorOf(int code, const std::string& text) {
  const auto says = [&](std::string_view what) { return text.find(what) != std::string::npos; };
  const auto error = [&](Code ours, std::string_view more = {}) {
    return Error{.code = ours, .detail = fmt::format("{}{}", text, more), .answered = true};
  };
  switch (code) {
    case kInvalidArgument:
      if (says("user name is empty")) {
        return error(Code::kDenied,
                     ": etcd wants to know who asks; give --store-user-file (a client: "
                     "$KVCOVE_STORE_USER_FILE)");
      }
      if (says("authentication failed")) {
        return error(Code::kDenied, " (user or password is wrong)");
      }
      return error(says("too large") || says("too many") ? Code::kLimit : Code::kInvalid);
    case kNotFound:
      return error(Code::kMiss);
    case kPermissionDenied:
    case kUnauthenticated:
      return error(Code::kDenied);
    case kResourceExhausted:
      if (says("space exceeded")) {
        return error(Code::kNoSpace,
                     " (etcd's quota is used up: compact and defragment it, then "
                     "disarm its alarm; docs/ha.md)");
      }
      return error(says("too large") ? Code::kLimit : Code::kUnavailable);
    case kFailedPrecondition:
      if (says("authentication is not enabled")) {
        return error(Code::kInvalid,
                     ", so --store-user-file (a client: $KVCOVE_STORE_USER_FILE) would protect "
                     "nothing; leave it out");
      }
      return error(Code::kInvalid);
    case kOutOfRange:
      return error(Code::kStale);
    default:
      return {.code = Code::kUnavailable, .detail = text};
  }
}

Result<json> Parse(const http::Response& response) {
  json body = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object()) {
    return Fail(response.status == 404 ? Code::kIncompatible : Code::kUnavailable,
                fmt::format("HTTP status {}: no answer of etcd's JSON gateway (etcd 3.4 or later): "
                            "'{:.80}'",
                            response.status, response.body));
  }
  // The gateway puts the error of a stream into a member `error`.
  const json* error = &body;
  if (const auto at = body.find("error"); at != body.end() && at->is_object()) error = &*at;
  if (response.status == 200 && error == &body && !body.contains("error")) return body;
  const json code = error->value("code", error->value("grpc_code", json(0)));
  const json text = error->value("message", json(response.body));
  return std::unexpected(ErrorOf(code.is_number_integer() ? code.get<int>() : 0,
                                 text.is_string() ? text.get<std::string>() : text.dump()));
}

bool Ambiguous(const Error& error) {
  return error.code == Code::kUnavailable || error.code == Code::kTimeout ||
         error.code == Code::kCorrupt;
}

const json& HeaderOf(const json& answer) {
  static const json none = json::object();
  const json* holder = &answer;
  if (const auto result = answer.find("result"); result != answer.end()) holder = &*result;
  const auto header = holder->is_object() ? holder->find("header") : holder->end();
  return header == holder->end() ? none : *header;
}

}  // namespace

std::string EtcdPlace::ToString() const {
  std::string text(kEtcdScheme);
  for (const rpc::Address& endpoint : endpoints) {
    if (!text.ends_with('/')) text += ',';
    text += endpoint.ToString();
  }
  return text + prefix.substr(0, prefix.size() - 1);
}

Result<EtcdPlace> ParseEtcdPlace(std::string_view text) {
  const auto wrong = [&](std::string_view why) {
    return Fail(
        Code::kInvalid,
        fmt::format("'{}': {}; write etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX", text, why));
  };
  if (!text.starts_with(kEtcdScheme)) return wrong("this is no store of etcd");
  std::string_view rest = text.substr(kEtcdScheme.size());
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos) return wrong("the prefix of the pool's keys is missing");
  EtcdPlace place;
  place.prefix = rest.substr(slash);
  while (place.prefix.ends_with('/')) place.prefix.pop_back();
  if (place.prefix.empty()) return wrong("the prefix of the pool's keys is missing");
  if (place.prefix.size() > kMaxPrefixBytes || place.prefix.find("//") != std::string::npos ||
      std::ranges::any_of(place.prefix, [](unsigned char c) { return c <= ' ' || c >= 0x7F; })) {
    return wrong("the prefix has odd characters, empty parts or more than 256 bytes");
  }
  place.prefix += '/';
  rest = rest.substr(0, slash);
  while (true) {
    const std::size_t comma = rest.find(',');
    KVCOVE_ASSIGN(rpc::Address endpoint, rpc::ParseAddress(rest.substr(0, comma), kEtcdPort));
    if (std::ranges::find(place.endpoints, endpoint) == place.endpoints.end()) {
      place.endpoints.push_back(std::move(endpoint));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (place.endpoints.size() > kMaxEndpoints) return wrong("more than 16 endpoints");
  return place;
}

Result<EtcdOptions> LoadEtcd(std::string_view place, const EtcdFiles& files) {
  EtcdOptions etcd;
  KVCOVE_ASSIGN(etcd.place, ParseEtcdPlace(place));
  if (!files.user.empty()) {
    KVCOVE_ASSIGN(etcd.user, rpc::LoadUserPassword(files.user));
  }
  if (files.tls.empty()) return etcd;
  if (files.tls.authority.empty()) {
    return Fail(Code::kInvalid,
                "--store-tls-certificate and --store-tls-key (clients: "
                "$KVCOVE_STORE_TLS_CERTIFICATE, ..._KEY) need --store-tls-authority "
                "($KVCOVE_STORE_TLS_AUTHORITY), which says whom to trust");
  }
  rpc::TlsFiles tls = files.tls;
  tls.foreign_server = true;
  KVCOVE_ASSIGN(etcd.tls, rpc::Tls::Open(tls));
  return etcd;
}

Status EtcdCluster::Check(const std::string& id, const rpc::Address& endpoint) {
  const MutexLock lock(mutex_);
  if (id_.empty()) {
    id_ = id;
    from_ = endpoint.ToString();
  }
  if (id == id_) return {};
  return Fail(Code::kIncompatible,
              fmt::format("endpoints of two clusters: {} belongs to cluster {}, {} to cluster {}",
                          from_, id_, endpoint.ToString(), id));
}

Status EtcdClient::Connect(std::size_t endpoint, std::int64_t deadline_ns) {
  if (connection_ && connection_->usable() && connected_to_ == endpoint) return {};
  connection_.reset();
  const rpc::Address& address = options_.place.endpoints[endpoint];
  KVCOVE_ASSIGN(UniqueFd fd, rpc::ConnectTcp(address, deadline_ns));
  if (options_.tls != nullptr) {
    auto tunnel = options_.tls->Connect(std::move(fd), address.host, deadline_ns);
    if (!tunnel) {
      Error error = tunnel.error();
      if (error.code == Code::kDenied) {
        error.detail +=
            "; either its certificate is not signed by the authority in "
            "--store-tls-authority (a client: $KVCOVE_STORE_TLS_AUTHORITY) or is not for this "
            "name, or it refuses ours";
      }
      return std::unexpected(std::move(error));
    }
    fd = std::move(*tunnel);
  }
  connection_.emplace(std::move(fd));
  connected_to_ = endpoint;
  return {};
}

Result<json> EtcdClient::Post(std::size_t endpoint, std::string_view path, const json& body,
                              std::int64_t deadline_ns) {
  KVCOVE_TRY(Connect(endpoint, deadline_ns));
  const std::string host = NameOf(endpoint);
  const std::string text = body.dump();
  const auto response = connection_->Ask(
      {.host = host, .target = path, .authorization = token_, .body = text}, deadline_ns);
  if (!response) {
    unsure_ = true;
    Error error = response.error();
    if (options_.tls == nullptr && error.code == Code::kUnavailable) {
      error.detail +=
          " (if it speaks TLS, give --store-tls-authority; a client: $KVCOVE_STORE_TLS_AUTHORITY)";
    }
    return std::unexpected(std::move(error));
  }
  Result<json> parsed = Parse(*response);
  if (!parsed) {
    unsure_ = unsure_ || Ambiguous(parsed.error());
    return std::unexpected(std::move(parsed).error());
  }
  json answer = std::move(*parsed);
  const json& header = HeaderOf(answer);
  const auto cluster = header.find("cluster_id");
  if (cluster == header.end() || !cluster->is_string()) {
    return Fail(Code::kUnavailable, "an answer without etcd's header");
  }
  KVCOVE_TRY(
      options_.cluster->Check(cluster->get<std::string>(), options_.place.endpoints[endpoint]));
  return answer;
}

Status EtcdClient::Authenticate(std::size_t endpoint, std::int64_t deadline_ns) {
  token_.clear();
  KVCOVE_TRY(Connect(endpoint, deadline_ns));
  const Result<json> answer =
      Post(endpoint, "/v3/auth/authenticate",
           {{"name", options_.user.user}, {"password", options_.user.password}}, deadline_ns);
  if (!answer) {
    if (answer.error().code == Code::kTimeout) {
      late_passwords_ = std::min(late_passwords_ + 1, kMaxLatePasswords);
    }
    return std::unexpected(answer.error());
  }
  late_passwords_ = 0;
  token_ = answer->value("token", std::string());
  if (token_.empty()) return Fail(Code::kDenied, "etcd gave no token for this user");
  return {};
}

Result<json> EtcdClient::CallAt(std::size_t endpoint, std::string_view path, const json& body,
                                std::int64_t deadline_ns) {
  // A kept connection may have ended unnoticed, so the call is sent once more over a new one. Every
  // call may be sent twice (EtcdStore, EtcdLeadership::Campaign).
  const bool kept = connection_ && connection_->usable() && connected_to_ == endpoint;
  const bool fresh_token = token_.empty();
  if (!options_.user.user.empty() && token_.empty()) {
    KVCOVE_TRY(Authenticate(endpoint, deadline_ns));
  }
  Result<json> answer = Post(endpoint, path, body, deadline_ns);
  if (!answer && kept && answer.error().code == Code::kUnavailable && !connection_->usable()) {
    answer = Post(endpoint, path, body, deadline_ns);
  }
  if (!answer && !options_.user.user.empty() && !fresh_token && TokenIsOld(answer.error())) {
    KVCOVE_TRY(Authenticate(endpoint, deadline_ns));
    answer = Post(endpoint, path, body, deadline_ns);
  }
  return answer;
}

Result<json> EtcdClient::Call(std::string_view path, const json& body, std::int64_t deadline_ns,
                              std::int64_t attempt_ns) {
  Error failed{.code = Code::kTimeout, .detail = "the deadline had passed before the call"};
  unsure_ = false;
  std::string details;
  const std::size_t count = options_.place.endpoints.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t endpoint = (current_ + i) % count;
    const std::int64_t now = clock_.NowNs();
    if (now >= deadline_ns) break;
    Result<json> answer =
        CallAt(endpoint, path, body, std::min(deadline_ns, now + AttemptNs(attempt_ns)));
    if (answer) {
      current_ = endpoint;
      return answer;
    }
    failed = std::move(answer).error();
    failed.detail = fmt::format("etcd at {}: {}", NameOf(endpoint), failed.detail);
    // A clear refusal is etcd's answer: another endpoint of the cluster would give the same. Errors
    // that this client finds (`answered` false), such as another cluster, say nothing about others.
    if (failed.answered && !Ambiguous(failed) && !unsure_) {
      current_ = endpoint;
      return std::unexpected(std::move(failed));
    }
    details += (details.empty() ? "" : "; ") + failed.detail;
  }
  if (!details.empty()) failed.detail = details;
  // A refusal by a later endpoint says nothing about an earlier attempt without an answer.
  if (unsure_ && !Ambiguous(failed)) failed.code = Code::kUnavailable;
  if (failed.code == Code::kCorrupt) failed.code = Code::kUnavailable;
  failed.answered = false;
  // The next call begins at the next endpoint.
  current_ = (current_ + 1) % count;
  return std::unexpected(std::move(failed));
}

Status EtcdClient::CheckEndpoints(std::int64_t deadline_ns) {
  std::string details;
  Code code = Code::kUnavailable;
  std::optional<std::size_t> good;
  bool leader = false;
  for (std::size_t i = 0; i < options_.place.endpoints.size(); ++i) {
    const std::int64_t until_ns = std::min(deadline_ns, clock_.NowNs() + AttemptNs(kSecond));
    const Result<json> answer = CallAt(i, "/v3/maintenance/status", json::object(), until_ns);
    if (answer) {
      leader = leader || EtcdNumber(*answer, "leader") != 0;
      if (!good) good = i;
      continue;
    }
    const Error& error = answer.error();
    if (error.code == Code::kIncompatible || (error.answered && !Ambiguous(error))) {
      return Fail(error.code, fmt::format("etcd at {}: {}", NameOf(i), error.detail));
    }
    if (!Ambiguous(error)) code = error.code;
    details +=
        fmt::format("{}etcd at {}: {}", details.empty() ? "" : "; ", NameOf(i), error.detail);
  }
  if (!good) return Fail(code, details);
  current_ = *good;
  if (leader) return {};
  return Fail(Code::kUnavailable,
              fmt::format("etcd at {} answers, but has no leader: its cluster has no quorum{}{}",
                          NameOf(*good), details.empty() ? "" : "; ", details));
}

Error EtcdClient::Explain(const Error& error, std::int64_t deadline_ns) {
  if (!Ambiguous(error)) return error;
  const Status checked = CheckEndpoints(deadline_ns);
  return checked ? error : checked.error();
}

std::string ToBase64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                     reinterpret_cast<const unsigned char*>(bytes.data()),
                                     static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(length));
  return text;
}

std::optional<std::string> FromBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::int64_t EtcdNumber(const json& object, const char* field) {
  const auto at = object.find(field);
  if (at == object.end()) return 0;
  if (at->is_number()) return at->get<std::int64_t>();
  if (!at->is_string()) return 0;
  const auto& text = at->get_ref<const std::string&>();
  std::uint64_t value = 0;  // some are unsigned
  std::int64_t number = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc()) {
    return number;
  }
  std::from_chars(text.data(), text.data() + text.size(), value);
  return static_cast<std::int64_t>(value);
}

json EtcdCompareCreated(std::string_view key, std::int64_t revision) {
  return json::object(
      {{"target", "CREATE"}, {"key", ToBase64(key)}, {"createRevision", std::to_string(revision)}});
}

json EtcdCompareModified(std::string_view key, std::int64_t revision) {
  return json::object(
      {{"target", "MOD"}, {"key", ToBase64(key)}, {"modRevision", std::to_string(revision)}});
}

json EtcdPut(std::string_view key, std::string_view value, const std::string& lease) {
  json put = json::object({{"key", ToBase64(key)}, {"value", ToBase64(value)}});
  if (!lease.empty()) put["lease"] = lease;
  return json::object({{"requestPut", std::move(put)}});
}

json EtcdGet(std::string_view key) {
  return json::object({{"requestRange", json::object({{"key", ToBase64(key)}})}});
}

json EtcdDelete(std::string_view key) {
  return json::object({{"requestDeleteRange", json::object({{"key", ToBase64(key)}})}});
}

json EtcdDeletePrefix(const std::string& prefix) {
  return json::object(
      {{"requestDeleteRange",
        json::object({{"key", ToBase64(prefix)}, {"range_end", ToBase64(EndOfPrefix(prefix))}})}});
}

json EtcdRangeOf(const json& answer, std::size_t place) {
  const auto responses = answer.find("responses");
  if (responses == answer.end() || !responses->is_array() || place >= responses->size()) {
    return json::object();
  }
  const json& response = (*responses)[place];
  return response.is_object() ? response.value("response_range", json::object()) : json::object();
}

std::string EndOfPrefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xFF) prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');
  prefix.back() = static_cast<char>(static_cast<unsigned char>(prefix.back()) + 1);
  return prefix;
}

}  // namespace kvcove::master
