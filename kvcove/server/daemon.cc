// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include "kvcove/base/log.h"
#include "kvcove/segment/view.h"
#include "kvcove/server/daemon_impl.h"

namespace kvcove::server {
namespace {

constexpr std::size_t kWorkers = 16;  // they mostly wait
constexpr std::size_t kControlWorkers = 8;
constexpr std::size_t kRemovalWorkers = 8;
constexpr std::size_t kPatternWorkers = 4;
// Removals with longer bodies, of hundreds of keys, take long enough to hold up the event loop.
constexpr std::size_t kShortRemovalBytes = 16 << 10;
// How long a daemon waits for the first connection that attends it, and for another one when the
// last has closed. A daemon that was frozen first sees that its clients have given up their
// connections, and then their new ones behind these.
constexpr std::int64_t kFirstAttendantNs = 10 * kSecond;
constexpr std::int64_t kNextAttendantNs = kSecond;

// Returns the text for a peer without a pidfd. The kernel gives 0 as the number of a process of
// another PID namespace.
std::string WhyUnwatched(std::int32_t pid) {
  if (pid != 0) return fmt::format("process {} cannot be watched; it may have ended", pid);
  return "this owner cannot watch the process, which runs in another PID namespace; let both share "
         "one (in a pod: shareProcessNamespace, or hostPID), or use Linux 6.5 or later";
}

}  // namespace

Daemon::Impl::Impl(std::unique_ptr<pool::LocalHost> host, const DaemonOptions& options,
                   const pool::LocalHostOptions& host_options, const Clock& clock)
    : options_(options),
      hello_(HelloOf(host_options, host->owner().options())),
      host_(std::move(host)),
      clock_(clock),
      upgrade_(options.on_taken_over, clock),
      attended_until_ns_(clock.NowNs() + kFirstAttendantNs) {}

Daemon::Impl::~Impl() {
  upgrade_.Join();
  // Stops the loop first, so that no new call begins. Workers then finish the queued calls, each
  // bounded by its deadline; their answers are dropped with the connections.
  if (server_ != nullptr) server_->Stop();
  workers_.reset();
  control_workers_.reset();
  removal_workers_.reset();
  pattern_workers_.reset();
  host_->owner().outbox().EndWaits();
  // While server_ exists: the answers of removals and loads are delivered to it.
  host_->EndRemovals();
  host_->owner().disks().set().EndLoads();
  for (const auto& [number, session] : sessions_) host_->EndSession(number);
}

Status Daemon::Impl::Listen() {
  if (!options_.Shared()) {
    rpc::ServerOptions server;
    server.socket_path = options_.socket_path;
    server.unix_access = options_.unix_access;
    KVCOVE_ASSIGN(server_, rpc::Server::Open(server, *this));
    KVCOVE_TRY(Serve());
  }
  host_->owner().memory().StartPopulating();
  return {};
}

Status Daemon::Impl::Serve() {
  workers_ = std::make_unique<rpc::Workers>(kWorkers);
  control_workers_ = std::make_unique<rpc::Workers>(kControlWorkers);
  removal_workers_ = std::make_unique<rpc::Workers>(kRemovalWorkers);
  pattern_workers_ = std::make_unique<rpc::Workers>(kPatternWorkers);
  KVCOVE_TRY(workers_->Start());
  KVCOVE_TRY(control_workers_->Start());
  KVCOVE_TRY(removal_workers_->Start());
  KVCOVE_TRY(pattern_workers_->Start());
  return server_->Start();
}

bool Daemon::Impl::Unattended() const {
  // In this order: OnClose stores the time before it takes one away, so a reader that sees the last
  // attendant leave sees the new time, too. The other way round, a daemon that lost its last
  // attendant just now could be taken for one that has had none for long.
  return attendants_ == 0 && clock_.NowNs() > attended_until_ns_;
}

void Daemon::Impl::OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) {
  connections_[id] = {.peer = peer};
}

