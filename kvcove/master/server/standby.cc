// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/standby.h"

#include <nlohmann/json.hpp>

#include "kvcove/base/metrics.h"
#include "kvcove/master/server/admin.h"
#include "kvcove/master/server/prefix_route.h"
#include "kvcove/rpc/leader.h"

namespace kvcove::master {

Result<std::unique_ptr<Standby>> Standby::Open(const StandbyOptions& options) {
  std::unique_ptr<Standby> standby(new Standby(options));
  rpc::ServerOptions server;
  server.listen = options.listen;
  server.max_connections = 32768;  // as the leader
  server.name = "the standby";
  server.tls = options.tls;
  server.thread_name = "kvcove-standby";
  KVCOVE_ASSIGN(standby->server_, rpc::Server::Open(server, *standby));
  KVCOVE_TRY(standby->OpenShard());
  KVCOVE_TRY(standby->OpenAdmin());
  KVCOVE_TRY(standby->server_->Start());
  return standby;
}

Standby::~Standby() {
  if (server_ != nullptr) server_->Stop();
  admin_server_.reset();
  metrics_server_.reset();
  // After the server has stopped: its calls use the shard. Before the server is destroyed: the
  // shard's threads may still answer calls.
  shard_.reset();
}

Status Standby::OpenShard() {
  if (!options_.shard) return {};
  KVCOVE_ASSIGN(rpc::Access access, rpc::ServerAccess(options_.credentials, {}, options_.tls));
  shard_ =
      std::make_unique<ShardFollower>(*options_.shard, std::move(access), SystemClock::Instance());
  return shard_->Start();
}

void Standby::Show(StandbyView view) {
  if (shard_ != nullptr) shard_->Follow(view.leader ? view.leader->address : std::string());
  const MutexLock lock(mutex_);
  view_ = std::move(view);
}

StandbyView Standby::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

// ---- clients

void Standby::OnOpen(rpc::ConnectionId id, const rpc::Peer& /*peer*/) {
  const MutexLock lock(mutex_);
  guests_[id];
}

void Standby::OnClose(rpc::ConnectionId id) {
  {
    const MutexLock lock(mutex_);
    guests_.erase(id);
  }
  if (shard_ != nullptr) shard_->replica().EndSaves(id);
}

bool Standby::Admitted(rpc::ConnectionId id) const {
  const MutexLock lock(mutex_);
  const auto at = guests_.find(id);
  return at != guests_.end() && at->second.caller != nullptr;
}

// Names the leader only to callers that the gate has let in, as the leader itself would answer only
// those.
void Standby::OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                        std::int64_t /*deadline_ns*/, rpc::Responder respond) {
  // A copy: the gate may read the credentials' file, so it is called without the lock. Calls about
  // one connection come one after the other, so no other thread writes this guest meanwhile.
  rpc::Gate::Guest guest;
  std::string leader;
  {
    const MutexLock lock(mutex_);
    guest = guests_[id];
    if (view_.leader) leader = view_.leader->address;
  }
  if (rpc::Gate::IsGreeting(method)) {
    rpc::Reply reply = gate_.Greet(guest, method, body);
    {
      const MutexLock lock(mutex_);
      guests_[id] = std::move(guest);
    }
    return respond(std::move(reply));
  }
  gate_.Refresh();
  if (!gate_.Admitted(guest)) return respond(rpc::SayHelloFirst());
  if (OnShardRequest(id, *guest.caller, method, body, respond)) return;
  respond(rpc::ErrorReply(rpc::NotTheLeader(leader)));
}

// ---- a part of the directory

