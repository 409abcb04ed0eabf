// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/master/file_store.h"
#include "kvcove/master/memory_store.h"
#include "kvcove/master/owner_calls.h"
#include "kvcove/master/server_metrics.h"
#include "kvcove/master/wait_for.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::master {
namespace {

constexpr std::size_t kWorkers = 2;
constexpr std::size_t kLeaseLoop = 1;
constexpr std::int64_t kTickNs = 5 * kMillisecond;
constexpr std::int64_t kMaxBudgetNs = 3600 * kSecond;
constexpr std::int64_t kRegisterNs = 10 * kSecond;
// Registrations that name no process end with their connection: this in front of its number.
constexpr std::uint64_t kConnectionHolder = 0x636f6e6e65637469;

bool IsTimed(wire::Method method) {
  return std::ranges::any_of(kTimedCalls, [&](const auto& timed) { return timed.first == method; });
}

rpc::Reply OkReply(std::string body) {
  return {.code = Code::kOk, .body = std::move(body), .fds = {}};
}

rpc::Reply FailedReply(const Error& error) {
  return rpc::ErrorReply(error, /*close=*/error.code == Code::kCorrupt);
}

// Answers a call with what its reply brings, coded by `encode`.
template <typename T, typename Encode>
Reply<T> Through(rpc::Responder respond, Encode encode) {
  return [respond = std::move(respond), encode](Result<T> answer) {
    if (!answer) return respond(FailedReply(answer.error()));
    if constexpr (std::is_void_v<T>) {
      respond(OkReply(encode()));
    } else {
      respond(OkReply(encode(*answer)));
    }
  };
}
template <typename T>
Reply<T> Through(rpc::Responder respond) {
  return Through<T>(std::move(respond), [](const T& value) { return wire::Encode(value); });
}

}  // namespace

class MasterServer::Impl final : public rpc::Handler {
 public:
  Impl(const MasterServerOptions& options, const Clock& clock)
      : options_(options), clock_(clock), gate_(options.credentials) {}
  ~Impl() override { Stop(); }

  Status Open();
  void Stop();

  Master& master() { return *master_; }
  rpc::Access AccessTo(const std::string& address) const;
  const rpc::Address& address() const { return server_->address(); }
  MasterStat Stat() const;
  void Collect(http::Metrics& metrics) const;
  template <typename T>
  Result<T> Wait(const std::function<void(Reply<T>)>& call);
  void CountReset(bool proven) {
    resets_.fetch_add(1);
    if (!proven) resets_not_proven_.fetch_add(1);
  }

  // ---- rpc::Handler
  void OnOpen(rpc::ConnectionId id, const rpc::Peer& peer) override;
  void OnClose(rpc::ConnectionId id) override;
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId id) const override;
  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 std::int64_t /*deadline_ns*/, rpc::Responder respond) override;

 private:
  struct Connection {
    rpc::Gate::Guest guest;
    bool registers = false;  // holds registrations of its own
    bool owner = false;
    bool moved = false;  // to the loop of the leases
  };

  Status OpenStore(Opened& opened);
  Status StartMaster(const Opened& opened);
  std::int64_t DeadlineOf(std::int64_t budget_ns) const {
    return clock_.NowNs() + std::clamp<std::int64_t>(budget_ns, 0, kMaxBudgetNs);
  }
  static Status MayCall(const rpc::Caller& caller, wire::Method method);
  // False also for a slot that is free: nobody learns which are.
  bool MayTouch(const rpc::Caller& caller, SlotId slot) const {
    return caller.MayTouch(master_->standings().TenantOfSlot(slot));
  }
  void Dispatch(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                std::span<const std::byte> body, const rpc::Responder& respond);
  void FromOwner(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                 std::span<const std::byte> body, const rpc::Responder& respond);
  void Register(rpc::ConnectionId id, const rpc::Caller& caller, std::span<const std::byte> body,
                const rpc::Responder& respond);
  void Reset(rpc::ConnectionId id, const rpc::Caller& caller, std::span<const std::byte> body,
             const rpc::Responder& respond);
  Result<std::string> Versions(rpc::ConnectionId id, const rpc::Caller& caller, wire::Method method,
                               std::span<const std::byte> body);
  rpc::Reply Greet(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body)
      KVCOVE_EXCLUDES(connections_mutex_);
  Result<std::string> Lookup(const rpc::Caller& caller, std::span<const std::byte> body);
  Result<std::string> OwnersFor(const rpc::Caller& caller, std::span<const std::byte> body);
  void Remove(const rpc::Caller& caller, std::span<const std::byte> body,
              const rpc::Responder& respond);
  void Tick();
  static Id128 HolderOf(const Id128& asked, rpc::ConnectionId id) {
    return asked != Id128{} ? asked : Id128{.high = kConnectionHolder, .low = id};
  }

  const MasterServerOptions options_;
  const Clock& clock_;
  rpc::Access access_;
  rpc::Gate gate_;

  mutable Mutex connections_mutex_;
  std::map<rpc::ConnectionId, Connection> connections_ KVCOVE_GUARDED_BY(connections_mutex_);

  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> resets_not_proven_{0};
  std::atomic<std::uint64_t> fallbacks_{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses_{};
  std::array<http::Histogram, wire::kMaxMethod + 1> times_;

  Mutex tick_mutex_;
  CondVar tick_changed_;
  bool stopping_ KVCOVE_GUARDED_BY(tick_mutex_) = false;

  std::unique_ptr<Master> master_;
  std::unique_ptr<ControlStore> store_;
  FileStore* file_ = nullptr;  // store_, if it is one
  std::unique_ptr<rpc::Workers> workers_;
  std::unique_ptr<rpc::Server> server_;
  std::thread tick_;
};

