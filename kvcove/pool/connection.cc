// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/connection.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <functional>

#include "kvcove/base/keys.h"
#include "kvcove/base/log.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/pool/pool.h"
#include "kvcove/requester/cluster_session.h"
#include "kvcove/requester/host_session.h"
#include "kvcove/requester/remote_host.h"
#include "kvcove/rpc/address.h"

namespace kvcove::pool {
namespace {

// A pool of one host: embedded, or a daemon's.
class HostConnection final : public Connection {
 public:
  HostConnection(std::shared_ptr<requester::Host> host, std::string_view form)
      : host_(std::move(host)), form_(form) {}
  std::string_view form() const override { return form_; }
  Result<SessionPtr> OpenSession(const SessionOptions& options) override {
    return SessionPtr(new requester::HostSession(host_, options, SystemClock::Instance()));
  }
  Result<PoolStat> Stat(std::int64_t deadline_ns) override {
    const auto attachment = host_->Current();
    if (attachment == nullptr || !attachment->connected()) {
      return Fail(Code::kUnavailable, "not connected to the pool; connecting again");
    }
    return attachment->service().Stat(deadline_ns);
  }

 private:
  const std::shared_ptr<requester::Host> host_;
  const std::string_view form_;
};

class ClusterConnection final : public Connection {
 public:
  explicit ClusterConnection(std::shared_ptr<requester::ClusterHost> host)
      : host_(std::move(host)) {}
  std::string_view form() const override { return "cluster"; }
  Result<SessionPtr> OpenSession(const SessionOptions& given) override {
    SessionOptions options = given;
    KVCOVE_ASSIGN(options.preferred_segment, PreferredSegment(given.preferred_segment));
    return SessionPtr(new requester::ClusterSession(host_, options, SystemClock::Instance()));
  }
  // The sum of all owners that live.
  Result<PoolStat> Stat(std::int64_t deadline_ns) override {
    KVCOVE_ASSIGN(const wire::OwnersReply reply, host_->master().Owners(deadline_ns));
    PoolStat sum;
    for (const wire::OwnerStat& owner : reply.owners) {
      if (!owner.live) continue;
      sum.payload_bytes += owner.capacity_bytes;
      sum.populated_bytes += owner.capacity_bytes;
      sum.free_bytes += owner.free_bytes;
      sum.objects += owner.objects;
    }
    return sum;
  }

 private:
  // The owner that puts go to, from the options or the environment; empty: none is preferred.
  Result<std::string> PreferredSegment(const std::string& given) {
    std::string segment = given;
    std::string_view source = "preferred_segment";
    for (const char* variable : {"KVCOVE_PREFERRED_SEGMENT", "MOONCAKE_PREFERRED_SEGMENT"}) {
      const char* named = std::getenv(variable);
      if (!segment.empty() || named == nullptr) continue;
      segment = named;
      source = variable;
    }
    if (segment.empty()) return segment;
    if (const auto address = rpc::ParseAddress(segment, 0); !address) {
      return Fail(Code::kInvalid, fmt::format("{}: '{}' is no owner's host:port: {}", source,
                                              segment, address.error().detail));
    }
    if (!said_preferred_.exchange(true)) {
      LogInfo("puts go to the owner at {} first (from {})", segment, source);
    }
    return segment;
  }

  const std::shared_ptr<requester::ClusterHost> host_;
  std::atomic<bool> said_preferred_ = false;
};

constexpr std::array<std::string_view, 4> kEmbeddedKeys = {"memory", "policy", "max_objects",
                                                           "populate"};
constexpr std::uint64_t kDefaultMemory = 4 * kGiB;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<std::uint64_t> ParseCount(std::string_view key, std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kInvalid, fmt::format("{}='{}' is not a number", key, text));
  }
  return value;
}

// Calls `take` with each key and value of `a=1&b=2`.
Status ForEachOption(std::string_view query,
                     const std::function<Status(std::string_view, std::string_view)>& take) {
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t equals = pair.find('=');
    KVCOVE_TRY(take(pair.substr(0, equals), equals == std::string_view::npos
                                                ? std::string_view()
                                                : pair.substr(equals + 1)));
  }
  return {};
}

Result<LocalHostOptions> ParseEmbedded(std::string_view query) {
  LocalHostOptions options;
  options.owner.memory_bytes = kDefaultMemory;
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key == "memory") {
      KVCOVE_ASSIGN(options.owner.memory_bytes, ParseSize(value));
    } else if (key == "policy") {
      options.owner.policy = value;
    } else if (key == "max_objects") {
      KVCOVE_ASSIGN(options.owner.max_objects, ParseCount(key, value));
    } else if (key == "populate") {
      KVCOVE_ASSIGN(const std::uint64_t populate, ParseCount(key, value));
      options.owner.populate = populate != 0;
    } else {
      return UnknownKey("key of an embedded pool's address", key, kEmbeddedKeys);
    }
    return {};
  }));
  return options;
}

