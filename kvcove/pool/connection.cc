// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/connection.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/keys.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/size.h"
#include "kvcove/pool/embedded_admin.h"
#include "kvcove/pool/host_status.h"
#include "kvcove/pool/local_host.h"
#include "kvcove/pool/masters.h"
#include "kvcove/pool/owner_fields.h"
#include "kvcove/pool/pool.h"
#include "kvcove/requester/cluster/cluster_session.h"
#include "kvcove/requester/cluster/placement.h"
#include "kvcove/requester/local/host_session.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/credentials.h"

namespace kvcove::pool {
namespace {

// The way to an owner in this process.
class EmbeddedConnection final : public Connection {
 public:
  EmbeddedConnection(std::shared_ptr<EmbeddedHost> host, bool admin)
      : host_(std::move(host)), admin_(admin ? OpenEmbeddedAdmin(host_->local()) : nullptr) {
    (void)owners_->Add({.socket = "", .host = host_});
  }
  std::string_view form() const override { return "embedded"; }
  Result<SessionPtr> OpenSession(const SessionOptions& options) override {
    return SessionPtr(
        new requester::HostSession(owners_, *owners_, options, SystemClock::Instance()));
  }
  Result<PoolStat> Stat(std::int64_t deadline_ns) override {
    return host_->Current()->service().Stat(deadline_ns);
  }

 private:
  const std::shared_ptr<EmbeddedHost> host_;
  const std::unique_ptr<EmbeddedAdmin> admin_;             // of `host_`; null: there is none
  const std::shared_ptr<requester::LocalOwners> owners_ =  // one owner; sessions share it
      std::make_shared<requester::LocalOwners>();
};

// The way to the owners at one socket of this host and its siblings' sockets.
class SocketConnection final : public Connection {
 public:
  explicit SocketConnection(std::shared_ptr<requester::SocketOwners> host)
      : host_(std::move(host)) {}
  std::string_view form() const override { return "process"; }
  Result<SessionPtr> OpenSession(const SessionOptions& options) override {
    return SessionPtr(
        new requester::HostSession(host_, host_->owners(), options, SystemClock::Instance()));
  }
  // Returns the sum over all owners that answer; an error only if none does.
  Result<PoolStat> Stat(std::int64_t deadline_ns) override {
    Result<PoolStat> sum = requester::NotConnected();
    const std::size_t count = host_->owners().count();
    for (std::size_t i = 0; i < count; ++i) {
      const auto attachment = host_->owners().at(i).host->Current();
      if (attachment == nullptr || !attachment->connected()) continue;
      auto stat = attachment->service().Stat(deadline_ns);
      if (sum && stat) {
        AddStat(*sum, *stat);
      } else if (!sum) {
        sum = std::move(stat);
      }
    }
    return sum;
  }

 private:
  const std::shared_ptr<requester::SocketOwners> host_;
};

class ClusterConnection final : public Connection {
 public:
  explicit ClusterConnection(std::shared_ptr<requester::ClusterHost> host)
      : Connection({host->options().transport}), host_(std::move(host)) {}
  std::string_view form() const override { return "cluster"; }
  Result<SessionPtr> OpenSession(const SessionOptions& given) override {
    SessionOptions options = given;
    KVCOVE_ASSIGN(options.preferred_segment, PreferredSegment(given.preferred_segment));
    return SessionPtr(new requester::ClusterSession(host_, options, SystemClock::Instance()));
  }
  PoolSettings Settings() override {
    wire::MasterSettings told = host_->Settings();
    // A master that listens on all addresses announces the wildcard, to which nobody can connect:
    // the host at which this process reaches the master replaces it.
    if (auto admin = rpc::ParseAddress(told.admin, 0);
        admin && (admin->host == "0.0.0.0" || admin->host == "::")) {
      admin->host = host_->master_address().host;
      told.admin = admin->ToString();
    }
    constexpr std::uint64_t kDay = 24ULL * 3600 * 1000;
    return {.read_hold = std::chrono::milliseconds(std::min(told.read_hold_ms, kDay)),
            .admin = std::move(told.admin),
            .scopes = rpc::ScopeNames(told.scopes)};
  }
  // Returns the sum over all live owners. The master knows their memory and objects only.
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
  // Returns the owners that puts prefer, from the options or the environment; empty: none.
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
    for (const std::string& one : requester::PreferredOwners(segment)) {
      if (const auto address = rpc::ParseAddress(one, 0); !address) {
        return Fail(Code::kInvalid, fmt::format("{}: '{}' is no owner's host:port: {}", source, one,
                                                address.error().detail));
      }
    }
    if (!logged_preferred_.exchange(true)) {
      LogInfo("puts go to the owner at {} first (from {})", segment, source);
    }
    return segment;
  }