// ---- start and stop

Status MasterServer::Impl::OpenStore(Opened& opened) {
  if (options_.data_directory.empty()) {
    store_ = std::make_unique<MemoryStore>();
    return {};
  }
  KVCOVE_ASSIGN(std::unique_ptr<Disk> disk, PosixDisk::Open(options_.data_directory));
  KVCOVE_ASSIGN(std::unique_ptr<FileStore> store,
                FileStore::Open(std::move(disk), {.clock = &clock_}, opened));
  file_ = store.get();
  store_ = std::move(store);
  return {};
}

Status MasterServer::Impl::StartMaster(const Opened& opened) {
  KVCOVE_ASSIGN(const StartPlan plan,
                PlanStart(opened.facts, opened.revision, options_.master.lease_ns, clock_.NowNs(),
                          opened.from_v1 ? &*opened.from_v1 : nullptr));
  master_ = std::make_unique<Master>(options_.master, plan, *store_, opened.revision, clock_);
  if (file_ != nullptr) file_->Start();
  KVCOVE_TRY(Wait<void>([&](Reply<void> ready) { master_->Start(std::move(ready)); }));
  if (file_ != nullptr && opened.from_v1) file_->RetireV1();
  return {};
}

Status MasterServer::Impl::Open() {
  access_.tls = options_.tls;
  if (options_.credentials != nullptr) {
    KVCOVE_ASSIGN(access_.credential, options_.credentials->OfCluster());
  }
  Opened opened;
  KVCOVE_TRY(OpenStore(opened));
  KVCOVE_TRY(StartMaster(opened));
  workers_ = std::make_unique<rpc::Workers>(kWorkers);
  rpc::ServerOptions server;
  server.listen = options_.listen;
  server.loops = 2;
  server.max_connections = 8192;
  server.name = "the master";
  server.tls = options_.tls;
  server.thread_name = "kvcove-master";
  KVCOVE_ASSIGN(server_, rpc::Server::Open(server, *this));
  server_->Start();
  tick_ = StartThread("kvcove-tick", [this] { Tick(); });
  return {};
}

void MasterServer::Impl::Stop() {
  if (server_ != nullptr) server_->Stop();
  workers_.reset();
  if (master_ != nullptr && server_ != nullptr) {
    const bool running = master_->control().LeaseRunning();
    const Status closed = Wait<void>([&](Reply<void> done) { master_->Stop(std::move(done)); });
    if (running) {
      LogInfo("leases are still running: the next start will wait for them");
    } else if (!closed) {
      LogWarn("the clean end could not be written down: {}", closed.error().ToString());
    }
  }
  // Ticks go on until here: they bound how long a disk that hangs delays the end.
  {
    const MutexLock lock(tick_mutex_);
    stopping_ = true;
    tick_changed_.NotifyAll();
  }
  if (tick_.joinable()) tick_.join();
  // The store's answers come to the master, so it ends first.
  store_.reset();
  master_.reset();
}