Result<std::unique_ptr<Connection>> OpenEmbedded(std::string_view query) {
  KVCOVE_ASSIGN(const LocalHostOptions options, ParseEmbedded(query));
  KVCOVE_ASSIGN(auto host, EmbeddedHost::Open(options, SystemClock::Instance()));
  return std::make_unique<HostConnection>(std::move(host), "embedded");
}

Result<std::unique_ptr<Connection>> OpenSocket(const std::string& path,
                                               std::chrono::milliseconds timeout) {
  const Clock& clock = SystemClock::Instance();
  KVCOVE_ASSIGN(auto host, requester::RemoteHost::Connect(
                               path, clock.NowNs() + timeout.count() * kMillisecond, clock));
  return std::make_unique<HostConnection>(std::move(host), "process");
}

constexpr std::array<std::string_view, 9> kClusterKeys = {
    "local",         "checksum",        "host",   "owner", "placement", "token",
    "tls_authority", "tls_certificate", "tls_key"};
constexpr std::uint16_t kMasterPort = 7400;

Result<std::unique_ptr<Connection>> OpenCluster(std::string_view address, std::string_view query,
                                                std::chrono::milliseconds timeout) {
  requester::ClusterHostOptions options;
  KVCOVE_ASSIGN(options.master, rpc::ParseAddress(address, kMasterPort));
  std::string token = Environment("KVCOVE_TOKEN");
  rpc::TlsFiles tls{.authority = Environment("KVCOVE_TLS_AUTHORITY"),
                    .certificate = Environment("KVCOVE_TLS_CERTIFICATE"),
                    .key = Environment("KVCOVE_TLS_KEY")};
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key == "local") {
      KVCOVE_ASSIGN(const std::uint64_t local, ParseCount(key, value));
      options.local = local != 0;
    } else if (key == "checksum") {
      KVCOVE_ASSIGN(const std::uint64_t checksum, ParseCount(key, value));
      options.checksum = checksum != 0;
    } else if (key == "host") {
      options.host = value;
    } else if (key == "owner") {
      options.owner = value;
    } else if (key == "placement") {
      KVCOVE_ASSIGN(options.placement, ParsePlacement(value));
    } else if (key == "token") {
      token = value;
    } else if (key == "tls_authority") {
      tls.authority = value;
    } else if (key == "tls_certificate") {
      tls.certificate = value;
    } else if (key == "tls_key") {
      tls.key = value;
    } else {
      return UnknownKey("key of a cluster's address", key, kClusterKeys);
    }
    return {};
  }));
  KVCOVE_ASSIGN(options.access, rpc::LoadAccess(token, tls));
  const Clock& clock = SystemClock::Instance();
  KVCOVE_ASSIGN(auto host, requester::ClusterHost::Connect(
                               options, clock.NowNs() + timeout.count() * kMillisecond, clock));
  return std::make_unique<ClusterConnection>(std::move(host));
}

}  // namespace

Result<std::unique_ptr<Connection>> OpenConnection(std::string_view address,
                                                   std::chrono::milliseconds timeout) {
  const std::size_t mark = address.find('?');
  const std::string_view query =
      mark == std::string_view::npos ? std::string_view() : address.substr(mark + 1);
  const std::string_view scheme = address.substr(0, mark);
  if (scheme == "embedded:" || scheme == "embedded") return OpenEmbedded(query);
  if (address.starts_with("unix:")) return OpenSocket(std::string(address.substr(5)), timeout);
  constexpr std::string_view kCluster = "kvcove://";
  if (scheme.starts_with(kCluster)) {
    return OpenCluster(scheme.substr(kCluster.size()), query, timeout);
  }
  if (scheme == "auto") {
    const char* named = std::getenv("KVCOVE_POOL");
    if (named != nullptr && *named != '\0' && !std::string_view(named).starts_with("auto")) {
      auto opened = OpenConnection(named, timeout);
      if (opened) return opened;
      return Fail(opened.error().code, "$KVCOVE_POOL: " + opened.error().detail);
    }
    const std::string path = DefaultSocketPath();
    struct stat status{};
    if (stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) {
      auto opened = OpenSocket(path, timeout);
      // A socket that a dead daemon left behind is as good as none.
      if (opened || opened.error().code != Code::kUnavailable) return opened;
    }
    return OpenEmbedded(query);
  }
  return Fail(Code::kInvalid,
              fmt::format("'{}' is not a pool's address; use embedded:?memory=4GiB, "
                          "unix:/path/of/socket, kvcove://master:7400 or auto",
                          address));
}

}  // namespace kvcove::pool