  const std::shared_ptr<requester::ClusterHost> host_;
  std::atomic<bool> logged_preferred_ = false;
};

constexpr std::uint64_t kDefaultMemory = 4 * kGiB;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Calls `take` with each key and value of `a=1&b=2`. Only `disk` may be given several times.
Status ForEachOption(std::string_view query,
                     const std::function<Status(std::string_view, std::string_view)>& take) {
  std::set<std::string_view> seen;
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    if (!seen.insert(key).second && key != "disk") {
      return Fail(Code::kInvalid,
                  fmt::format("{}= is in the address more than once; give it once", key));
    }
    KVCOVE_TRY(
        take(key, equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1)));
  }
  return {};
}

// Keys of an embedded pool's address beside those of OwnerFields.
constexpr std::array<std::string_view, 3> kEmbeddedKeys = {"admin", "data", "warm"};

struct EmbeddedOptions {
  LocalHostOptions host;
  bool admin = true;  // the admin interface, in a program that can serve it (embedded_admin.h)
};

std::unexpected<Error> UnknownEmbeddedKey(std::string_view key) {
  std::vector<std::string_view> known(kEmbeddedKeys.begin(), kEmbeddedKeys.end());
  for (const OwnerField& field : OwnerFields()) {
    if (field.in_address) known.push_back(field.key);
  }
  return UnknownKey("key of an embedded pool's address", key, known);
}

Result<EmbeddedOptions> ParseEmbedded(std::string_view query) {
  EmbeddedOptions embedded;
  LocalHostOptions& options = embedded.host;
  options.owner.memory_bytes = kDefaultMemory;
  options.owner.log_resets = false;
  if (const std::string text = Environment("KVCOVE_HUGE_PAGES"); !text.empty()) {
    KVCOVE_ASSIGN(options.owner.huge_pages, ParseHugePages("$KVCOVE_HUGE_PAGES", text));
  }
  std::map<std::string_view, std::vector<std::string>> given;
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key == "data") {
      options.data_directory = value;
    } else if (key == "admin") {
      KVCOVE_ASSIGN(embedded.admin, ParseSwitch(key, value));
    } else if (key == "warm") {
      // Checked and ignored: `warm` is for memory that another process owns. It is allowed because
      // `auto` chooses between both kinds of pool.
      KVCOVE_TRY(requester::ParseWarm(key, value));
    } else {
      given[key].emplace_back(value);
    }
    return {};
  }));
  for (const OwnerField& field : OwnerFields()) {
    if (!field.in_address) continue;
    if (const auto texts = given.extract(field.key)) {
      KVCOVE_TRY(field.read(field.key, texts.mapped(), options));
    }
  }
  if (!given.empty()) return UnknownEmbeddedKey(given.begin()->first);
  // A value on a disk is valid only under generations that outlive the process. They are stored
  // beside the first disk where no directory is given.
  if (!options.owner.disks.empty() && options.data_directory.empty()) {
    options.data_directory = disklog::DiskFileOf(options.owner.disks.front().path) + ".data";
  }
  return embedded;
}

Result<std::unique_ptr<Connection>> OpenEmbedded(std::string_view query) {
  KVCOVE_ASSIGN(const EmbeddedOptions options, ParseEmbedded(query));
  KVCOVE_ASSIGN(auto host, EmbeddedHost::Open(options.host, SystemClock::Instance()));
  return std::make_unique<EmbeddedConnection>(std::move(host), options.admin);
}

// Returns the options of $KVCOVE_WARM, for addresses without `warm`.
Result<requester::WarmOptions> DefaultWarm() {
  const std::string text = Environment("KVCOVE_WARM");
  if (text.empty()) return requester::WarmOptions{};
  return requester::ParseWarm("$KVCOVE_WARM", text);
}

constexpr std::array<std::string_view, 1> kSocketKeys = {"warm"};

// Reads `warm`; calls `others` with each other key.
Result<requester::WarmOptions> ParseWarmKey(
    std::string_view query, const std::function<Status(std::string_view key)>& others) {
  KVCOVE_ASSIGN(requester::WarmOptions warm, DefaultWarm());
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key != "warm") return others(key);
    KVCOVE_ASSIGN(warm, requester::ParseWarm(key, value));
    return {};
  }));
  return warm;
}