void MasterServer::Impl::Tick() {
  const MutexLock lock(tick_mutex_);
  while (!stopping_) {
    tick_mutex_.unlock();
    master_->Tick();
    tick_mutex_.lock();
    if (!stopping_) tick_changed_.WaitFor(tick_mutex_, std::chrono::nanoseconds(kTickNs));
  }
}

template <typename T>
Result<T> MasterServer::Impl::Wait(const std::function<void(Reply<T>)>& call) {
  return WaitFor<T>(clock_, clock_.NowNs() + kMaxBudgetNs, call);
}

// ---- connections

void MasterServer::Impl::OnOpen(rpc::ConnectionId id, const rpc::Peer& /*peer*/) {
  const MutexLock lock(connections_mutex_);
  connections_[id];
}

void MasterServer::Impl::OnClose(rpc::ConnectionId id) {
  bool registers = false;
  bool owner = false;
  {
    const MutexLock lock(connections_mutex_);
    const auto at = connections_.find(id);
    if (at == connections_.end()) return;
    registers = at->second.registers;
    owner = at->second.owner;
    connections_.erase(at);
  }
  if (registers) master_->generations().EndHolder(HolderOf({}, id));
  if (owner) master_->control().Disconnected(id);
}

bool MasterServer::Impl::Admitted(rpc::ConnectionId id) const {
  const MutexLock lock(connections_mutex_);
  const auto at = connections_.find(id);
  return at != connections_.end() && at->second.guest.caller != nullptr;
}

// The gate may read the credentials file again, so it is asked without the lock. Nobody else writes
// the guest meanwhile: the calls about one connection come one after the other.
rpc::Reply MasterServer::Impl::Greet(rpc::ConnectionId id, wire::Method method,
                                     std::span<const std::byte> body) {
  rpc::Gate::Guest guest;
  {
    const MutexLock lock(connections_mutex_);
    guest = connections_[id].guest;
  }
  rpc::Reply reply = gate_.Greet(guest, method, body);
  const MutexLock lock(connections_mutex_);
  connections_[id].guest = std::move(guest);
  return reply;
}

void MasterServer::Impl::OnRequest(rpc::ConnectionId id, wire::Method method,
                                   std::span<const std::byte> body, std::int64_t /*deadline_ns*/,
                                   rpc::Responder respond) {
  if (rpc::Gate::IsGreeting(method)) return respond(Greet(id, method, body));
  std::shared_ptr<const rpc::Caller> caller;
  {
    const MutexLock lock(connections_mutex_);
    Connection& connection = connections_[id];
    if (gate_.Admitted(connection.guest)) {
      caller = connection.guest.caller;
      connection.registers = connection.registers || method == wire::Method::kRegister ||
                             method == wire::Method::kReset;
      connection.owner = connection.owner || method == wire::Method::kOwnerHello;
    }
  }
  if (caller == nullptr) {
    return respond(rpc::ErrorReply({Code::kDenied, "say hello first"}, /*close=*/true));
  }
  if (const Status may = MayCall(*caller, method); !may) {
    return respond(rpc::ErrorReply(may.error()));
  }
  if (IsTimed(method)) {
    respond = [this, method, began = clock_.NowNs(),
               respond = std::move(respond)](rpc::Reply reply) {
      times_[static_cast<std::size_t>(method)].Add(clock_.NowNs() - began);
      respond(std::move(reply));
    };
  }
  Dispatch(id, *caller, method, body, respond);
}

Status MasterServer::Impl::MayCall(const rpc::Caller& caller, wire::Method method) {
  using wire::Method;
  const auto need = [&](bool has, std::string_view scope) {
    return has ? Status()
               : Status(
                     Fail(Code::kDenied, fmt::format("tenant '{}' does not have the scope \"{}\"",
                                                     caller.tenant, scope)));
  };
  switch (method) {
    case Method::kOwnerHello:
    case Method::kRenew:
    case Method::kWatch:
    case Method::kRemovals:
    case Method::kOwnerGoodbye:
    case Method::kList:
      return need(caller.IsOwner(), "owner");
    case Method::kReset:
      return need(caller.Has(rpc::Scope::kReset), "reset");
    case Method::kRemoveEverywhere:
    case Method::kNameVersions:
      return need(caller.Has(rpc::Scope::kWrite), "write");
    default:
      return need(caller.Has(rpc::Scope::kRead) || caller.Has(rpc::Scope::kWrite), "read");
  }
}

