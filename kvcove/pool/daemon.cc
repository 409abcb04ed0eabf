// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/daemon.h"

#include <fcntl.h>

#include <atomic>
#include <map>

#include "kvcove/base/log.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::pool {
namespace {

constexpr std::size_t kWorkers = 16;  // they mostly wait
constexpr std::size_t kControlWorkers = 8;
// For which a daemon waits for the first connection that attends it, and for another one when the
// last has closed: one that was frozen finds connections that were given up, and new ones behind
// them.
constexpr std::int64_t kFirstAttendantNs = 10 * kSecond;
constexpr std::int64_t kNextAttendantNs = kSecond;

}  // namespace
// What it keeps of connections and sessions belongs to the event loop's thread.
class Daemon::Impl final : public rpc::Handler {
 public:
  Impl(std::unique_ptr<LocalHost> host, const Clock& clock)
      : host_(std::move(host)),
        clock_(clock),
        attended_until_ns_(clock.NowNs() + kFirstAttendantNs) {}
  ~Impl() override {
    // First nothing new comes; then what waits ends by its deadline, its answers going nowhere.
    if (server_ != nullptr) server_->Stop();
    workers_.reset();
    control_workers_.reset();
    for (const auto& [number, session] : sessions_) host_->EndSession(number);
  }

  Status Listen(const std::string& socket_path, const rpc::UnixAccess& access) {
    rpc::ServerOptions server;
    server.socket_path = socket_path;
    server.unix_access = access;
    KVCOVE_ASSIGN(server_, rpc::Server::Open(server, *this));
    workers_ = std::make_unique<rpc::Workers>(kWorkers);
    control_workers_ = std::make_unique<rpc::Workers>(kControlWorkers);
    server_->Start();
    return {};
  }
  LocalHost& host() { return *host_; }
  bool Unattended() const { return attendants_ == 0 && clock_.NowNs() > attended_until_ns_; }

  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override {
    connections_[id] = {.peer = peer};
  }
  void OnClose(rpc::ConnectionId id) override {
    const auto at = connections_.find(id);
    if (at == connections_.end()) return;
    const Connection connection = at->second;
    connections_.erase(at);
    if (connection.attends) {
      attended_until_ns_ = clock_.NowNs() + kNextAttendantNs;
      --attendants_;
    }
    // A session that was used may still read and write what it has mapped. Another one is of no use
    // to anybody: its caller gave up waiting for the hello, or ended.
    const auto session = sessions_.find(connection.session);
    if (connection.greeted && session != sessions_.end() && !session->second.used) {
      EndSession(connection.session);
    }
  }
  bool Admitted(rpc::ConnectionId id) const override {
    const auto at = connections_.find(id);
    return at != connections_.end() && (at->second.session != 0 || at->second.attends);
  }
  void OnProcessGone(std::uint64_t watch) override {
    const auto at = sessions_.find(watch);
    if (at == sessions_.end()) return;
    LogDebug("process {} is gone; its session {} ends", at->second.pid, watch);
    EndSession(watch);
  }

  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t deadline_ns, rpc::Responder respond) override {
    Connection& connection = connections_.at(id);
    if (method == wire::Method::kHello) return Hello(id, connection, body, respond);
    if (method == wire::Method::kJoin) return Join(connection, body, respond);
    if (method == wire::Method::kAttend) return Attend(connection, respond);
    const auto session = sessions_.find(connection.session);
    if (session == sessions_.end()) {
      return respond(rpc::ErrorReply({Code::kDenied, "say hello first"}, /*close=*/true));
    }
    if (method == wire::Method::kGoodbye) {
      EndSession(session->first);
      return respond({});
    }
    session->second.used = true;
    const std::shared_ptr<wire::HostService> service = session->second.service;
    // In a cluster whatever stores or removes waits for the master.
    const bool waits = method == wire::Method::kStat || wire::MayWait(method) ||
                       (host_->in_cluster() && wire::MayWaitInCluster(method));
    if (!waits) return respond(Answer(*service, method, body, deadline_ns));
    // What the master must decide may wait for as long as the master is away; puts do not, and
    // statistics wait for nobody.
    const bool puts = method == wire::Method::kPut || method == wire::Method::kFinish ||
                      method == wire::Method::kStat;
    rpc::Workers& workers = puts ? *workers_ : *control_workers_;
    const bool posted = workers.Post([service, method, deadline_ns, respond,
                                      copy = std::vector<std::byte>(body.begin(), body.end())] {
      respond(Answer(*service, method, copy, deadline_ns));
    });
    if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
  }

 private:
  struct Connection {
    rpc::Peer peer;
    wire::SessionNumber session = 0;
    bool greeted = false;  // the session began with it
    bool attends = false;
  };
  struct Session {
    std::int32_t pid = 0;
    bool used = false;  // somebody has joined it, or called
    Id128 secret;
    std::shared_ptr<wire::HostService> service;
  };

  static rpc::Reply Answer(wire::HostService& service, wire::Method method,
                           std::span<const std::byte> body, std::int64_t deadline_ns) {
    Result<std::string> answer = wire::ServeHost(service, method, body, deadline_ns);
    if (answer) return {.code = Code::kOk, .body = std::move(*answer), .fds = {}};
    return rpc::ErrorReply(answer.error(), /*close=*/answer.error().code == Code::kCorrupt);
  }

  void Hello(rpc::ConnectionId id, Connection& connection, std::span<const std::byte> body,
             const rpc::Responder& respond) {
    const auto fail = [&](const Error& error) { respond(rpc::ErrorReply(error, /*close=*/true)); };
    if (const auto name = wire::DecodeHello(body); !name) return fail(name.error());
    if (connection.session != 0) return fail({Code::kInvalid, "this connection has a session"});
    UniqueFd process = server_->PeerProcess(id);
    if (!process.valid()) return fail({Code::kDenied, "the peer's process cannot be watched"});
    Result<owner::Owner::Grant> grant = host_->AddSession(connection.peer.pid);
    if (!grant) return fail(grant.error());
    rpc::Reply reply;
    for (const int fd : {host_->owner().header_fd(), host_->owner().payload_fd()}) {
      reply.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    }
    reply.fds.push_back(std::move(grant->page));
    if (const int lineage = host_->lineage_fd(); lineage >= 0) {
      reply.fds.emplace_back(fcntl(lineage, F_DUPFD_CLOEXEC, 0));
    }
    const wire::Welcome welcome{
        .session = grant->number, .secret = RandomId(), .now_ns = clock_.NowNs()};
    sessions_[welcome.session] = {.pid = connection.peer.pid,
                                  .secret = welcome.secret,
                                  .service = host_->ServiceFor(welcome.session)};
    server_->WatchProcess(std::move(process), welcome.session);
    connection.session = welcome.session;
    connection.greeted = true;
    reply.body = wire::EncodeWelcome(welcome);
    respond(std::move(reply));
  }

  void Join(Connection& connection, std::span<const std::byte> body,
            const rpc::Responder& respond) {
    const auto asked = wire::DecodeJoin(body);
    if (!asked) return respond(rpc::ErrorReply(asked.error(), /*close=*/true));
    const auto session = sessions_.find(asked->session);
    if (session == sessions_.end() || session->second.secret != asked->secret ||
        session->second.pid != connection.peer.pid) {
      return respond(rpc::ErrorReply({Code::kDenied, "no such session of this process"}, true));
    }
    connection.session = asked->session;
    session->second.used = true;
    respond({});
  }

  void Attend(Connection& connection, const rpc::Responder& respond) {
    if (!std::exchange(connection.attends, true)) ++attendants_;
    respond({.code = Code::kOk,
             .body = wire::Encode(
                 wire::Attendance{.lease_left_ns = host_->owner().LeaseUntilNs() - clock_.NowNs(),
                                  .attendants = attendants_,
                                  .address = host_->advertised()}),
             .fds = {}});
  }

  void EndSession(wire::SessionNumber number) {
    server_->UnwatchProcess(number);
    sessions_.erase(number);
    host_->EndSession(number);
  }

  std::unique_ptr<LocalHost> host_;
  const Clock& clock_;
  // Read by another thread, too: see Unattended.
  std::atomic<std::uint32_t> attendants_ = 0;
  std::atomic<std::int64_t> attended_until_ns_;  // while there are none
  std::map<rpc::ConnectionId, Connection> connections_;
  std::map<wire::SessionNumber, Session> sessions_;
  std::unique_ptr<rpc::Workers> workers_;          // puts, statistics
  std::unique_ptr<rpc::Workers> control_workers_;  // registrations, resets, removals
  std::unique_ptr<rpc::Server> server_;
};

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;
LocalHost& Daemon::host() { return impl_->host(); }
bool Daemon::Unattended() const { return impl_->Unattended(); }