Result<std::unique_ptr<Connection>> OpenSocket(const std::string& path,
                                               const requester::WarmOptions& warm,
                                               std::chrono::milliseconds timeout) {
  const Clock& clock = SystemClock::Instance();
  KVCOVE_ASSIGN(auto host, requester::SocketOwners::Connect(
                               path, clock.NowNs() + timeout.count() * kMillisecond, clock, warm));
  return std::make_unique<SocketConnection>(std::move(host));
}

constexpr std::array<std::string_view, 13> kClusterKeys = {
    "local",         "checksum",        "host",    "owner", "placement", "token",
    "tls_authority", "tls_certificate", "tls_key", "warm",  "transport", "devices",
    "rdma_plaintext"};

// The keys of an address about transports.
struct TransportKeys {
  transport::TransportOptions options;
  bool named = false;  // the address has transport=

  // Reads one of them. False: `key` is none.
  Result<bool> Read(std::string_view key, std::string_view value) {
    if (key == "transport") {
      KVCOVE_ASSIGN(options.kind, transport::ParseTransport(key, value));
      named = true;
    } else if (key == "devices") {
      options.devices = value;
    } else if (key == "rdma_plaintext") {
      KVCOVE_ASSIGN(options.plaintext, ParseSwitch(key, value));
    } else {
      return false;
    }
    return true;
  }
  // Refuses keys of RDMA without transport=, with which payload would move by TCP and nothing would
  // say so. Beside transport=tcp they have no effect, either, but the address says that itself.
  Status Check() const {
    if (named || (options.devices.empty() && !options.plaintext)) return {};
    return Fail(
        Code::kInvalid,
        fmt::format("{} is for RDMA, and without transport= payload moves by TCP: add "
                    "transport=auto (RDMA where a device works, else TCP) or "
                    "transport=verbs (RDMA, else an error), or leave it out",
                    options.devices.empty() ? "rdma_plaintext=1" : "devices=" + options.devices));
  }
};

// Connects to the master. A leader that was killed remains named in etcd until its lease ends (2 s
// by default). So where etcd names the leader, a failed attempt is repeated until the deadline:
// another leader may be named by then.
Result<std::unique_ptr<requester::ClusterHost>> ConnectCluster(
    const requester::ClusterHostOptions& options, std::int64_t deadline_ns, const Clock& clock) {
  const bool again = options.master.source() != nullptr;
  // Each attempt has twice the time of the last one: with a fixed time a leader that needs longer
  // would be asked again and again, and never answer in time.
  for (std::int64_t attempt_ns = kSecond;; attempt_ns *= 2) {
    const std::int64_t until_ns =
        again ? std::min(clock.NowNs() + attempt_ns, deadline_ns) : deadline_ns;
    auto host = requester::ClusterHost::Connect(options, until_ns, clock);
    if (host || !again || LeftNs(deadline_ns, clock) <= 0) return host;
    const Code code = host.error().code;
    if (code != Code::kUnavailable && code != Code::kTimeout) return host;
    SleepNs(std::min(100 * kMillisecond, LeftNs(deadline_ns, clock)));
  }
}

Result<std::unique_ptr<Connection>> OpenCluster(std::string_view address, std::string_view query,
                                                std::chrono::milliseconds timeout) {
  const Clock& clock = SystemClock::Instance();
  const std::int64_t deadline_ns = clock.NowNs() + timeout.count() * kMillisecond;
  requester::ClusterHostOptions options;
  KVCOVE_ASSIGN(options.warm, DefaultWarm());
  TransportKeys transport;
  std::string token = Environment("KVCOVE_TOKEN");
  rpc::TlsFiles tls{.authority = Environment("KVCOVE_TLS_AUTHORITY"),
                    .certificate = Environment("KVCOVE_TLS_CERTIFICATE"),
                    .key = Environment("KVCOVE_TLS_KEY")};
  KVCOVE_TRY(ForEachOption(query, [&](std::string_view key, std::string_view value) -> Status {
    if (key == "local") {
      KVCOVE_ASSIGN(options.local, ParseSwitch(key, value));
    } else if (key == "checksum") {
      KVCOVE_ASSIGN(options.checksum, ParseSwitch(key, value));
    } else if (key == "host") {
      options.host = value;
    } else if (key == "owner") {
      options.owner = value;
    } else if (key == "placement") {
      KVCOVE_ASSIGN(options.placement, ParsePlacement(value));
    } else if (key == "token") {
      token = value;
    } else if (key == "warm") {
      KVCOVE_ASSIGN(options.warm, requester::ParseWarm(key, value));
    } else if (key == "tls_authority") {
      tls.authority = value;
    } else if (key == "tls_certificate") {
      tls.certificate = value;
    } else if (key == "tls_key") {
      tls.key = value;
    } else {
      KVCOVE_ASSIGN(const bool known, transport.Read(key, value));
      if (!known) return UnknownKey("key of a cluster's address", key, kClusterKeys);
    }
    return {};
  }));
  KVCOVE_TRY(transport.Check());
  KVCOVE_ASSIGN(options.access, rpc::LoadAccess(token, tls));
  transport.options.tls = options.access.tls != nullptr;
  KVCOVE_ASSIGN(options.transport, transport::OpenTransport(transport.options));
  KVCOVE_ASSIGN(options.master, FindMasters(address, deadline_ns, clock));
  KVCOVE_ASSIGN(auto host, ConnectCluster(options, deadline_ns, clock));
  return std::make_unique<ClusterConnection>(std::move(host));
}