// Sends an answer only if the lease under which it was decided still runs: after its end another
// master may serve these slices, so a late "listed" would be lost, and a late miss be wrong.
bool Standby::OnShardRequest(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                             std::span<const std::byte> body, rpc::Responder respond) {
  using wire::Method;
  if (shard_ == nullptr) return false;
  if (method != Method::kList && method != Method::kLookup && method != Method::kShardPull &&
      method != Method::kShardFind) {
    return false;
  }
  // A plain pointer: the destructor stops the server, and with it all calls, before the follower.
  const ShardReplica* const replica = &shard_->replica();
  const std::uint64_t serving = replica->Serving();
  respond = [replica, serving, respond = std::move(respond)](rpc::Reply reply) {
    const bool counts = serving != 0 && replica->Serving() == serving;
    respond(counts ? std::move(reply)
                   : rpc::ErrorReply({Code::kInProgress, "this shard does not serve now"}));
  };
  const auto answer = [&](Result<std::string> reply) {
    respond(reply ? rpc::Reply{.code = Code::kOk, .body = std::move(*reply), .fds = {}}
                  : rpc::ErrorReply(reply.error(), reply.error().code == Code::kCorrupt));
  };
  // kInProgress, not "not the leader": the caller has the right master, and asks again or refreshes
  // its map.
  if (serving == 0) {
    answer(Fail(Code::kInProgress, "this shard does not serve now"));
  } else if (method == Method::kList) {
    OnList(caller, body, respond);
  } else if (method == Method::kLookup) {
    answer(OnLookup(id, caller, body));
  } else if (!caller.MayOwn(0)) {
    answer(Fail(Code::kDenied, "only a master may make this call"));
  } else {
    answer(method == Method::kShardPull ? OnPull(body) : OnFind(body));
  }
  return true;
}

void Standby::OnList(const rpc::Caller& caller, std::span<const std::byte> body,
                     const rpc::Responder& respond) {
  const auto request = wire::DecodeList(body);
  const auto fail = [&](const Error& error) {
    respond(rpc::ErrorReply(error, error.code == Code::kCorrupt));
  };
  if (!request) return fail(request.error());
  if (!caller.MayOwn(shard_->replica().TenantOfOwner(request->number))) {
    return fail({Code::kDenied, "this credential is not that owner's"});
  }
  shard_->replica().List(*request, shard_->ask(), [respond](const Result<wire::ListReply>& reply) {
    if (!reply)
      return respond(rpc::ErrorReply(reply.error(), reply.error().code == Code::kCorrupt));
    respond({.code = Code::kOk, .body = wire::Encode(*reply), .fds = {}});
  });
}

Result<std::string> Standby::OnLookup(rpc::ConnectionId id, const rpc::Caller& caller,
                                      std::span<const std::byte> body) {
  if (!caller.Has(rpc::Scope::kRead) && !caller.Has(rpc::Scope::kWrite)) {
    return Fail(Code::kDenied, "this credential may not read");
  }
  KVCOVE_ASSIGN(const wire::LookupRequest request, wire::DecodeLookup(body));
  // As the leader: a foreign slot and a free one get the same answer.
  if (request.token.slot >= kMaxSlots ||
      !caller.MayTouch(shard_->replica().TenantOfSlot(request.token.slot))) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  const bool notes = request.notice != SaveNotice::kNone && caller.Has(rpc::Scope::kWrite);
  ShardReplica& replica = shard_->replica();
  KVCOVE_ASSIGN(const std::vector<wire::Place> places,
                notes ? replica.NoteSaves(id, request.token, request.hashes, request.notice)
                      : replica.Lookup(request.token, request.hashes));
  return wire::Encode(std::span<const wire::Place>(places));
}

Result<std::string> Standby::OnPull(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::ShardPullRequest request, wire::DecodeShardPull(body));
  KVCOVE_ASSIGN(const wire::ShardPage page, shard_->replica().Pull(request));
  return wire::Encode(page);
}

Result<std::string> Standby::OnFind(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::ShardFindRequest request, wire::DecodeShardFind(body));
  return wire::Encode(wire::ShardFindReply{.keys = shard_->replica().Held(request)});
}

// ---- operators

namespace {

// Returns why a standby does not answer what only a leader can, and who may.
Error NoLeader(const StandbyView& now) {
  Error error = rpc::NotTheLeader(now.leader ? now.leader->address : "");
  if (now.leader && !now.leader->admin.empty()) {
    error.detail += ", its admin endpoint " + now.leader->admin;
  }
  if (!now.store_error.empty()) {
    error.detail +=
        "; this master does not lead, because etcd does not answer it: " + now.store_error;
  }
  return error;
}

}  // namespace

http::Response Standby::StatusPage() const {
  const StandbyView now = view();
  nlohmann::json status{{"role", "standby"},
                        {"leader", now.leader ? now.leader->address : ""},
                        {"leader_admin", now.leader ? now.leader->admin : ""},
                        {"store", "etcd"},
                        {"store_milliseconds", static_cast<double>(now.store_latency_ns) * 1e-6}};
  if (now.term != 0) status["term"] = now.term;
  if (shard_ != nullptr) {
    const ShardReplica::Stat stat = shard_->replica().stat();
    status["shard"] = {{"serves", stat.serves},   {"number", stat.number},
                       {"slices", stat.slices},   {"entries", stat.entries},
                       {"lookups", stat.lookups}, {"listed", stat.listed}};
  }
  if (!now.store_error.empty()) status["store_error"] = now.store_error;
  return http::JsonResponse(status);
}