Result<std::unique_ptr<Daemon>> Daemon::Open(const DaemonOptions& options, const Clock& clock) {
  LocalHostOptions host_options = options.host;
  // A mapping shows all of the memory: where several tenants share it, nobody gets one.
  const bool shared = host_options.cluster && host_options.cluster->credentials != nullptr &&
                      host_options.cluster->tenant.empty();
  if (shared && !options.unix_access.alone()) {
    return Fail(Code::kInvalid,
                "--engine-user, --engine-group: an owner that tenants share has no socket for "
                "engines; they use TCP. Name its only tenant with --tenant");
  }
  if (!shared) {
    // Before anything else makes it: data may lie beside the socket.
    KVCOVE_TRY(rpc::PrepareSocketDirectory(options.socket_path, options.unix_access));
    host_options.socket_path = options.socket_path;
  }
  if (host_options.cluster) {
    // An owner that tenants share listens nowhere, but its end can be proven, too.
    if (!shared || rpc::PrepareSocketDirectory(options.socket_path, {})) {
      host_options.lineage = options.socket_path;
    }
  }
  KVCOVE_ASSIGN(auto host, LocalHost::Open(host_options, clock));
  auto impl = std::make_unique<Impl>(std::move(host), clock);
  if (!shared) KVCOVE_TRY(impl->Listen(options.socket_path, options.unix_access));
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

}  // namespace kvcove::pool