void Daemon::Impl::OnClose(rpc::ConnectionId id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  const Connection connection = at->second;
  connections_.erase(at);
  if (connection.attends) {
    attended_until_ns_ = clock_.NowNs() + kNextAttendantNs;
    --attendants_;
  }
  // The process of a session that was used may still read and write what it has mapped: only its
  // goodbye or its end ends the session. A session that was never used is of no use to anybody, so
  // it ends with the connection: its caller gave up before the welcome came, or has ended.
  const auto session = sessions_.find(connection.session);
  if (connection.greeted && session != sessions_.end() && !session->second.used) {
    EndSession(connection.session);
  }
}

bool Daemon::Impl::Admitted(rpc::ConnectionId id) const {
  const auto at = connections_.find(id);
  return at != connections_.end() && (at->second.session != 0 || at->second.attends);
}

void Daemon::Impl::OnProcessGone(std::uint64_t watch) {
  const auto at = sessions_.find(watch);
  if (at == sessions_.end()) return;
  LogDebug("process {} is gone; its session {} ends", at->second.pid, watch);
  EndSession(watch);
}

void Daemon::Impl::OnRequest(rpc::ConnectionId id, wire::Method method,
                             std::span<const std::byte> body, std::int64_t deadline_ns,
                             rpc::Responder respond) {
  Connection& connection = connections_.at(id);
  if (method == wire::Method::kHello) return Hello(id, connection, body, respond);
  if (method == wire::Method::kJoin) return Join(connection, body, respond);
  if (method == wire::Method::kAttend) return Attend(connection, respond);
  if (method == wire::Method::kTakeOver) return HandOver(id, connection, body, respond);
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
  if (Histogram* const time = host_->CallTime(method)) {
    // The host outlives the server, and no answer comes after the server has ended.
    respond = [this, time, began_ns = clock_.NowNs(),
               respond = std::move(respond)](rpc::Reply reply) {
      time->Add(clock_.NowNs() - began_ns);
      respond(std::move(reply));
    };
  }
  if (method == wire::Method::kLoad) return Load(service, body, deadline_ns, respond);
  if (method == wire::Method::kRemove || method == wire::Method::kRemoveMatching) {
    return Remove(service, method, body, deadline_ns, respond);
  }
  // In a cluster, calls that store wait for the master.
  const bool waits = method == wire::Method::kStat || wire::MayWait(method) ||
                     (host_->in_cluster() && wire::MayWaitInCluster(method));
  if (!waits) return respond(Answer(*service, method, body, deadline_ns));
  // Puts under a known generation wait for their listing without a worker: most take no longer than
  // the wake-up of one.
  if (method == wire::Method::kFinish || method == wire::Method::kPut) {
    const auto answer = [service, respond](Result<std::string> reply) {
      respond(ReplyOf(std::move(reply)));
    };
    if (method == wire::Method::kFinish) {
      return wire::ServeFinishThen(*service, body, deadline_ns, answer);
    }
    const auto known = [this](const Token& token) {
      return !host_->owner().data_side().Awaits(token);
    };
    if (wire::ServePutThen(*service, body, deadline_ns, known, answer)) return;
  }
  // Calls that the master must decide may wait for as long as it is away. They have workers of
  // their own, so that they never keep puts and statistics from one.
  const bool puts = method == wire::Method::kPut || method == wire::Method::kStat;
  rpc::Workers& workers = puts ? *workers_ : *control_workers_;
  const bool posted = workers.Post([service, method, deadline_ns, respond,
                                    copy = std::vector<std::byte>(body.begin(), body.end())] {
    respond(Answer(*service, method, copy, deadline_ns));
  });
  if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
}

// Answers from the disk's thread, so the load takes no worker while it waits. The callback keeps
// the session's service: the session may end first.
void Daemon::Impl::Load(const std::shared_ptr<wire::HostService>& service,
                        std::span<const std::byte> body, std::int64_t deadline_ns,
                        const rpc::Responder& respond) {
  wire::ServeLoad(*service, body, deadline_ns, [service, respond](Result<std::string> answer) {
    respond(ReplyOf(std::move(answer)));
  });
}