void MasterServer::Impl::Dispatch(rpc::ConnectionId id, const rpc::Caller& caller,
                                  wire::Method method, std::span<const std::byte> body,
                                  const rpc::Responder& respond) {
  using wire::Method;
  const auto answer = [&](Result<std::string> reply) {
    respond(reply ? OkReply(std::move(*reply)) : FailedReply(reply.error()));
  };
  switch (method) {
    case Method::kOwnerHello:
    case Method::kRenew:
    case Method::kWatch:
    case Method::kRemovals:
    case Method::kOwnerGoodbye:
    case Method::kList:
      return FromOwner(id, caller, method, body, respond);
    case Method::kLookup:
      return answer(Lookup(caller, body));
    case Method::kOwners:
      return answer(OwnersFor(caller, body));
    case Method::kRegister:
      return Register(id, caller, body, respond);
    case Method::kReset:
      return Reset(id, caller, body, respond);
    case Method::kNameVersions:
    case Method::kEndEngine:
      return answer(Versions(id, caller, method, body));
    case Method::kRemoveEverywhere:
      return Remove(caller, body, respond);
    default:
      return respond(rpc::ErrorReply({Code::kCorrupt, "not a call for the master"}, true));
  }
}

// ---- owners

rpc::Access MasterServer::Impl::AccessTo(const std::string& address) const {
  rpc::Access access = access_;
  if (options_.credentials == nullptr) return access;
  const std::vector<wire::OwnerStat> owners = master_->control().Owners();
  const auto owner = std::ranges::find(owners, address, &wire::OwnerStat::address);
  if (owner == owners.end()) return access;
  if (const auto credential = options_.credentials->OfOwner(owner->tenant)) {
    access.credential = *credential;
  }
  return access;
}

void MasterServer::Impl::FromOwner(rpc::ConnectionId id, const rpc::Caller& caller,
                                   wire::Method method, std::span<const std::byte> body,
                                   const rpc::Responder& respond) {
  // An owner of one tenant acts for itself, not for owners of others.
  const auto may_own = [&](std::uint64_t tenant) { return caller.MayOwn(tenant); };
  AnswerOwner(*master_, id, method, body, may_own,
              [this, id, method, respond](Result<std::string> answer) {
                if (!answer) return respond(FailedReply(answer.error()));
                rpc::Reply ok = OkReply(std::move(*answer));
                if (method == wire::Method::kRenew) {
                  // Leases have a loop of their own, so that no call of another kind delays them.
                  const MutexLock lock(connections_mutex_);
                  if (!std::exchange(connections_[id].moved, true)) ok.move_to_loop = kLeaseLoop;
                }
                respond(std::move(ok));
              });
}

// ---- requesters

void MasterServer::Impl::Register(rpc::ConnectionId id, const rpc::Caller& caller,
                                  std::span<const std::byte> body, const rpc::Responder& respond) {
  Result<wire::RegisterCall> call = wire::DecodeRegister(body);
  if (!call) return respond(FailedReply(call.error()));
  if (const Status name = CheckName(call->request.name, "namespace"); !name) {
    return respond(FailedReply(name.error()));
  }
  wire::RegisterRequest& request = call->request;
  request.name = QualifiedName(caller.tenant, request.name);
  request.holder = HolderOf(request.holder, id);
  // A caller that may only read makes no namespace: it could use up all slots.
  if (!caller.Has(rpc::Scope::kWrite) &&
      !master_->generations().Knows(request.name, request.version)) {
    return respond(FailedReply(
        {Code::kDenied, fmt::format("tenant '{}' does not have the scope \"write\", and "
                                    "nobody has stored anything in this namespace and "
                                    "weight version yet",
                                    caller.tenant)}));
  }
  const std::int64_t budget_ns = call->budget_ns > 0 ? call->budget_ns : kRegisterNs;
  master_->generations().Register(request, DeadlineOf(budget_ns), Through<Registration>(respond));
}

void MasterServer::Impl::Reset(rpc::ConnectionId id, const rpc::Caller& caller,
                               std::span<const std::byte> body, const rpc::Responder& respond) {
  Result<wire::ResetCall> call = wire::DecodeReset(body);
  if (!call) return respond(FailedReply(call.error()));
  if (const Status name = CheckName(call->request.name, "namespace"); !name) {
    return respond(FailedReply(name.error()));
  }
  call->request.name = QualifiedName(caller.tenant, call->request.name);
  call->request.holder = HolderOf(call->request.holder, id);
  master_->generations().Reset(
      call->request, DeadlineOf(call->budget_ns),
      [this, reply = Through<ResetOutcome>(respond)](const Result<ResetOutcome>& outcome) {
        CountReset(outcome.has_value());
        reply(outcome);
      });
}