http::Response Standby::ReadyPage() const {
  const StandbyView now = view();
  if (!now.store_error.empty()) {
    return {.status = 503, .body = "standby, without etcd\n", .type = "text/plain"};
  }
  return {.body = "standby\n", .type = "text/plain"};
}

http::Response Standby::MetricsPage() const {
  const StandbyView now = view();
  Metrics metrics;
  metrics.Gauge("kvcove_master_leads", "1 while this master leads, else 0", 0);
  metrics.Gauge("kvcove_master_term",
                "term of the leader: the number of starts of a master of this pool",
                static_cast<double>(now.term));
  metrics.Gauge("kvcove_master_store_answers", "1 while etcd answers this standby, else 0",
                now.store_error.empty() ? 1 : 0);
  metrics.Gauge("kvcove_master_store_answer_seconds", "seconds that etcd's last answer took",
                static_cast<double>(now.store_latency_ns) * 1e-9);
  if (shard_ != nullptr) {
    const ShardReplica::Stat stat = shard_->replica().stat();
    metrics.Gauge("kvcove_master_shard_slices", "slices of the directory that this master serves",
                  stat.serves ? static_cast<double>(stat.slices) : 0);
    metrics.Gauge("kvcove_master_shard_entries",
                  "objects and replicas in the slices of this master",
                  static_cast<double>(stat.entries));
    metrics.Counter("kvcove_master_shard_lookups_total",
                    "keys looked up in the slices of this master",
                    static_cast<double>(stat.lookups));
    metrics.Counter("kvcove_master_shard_listed_total",
                    "objects that owners listed in the slices of this master",
                    static_cast<double>(stat.listed));
  }
  metrics.Process();
  return {.body = metrics.Text(), .type = "text/plain; version=0.0.4"};
}

Status Standby::OpenAdmin() {
  std::vector<http::Route> routes;
  const auto add = [&](const char* path, bool open,
                       std::function<http::Response(const http::Request&)> answer) {
    routes.push_back({.method = "GET", .path = path, .open = open, .answer = std::move(answer)});
  };
  add("/healthz", true,
      [](const http::Request&) { return http::Response{.body = "ok\n", .type = "text/plain"}; });
  add("/readyz", true, [this](const http::Request&) { return ReadyPage(); });
  add("/metrics", false, [this](const http::Request&) { return MetricsPage(); });
  routes.back().metrics = true;
  add("/v1/status", false, [this](const http::Request&) { return StatusPage(); });
  for (const auto& [method, path] : LeaderPaths()) {
    routes.push_back({.method = method, .path = path, .answer = [this](const http::Request&) {
                        return http::ErrorResponse(NoLeader(view()));
                      }});
    // Otherwise a long question is refused for its length, which names no leader.
    if (path == kPrefixPath) routes.back().body_bytes = kMaxPrefixBody;
  }
  if (options_.metrics) {
    rpc::Address metrics = *options_.metrics;
    KVCOVE_ASSIGN(metrics_server_,
                  ServeMetrics(metrics, options_.credentials, options_.tls, routes));
  }
  if (!options_.admin) return {};
  add("/", true, [this](const http::Request&) {
    // Without a credential: the store's own words may name hosts.
    const bool stored = view().store_error.empty();
    return http::Response{.body = stored
                                      ? "This master is a standby. The page of the pool is at the "
                                        "admin endpoint of its leader; 'kvcove admin status' names "
                                        "it.\n"
                                      : "This master has no connection to etcd, so it does not "
                                        "lead. If no master reaches etcd, none leads: look-ups are "
                                        "misses, and resets are not proven. Look at etcd; 'kvcove "
                                        "admin status' says what it answers.\n",
                          .type = "text/plain"};
  });
  admin_ = *options_.admin;
  http::ServerOptions server{.loopback = rpc::IsLoopback(admin_),
                             .authorize = rpc::BearersOf(options_.credentials),
                             // A page that is open since this master led shows who leads now.
                             .logins = true,
                             .tunnel = {}};
  KVCOVE_ASSIGN(server.listener, rpc::ListenTcp(admin_));
  KVCOVE_ASSIGN(admin_server_, http::Server::Open(std::move(server), std::move(routes)));
  return {};
}

}  // namespace kvcove::master