// The workers make a pattern's walk over memory, long removals and, in a cluster, the calls to the
// master. They do nothing else, so that no registration and no reset waits for a removal, and those
// of patterns remove no keys: in a cluster they wait while owners walk over their disks. The
// callback keeps the session's service, as in Load.
void Daemon::Impl::Remove(const std::shared_ptr<wire::HostService>& service, wire::Method method,
                          std::span<const std::byte> body, std::int64_t deadline_ns,
                          const rpc::Responder& respond) {
  const auto answer = [service, respond](Result<std::string> reply) {
    respond(ReplyOf(std::move(reply)));
  };
  if (method == wire::Method::kRemove && !host_->in_cluster() &&
      body.size() <= kShortRemovalBytes) {
    return wire::ServeRemovalThen(*service, method, body, deadline_ns, answer);
  }
  rpc::Workers& workers = method == wire::Method::kRemove ? *removal_workers_ : *pattern_workers_;
  const bool posted = workers.Post([service, method, deadline_ns, answer,
                                    copy = std::vector<std::byte>(body.begin(), body.end())] {
    wire::ServeRemovalThen(*service, method, copy, deadline_ns, answer);
  });
  if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
}

rpc::Reply Daemon::Impl::Answer(wire::HostService& service, wire::Method method,
                                std::span<const std::byte> body, std::int64_t deadline_ns) {
  return ReplyOf(wire::ServeHost(service, method, body, deadline_ns));
}

rpc::Reply Daemon::Impl::ReplyOf(Result<std::string> answer) {
  if (answer) return {.code = Code::kOk, .body = std::move(*answer), .fds = {}};
  return rpc::ErrorReply(answer.error(), /*close=*/answer.error().code == Code::kCorrupt);
}

void Daemon::Impl::Hello(rpc::ConnectionId id, Connection& connection,
                         std::span<const std::byte> body, const rpc::Responder& respond) {
  const auto fail = [&](const Error& error) { respond(rpc::ErrorReply(error, /*close=*/true)); };
  const auto hello = wire::DecodeHello(body);
  if (!hello) return fail(hello.error());
  // Before a session is added: a process with another layout would misread the segment.
  if (const Status layout = segment::CheckLayout(segment::kLayoutVersion, hello->layout); !layout) {
    return fail(layout.error());
  }
  if (connection.session != 0) return fail({Code::kInvalid, "this connection has a session"});
  // The session ends with its process, so a process whose end cannot be seen gets none: its slots
  // would protect memory for ever.
  UniqueFd process = server_->PeerProcess(id);
  if (!process.valid()) return fail({Code::kDenied, WhyUnwatched(connection.peer.pid)});
  Result<owner::Memory::Grant> grant = host_->AddSession(connection.peer.pid);
  if (!grant) return fail(grant.error());
  rpc::Reply reply;
  for (const int fd : {host_->owner().memory().header_fd(), host_->owner().memory().payload_fd()}) {
    reply.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  }
  reply.fds.push_back(std::move(grant->page));
  if (const int lineage = host_->lineage_fd(); lineage >= 0) {
    reply.fds.emplace_back(fcntl(lineage, F_DUPFD_CLOEXEC, 0));
  }
  const wire::Welcome welcome{.session = grant->number,
                              .secret = RandomId(),
                              .now_ns = clock_.NowNs(),
                              .layout = segment::kLayoutVersion,
                              .node = host_->node(),
                              .authority = host_->authority()};
  sessions_[welcome.session] = {.pid = connection.peer.pid,
                                .secret = welcome.secret,
                                .service = host_->ServiceFor(welcome.session)};
  server_->WatchProcess(std::move(process), welcome.session);
  connection.session = welcome.session;
  connection.greeted = true;
  reply.body = wire::EncodeWelcome(welcome);
  respond(std::move(reply));
}