Result<std::string> MasterServer::Impl::Versions(rpc::ConnectionId id, const rpc::Caller& caller,
                                                 wire::Method method,
                                                 std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::EngineVersions engine, wire::DecodeEngineVersions(body));
  KVCOVE_TRY(CheckName(engine.name, "namespace"));
  const std::string name = QualifiedName(caller.tenant, engine.name);
  if (method == wire::Method::kEndEngine) {
    master_->generations().EndEngine(name, engine.engine, HolderOf(engine.holder, id));
  } else {
    KVCOVE_TRY(master_->generations().NameVersions(name, engine.engine, engine.versions));
  }
  return std::string();
}

Result<std::string> MasterServer::Impl::Lookup(const rpc::Caller& caller,
                                               std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::LookupRequest request, wire::DecodeLookup(body));
  if (!MayTouch(caller, request.token.slot)) {
    return Fail(Code::kStale, "the generation is not the current one; register again");
  }
  KVCOVE_ASSIGN(const std::vector<wire::Place> places,
                master_->Lookup(request.token, request.hashes));
  return wire::Encode(std::span<const wire::Place>(places));
}

// Those that serve this tenant. The request tells what it missed since it asked last.
Result<std::string> MasterServer::Impl::OwnersFor(const rpc::Caller& caller,
                                                  std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const wire::RequesterReport report, wire::DecodeReport(body));
  for (std::size_t i = 0; i < report.misses.size(); ++i) {
    misses_[i].fetch_add(report.misses[i], std::memory_order_relaxed);
  }
  fallbacks_.fetch_add(report.fallbacks, std::memory_order_relaxed);
  for (const OwnerNumber number : report.broken) {
    if (number < wire::kMaxOwners) {
      master_->standings().owner(number).broken_at_ns = clock_.NowNs();
    }
  }
  for (const wire::RequesterReport::Miss& miss : report.recent) {
    if (MayTouch(caller, miss.slot)) {
      master_->directory().RememberMiss(miss.slot, miss.hash, miss.reason);
    }
  }
  if (report.holder != Id128{}) master_->generations().Heard(report.holder);
  wire::OwnersReply reply{.owners = master_->control().Owners(), .term = master_->term()};
  if (!caller.Has(rpc::Scope::kOwner)) {
    std::erase_if(reply.owners, [&](const wire::OwnerStat& owner) {
      return !owner.tenant.empty() && owner.tenant != caller.tenant;
    });
  }
  return wire::Encode(reply);
}

void MasterServer::Impl::Remove(const rpc::Caller& caller, std::span<const std::byte> body,
                                const rpc::Responder& respond) {
  Result<wire::RemoveRequest> request = wire::DecodeRemove(body);
  if (!request) return respond(FailedReply(request.error()));
  if (!MayTouch(caller, request->token.slot)) {
    return respond(
        FailedReply({Code::kStale, "the generation is not the current one; register again"}));
  }
  const std::int64_t deadline_ns = DeadlineOf(request->budget_ns);
  const bool posted = workers_->Post([this, request = std::move(*request), deadline_ns, respond] {
    const bool pattern = !request.pattern.empty();
    master_->Remove(request.token, request.keys, request.pattern, deadline_ns,
                    Through<Master::Removed>(respond, [pattern](const Master::Removed& removed) {
                      return pattern ? wire::EncodeCount(removed.matches)
                                     : wire::Encode(std::span<const Code>(removed.codes));
                    }));
  });
  if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
}

// ---- statistics

MasterStat MasterServer::Impl::Stat() const {
  const PoolFact pool = master_->generations().pool();
  const std::vector<std::uint64_t> entries = master_->directory().EntriesBySlot();
  std::map<std::string, std::uint64_t> entries_of_tenants;
  for (const SlotDescription& slot : master_->generations().Describe()) {
    const std::string_view tenant = TenantOf(slot.name);
    if (!tenant.empty()) entries_of_tenants[std::string(tenant)] += entries[slot.slot];
  }
  return {.pool = pool.pool,
          .incarnation = pool.incarnation,
          .term = master_->term(),
          .revision = master_->revision(),
          .directory_entries = master_->directory().entries(),
          .directory_bytes = master_->directory().bytes(),
          .entries_of_tenants = std::move(entries_of_tenants),
          .listings_over_share = master_->directory().refused(),
          .lookups = master_->directory().lookups(),
          .listed = master_->directory().listed(),
          .rejected = master_->directory().rejected(),
          .resets = resets_.load(),
          .connections = server_->connections().open(),
          .remembered_removals = master_->directory().remembered_removals(),
          .registrations = master_->generations().registrations(),
          .slots = master_->generations().used_slots(),
          .refused = master_->generations().refused(),
          .control = master_->control().Count(),
          .owners = master_->control().Owners()};
}