// Opens the owner at this host's socket, or an embedded pool where there is certainly no owner.
Result<std::unique_ptr<Connection>> OpenAuto(std::string_view query,
                                             std::chrono::milliseconds timeout) {
  const std::string path = DefaultSocketPath();
  KVCOVE_ASSIGN(const std::optional<std::string> none, WhyNoOwner(path));
  if (none) {
    LogInfo("auto: an embedded pool, for at '{}' {}", path, *none);
    return OpenEmbedded(query);
  }
  // Checks all keys in any case: a mistake must not show only on hosts without an owner. Keys other
  // than `warm` have no effect here.
  KVCOVE_TRY(ParseEmbedded(query));
  KVCOVE_ASSIGN(const requester::WarmOptions warm,
                ParseWarmKey(query, [](auto) { return Status{}; }));
  LogInfo("auto: the owner at '{}', this host's", path);
  return OpenSocket(path, warm, timeout);
}

}  // namespace

Result<std::optional<std::string>> WhyNoOwner(const std::string& path) {
  const auto unknown = [&](const std::string& why) {
    return Fail(Code::kUnavailable,
                fmt::format("auto: whether an owner serves '{}' cannot be known: {}; name it by "
                            "$KVCOVE_SOCKET, or say 'embedded:' for a pool of this process's own",
                            path, why));
  };
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return unknown(fmt::format("the path of a socket has {} bytes at most, this one {}",
                               sizeof(address.sun_path) - 1, path.size()));
  }
  struct stat status{};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return "there is no such socket";
    return unknown(std::strerror(errno));
  }
  if (!S_ISSOCK(status.st_mode)) return unknown("it is no socket");
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return unknown(std::strerror(errno));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return std::nullopt;
  }
  // Its queue of connections is full: a process listens, but accepts none now. A frozen owner is
  // still an owner, and an embedded pool would hide it.
  if (errno == EAGAIN) return std::nullopt;
  if (errno == ENOENT) return "there is no such socket";
  if (errno == ECONNREFUSED) return "nobody listens there any more";
  return unknown(std::strerror(errno));
}

Result<std::unique_ptr<Connection>> OpenConnection(std::string_view address,
                                                   std::chrono::milliseconds timeout) {
  const std::size_t mark = address.find('?');
  const std::string_view query =
      mark == std::string_view::npos ? std::string_view() : address.substr(mark + 1);
  const std::string_view scheme = address.substr(0, mark);
  if (scheme == "embedded:" || scheme == "embedded") return OpenEmbedded(query);
  if (scheme.starts_with("unix:")) {
    KVCOVE_ASSIGN(const requester::WarmOptions warm, ParseWarmKey(query, [](auto key) {
                    return UnknownKey("key of a socket's address", key, kSocketKeys);
                  }));
    return OpenSocket(std::string(scheme.substr(5)), warm, timeout);
  }
  constexpr std::string_view kCluster = "kvcove://";
  if (scheme.starts_with(kCluster)) {
    return OpenCluster(scheme.substr(kCluster.size()), query, timeout);
  }
  if (scheme == "auto") {
    const char* named = std::getenv("KVCOVE_POOL");
    if (named != nullptr && *named != '\0' && !std::string_view(named).starts_with("auto")) {
      auto opened = OpenConnection(named, timeout);
      if (!opened) return Fail(opened.error().code, "$KVCOVE_POOL: " + opened.error().detail);
      // No whole address: it may hold a token.
      LogInfo("auto: a pool of the form '{}', as $KVCOVE_POOL says", (*opened)->form());
      return opened;
    }
    return OpenAuto(query, timeout);
  }
  return Fail(Code::kInvalid,
              fmt::format("'{}' is not a pool's address; use embedded:?memory=4GiB, "
                          "unix:/path/of/socket, kvcove://master:7400 or auto",
                          address));
}

}  // namespace kvcove::pool