void Daemon::Impl::Join(Connection& connection, std::span<const std::byte> body,
                        const rpc::Responder& respond) {
  const auto asked = wire::DecodeJoin(body);
  if (!asked) return respond(rpc::ErrorReply(asked.error(), /*close=*/true));
  const auto session = sessions_.find(asked->session);
  if (session == sessions_.end() || session->second.secret != asked->secret ||
      session->second.pid != connection.peer.pid) {
    return respond(rpc::ErrorReply({Code::kDenied, "no such session of this process"}, true));
  }
  // From now on the process has the mappings, so the end of a connection proves nothing.
  connection.session = asked->session;
  session->second.used = true;
  respond({});
}

void Daemon::Impl::Attend(Connection& connection, const rpc::Responder& respond) {
  if (!std::exchange(connection.attends, true)) ++attendants_;
  respond({.code = Code::kOk,
           .body = wire::Encode(wire::Attendance{
               .lease_left_ns = host_->owner().memory().LeaseUntilNs() - clock_.NowNs(),
               .attendants = attendants_,
               .address = host_->advertised()}),
           .fds = {}});
}

void Daemon::Impl::EndSession(wire::SessionNumber number) {
  server_->UnwatchProcess(number);
  sessions_.erase(number);
  host_->EndSession(number);
}

Daemon::Daemon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Daemon::~Daemon() = default;
pool::LocalHost& Daemon::host() { return impl_->host(); }
bool Daemon::PostControl(std::function<void()> call) { return impl_->PostControl(std::move(call)); }
bool Daemon::PostWalk(std::function<void()> call) { return impl_->PostWalk(std::move(call)); }
bool Daemon::Unattended() const { return impl_->Unattended(); }

Result<pool::LocalHostOptions> Daemon::HostOptionsOf(const DaemonOptions& options) {
  pool::LocalHostOptions host_options = options.host;
  const bool shared = options.Shared();
  if (shared && !options.unix_access.alone()) {
    return Fail(Code::kInvalid,
                "--engine-user, --engine-group: an owner that tenants share has no socket for "
                "engines; they use TCP. Name its only tenant with --tenant");
  }
  if (!shared) {
    // Before the store creates the directory with the wrong mode: the data directory may be in it.
    KVCOVE_TRY(rpc::PrepareSocketDirectory(options.socket_path, options.unix_access));
    host_options.socket_path = options.socket_path;
  }
  if (host_options.cluster) {
    // An owner that tenants share opens no socket, but its lineage file can still prove its end.
    if (!shared || rpc::PrepareSocketDirectory(options.socket_path, {})) {
      host_options.lineage = options.socket_path;
    }
  }
  return host_options;
}

void Daemon::Group(const std::vector<std::unique_ptr<Daemon>>& daemons) {
  std::vector<Impl*> group;
  for (const auto& daemon : daemons) group.push_back(daemon->impl_.get());
  for (Impl* one : group) one->SetGroup(group);
}

Result<std::unique_ptr<Daemon>> Daemon::Open(const DaemonOptions& options, const Clock& clock) {
  KVCOVE_ASSIGN(auto daemon, Make(options, clock));
  KVCOVE_TRY(daemon->Listen());
  daemon->impl_->SetGroup({daemon->impl_.get()});
  return daemon;
}

Result<std::unique_ptr<Daemon>> Daemon::Make(const DaemonOptions& options, const Clock& clock) {
  KVCOVE_ASSIGN(const pool::LocalHostOptions host_options, HostOptionsOf(options));
  KVCOVE_ASSIGN(auto host, pool::LocalHost::Open(host_options, clock));
  auto impl = std::make_unique<Impl>(std::move(host), options, host_options, clock);
  return std::unique_ptr<Daemon>(new Daemon(std::move(impl)));
}

Status Daemon::Listen() { return impl_->Listen(); }

}  // namespace kvcove::server