void MasterServer::Impl::Collect(http::Metrics& metrics) const {
  const MasterStat stat = Stat();
  CollectOwners(metrics, stat.owners, master_->standings(), clock_.NowNs());
  CollectMaster(metrics, stat);
  const auto number = [](auto value) { return static_cast<double>(value); };
  metrics.Counter("kvcove_master_resets_not_proven_total", "reset calls that did not answer true",
                  number(resets_not_proven_.load()));
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    metrics.Counter("kvcove_requester_misses_total", "keys that requesters missed, by reason",
                    number(misses_[i].load()),
                    {{"reason", std::string(MissReasonName(static_cast<MissReason>(i)))}});
  }
  metrics.Counter("kvcove_requester_placement_fallbacks_total",
                  "puts that did not go to the segment that was preferred",
                  number(fallbacks_.load()));
  metrics.Counter("kvcove_master_refused_connections_total",
                  "connections without a credential that is known", number(gate_.refused()));
  metrics.Gauge("kvcove_master_insecure", "1 when whoever comes may do everything",
                options_.credentials == nullptr);
  const ConnectionLimit& connections = server_->connections();
  metrics.Gauge("kvcove_master_connections", "open connections", number(connections.open()));
  metrics.Gauge("kvcove_master_connections_max", "beyond, new ones are closed at once",
                number(connections.max()));
  metrics.Counter("kvcove_master_connections_refused_total",
                  "connections that were closed at once or could not be accepted",
                  number(connections.refused()));
  metrics.Gauge("kvcove_master_connections_unproven",
                "open ones that have shown no credential and made no call yet",
                number(server_->unproven().open()));
  metrics.Counter("kvcove_master_connections_displaced_total",
                  "such connections that gave way to newer ones",
                  number(server_->unproven().displaced()));
  for (const auto& [method, name] : kTimedCalls) {
    metrics.Histogram("kvcove_master_call_seconds", "how long calls took",
                      times_[static_cast<std::size_t>(method)], {{"call", name}});
  }
}

// ---- MasterServer

MasterServer::MasterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MasterServer::~MasterServer() = default;
const rpc::Address& MasterServer::address() const { return impl_->address(); }
MasterStat MasterServer::Stat() const { return impl_->Stat(); }
Master& MasterServer::master() { return impl_->master(); }
rpc::Access MasterServer::AccessTo(const std::string& address) const {
  return impl_->AccessTo(address);
}
std::vector<wire::OwnerStat> MasterServer::Owners() const {
  return impl_->master().control().Owners();
}
std::vector<SlotDescription> MasterServer::Namespaces() const {
  return impl_->master().generations().Describe();
}
void MasterServer::Collect(http::Metrics& metrics) const { impl_->Collect(metrics); }

Result<wire::ResetOutcome> MasterServer::Reset(const wire::ResetRequest& request,
                                               std::int64_t deadline_ns) {
  auto outcome = impl_->Wait<ResetOutcome>([&](Reply<ResetOutcome> reply) {
    impl_->master().generations().Reset(request, deadline_ns, std::move(reply));
  });
  impl_->CountReset(outcome.has_value());
  return outcome;
}

Result<std::uint64_t> MasterServer::RemovePattern(const Token& token, std::string_view pattern,
                                                  std::int64_t deadline_ns) {
  KVCOVE_ASSIGN(const Master::Removed removed,
                impl_->Wait<Master::Removed>([&](Reply<Master::Removed> reply) {
                  impl_->master().Remove(token, {}, pattern, deadline_ns, std::move(reply));
                }));
  return removed.matches;
}

Result<std::unique_ptr<MasterServer>> MasterServer::Open(const MasterServerOptions& options,
                                                         const Clock& clock) {
  auto impl = std::make_unique<Impl>(options, clock);
  KVCOVE_TRY(impl->Open());
  return std::unique_ptr<MasterServer>(new MasterServer(std::move(impl)));
}

}  // namespace kvcove::master
