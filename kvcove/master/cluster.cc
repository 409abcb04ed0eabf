// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/cluster.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>

#include "kvcove/base/log.h"
#include "kvcove/master/control_log.h"
#include "kvcove/master/directory.h"
#include "kvcove/master/membership.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/workers.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::master {
namespace {

constexpr std::size_t kWorkers = 16;
constexpr std::size_t kLeaseLoop = 1;
constexpr std::int64_t kWatchNs = 2 * kSecond;   // for which a watch without news is held
constexpr std::int64_t kListenNs = 2 * kSecond;  // after a start, before anything is "never put"
constexpr std::size_t kLookAhead = 8;            // keys of a batch that are fetched from memory
constexpr std::size_t kMissesKept = 1 << 16;     // for Why

constexpr std::pair<wire::Method, const char*> kTimed[] = {
    {wire::Method::kLookup, "lookup"}, {wire::Method::kList, "list"},
    {wire::Method::kRenew, "renew"},   {wire::Method::kRegister, "register"},
    {wire::Method::kReset, "reset"},   {wire::Method::kRemoveEverywhere, "remove"},
};
bool IsTimed(wire::Method method) {
  return std::ranges::any_of(kTimed, [&](const auto& timed) { return timed.first == method; });
}

}  // namespace

class Cluster::Impl final : public rpc::Handler,
                            private GenerationSink,
                            private wire::GenerationService {
 public:
  Impl(const ClusterOptions& options, const Clock& clock)
      : options_(options),
        clock_(clock),
        started_ns_(clock.NowNs()),
        first_version_(RandomU64() >> 8),
        members_(options.lease_ns, static_cast<std::uint32_t>(RandomU64())),
        log_(first_version_),
        directory_(
            {.current_owner = [this](OwnerNumber number,
                                     std::uint32_t epoch) { return EpochIs(number, epoch); },
             .live_owner = [this](OwnerNumber number) { return IsLive(number); },
             .present_owner = [this](OwnerNumber number) { return IsPresent(number); },
             .may_list_again = [this](OwnerNumber number,
                                      std::uint32_t epoch) { return MayListAgain(number, epoch); },
             .current_generation =
                 [this](SlotId slot, Generation generation) {
                   return IsCurrent(slot, generation);
                 }}),
        pattern_removed_at_(kMaxSlots),
        missed_(kMissesKept),
        gate_(options.credentials),
        generations_(kMaxSlots),
        slot_tenants_(kMaxSlots),
        standings_(wire::kMaxOwners) {}

  ~Impl() override {
    if (server_ != nullptr) server_->Stop();
    {
      const MutexLock lock(control_mutex_);
      watches_.clear();
      stopping_ = true;
      control_changed_.NotifyAll();
    }
    workers_.reset();
    if (master_ == nullptr) return;
    bool running = false;
    {
      const MutexLock lock(control_mutex_);
      running = members_.AwaitedUntil(~0ULL, clock_.NowNs()).has_value();
    }
    if (running) {
      LogInfo("leases are still running: the next start will wait for them");
    } else if (const Status closed = master_->Close(); !closed) {
      LogWarn("the clean end could not be written down: {}", closed.error().ToString());
    }
  }

  Status Open() {
    access_.tls = options_.tls;
    if (options_.credentials != nullptr) {
      KVCOVE_ASSIGN(access_.credential, options_.credentials->OfCluster());
    }
    std::unique_ptr<GenerationLog> log;
    Restored restored{.incarnation = RandomId(), .records = {}};
    if (options_.data_directory.empty()) {
      log = std::make_unique<MemoryLog>();
      restored.running_lease_ns = options_.lease_ns;
    } else {
      KVCOVE_ASSIGN(log, FileLog::Open(options_.data_directory, options_.lease_ns, restored));
      // A missing file says nothing about the leases of whoever lost it.
      if (restored.records.empty()) restored.running_lease_ns = options_.lease_ns;
    }
    GenerationSink& sink = *this;
    KVCOVE_ASSIGN(master_, Master::Open(std::move(log), restored, sink, clock_));
    const std::set<SlotId> missed = master_->missed_removals();
    {
      const MutexLock lock(control_mutex_);
      log_.SetMissed(missed);
      last_version_ = log_.version();
    }
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
    return {};
  }

  const rpc::Address& address() const { return server_->address(); }

  ClusterStat Stat() const {
    ClusterStat stat{.incarnation = master_->incarnation(), .term = master_->term(), .owners = {}};
    {
      const MutexLock lock(control_mutex_);
      stat.version = log_.version();
      stat.owners = members_.Stat(clock_.NowNs());
    }
    {
      const MutexLock lock(directory_mutex_);
      stat.directory_entries = directory_.entries();
      stat.directory_bytes = directory_.bytes();
    }
    stat.lookups = lookups_.load();
    stat.listed = listed_.load();
    stat.rejected = rejected_.load();
    stat.resets = resets_.load();
    stat.connections = server_->connections().open();
    return stat;
  }

  // ---- administration

  const rpc::Access& access() const { return access_; }

  std::vector<SlotDescription> Namespaces() const { return master_->Describe(); }

  std::vector<wire::OwnerStat> Owners() const {
    const MutexLock lock(control_mutex_);
    return members_.Stat(clock_.NowNs());
  }

  wire::Place Find(SlotId slot, std::string_view key) const {
    const MutexLock lock(directory_mutex_);
    return directory_.Find(slot, DirectoryHash(slot, key));
  }

  std::vector<std::vector<OwnerNumber>> HoldersOf(
      std::span<const std::pair<SlotId, Id128>> objects) const {
    std::vector<std::vector<OwnerNumber>> holders;
    const MutexLock lock(directory_mutex_);
    for (const auto& [slot, hash] : objects) holders.push_back(directory_.HoldersOf(slot, hash));
    return holders;
  }

  std::optional<RecentMiss> Why(SlotId slot, std::string_view key) const {
    const MutexLock lock(directory_mutex_);
    const std::uint64_t tag = directory_.Tag(slot, DirectoryHash(slot, key));
    const Missed& missed = missed_[tag % kMissesKept];
    if (missed.tag != tag || missed.reason == MissReason::kNone) return std::nullopt;
    return RecentMiss{
        .reason = missed.reason, .count = missed.count, .age_ns = clock_.NowNs() - missed.at_ns};
  }

  Result<wire::ResetOutcome> ResetNow(const wire::ResetRequest& request, std::int64_t deadline_ns) {
    return Reset(request, deadline_ns);
  }

  Result<std::uint64_t> RemovePattern(SlotId slot, std::string_view pattern,
                                      std::int64_t deadline_ns) {
    KVCOVE_ASSIGN(const std::string count, Remove({.slot = slot,
                                                   .keys = {},
                                                   .pattern = std::string(pattern),
                                                   .budget_ns = deadline_ns - clock_.NowNs()}));
    return wire::DecodeCount(std::as_bytes(std::span(count)));
  }

  Status SetDraining(OwnerNumber number, bool draining) {
    const MutexLock lock(control_mutex_);
    return members_.SetDraining(number, draining);
  }

  void Collect(http::Metrics& metrics) const {
    const ClusterStat stat = Stat();
    const auto number = [](auto value) { return static_cast<double>(value); };
    for (const wire::OwnerStat& owner : stat.owners) {
      const http::Labels labels = {{"owner", owner.address}};
      const http::Labels tier = {{"owner", owner.address}, {"tier", "memory"}};
      metrics.Gauge("kvcove_master_owner_live", "1 while the owner's lease runs", owner.live,
                    labels);
      metrics.Gauge("kvcove_master_owner_draining", "1 while the owner is drained", owner.draining,
                    labels);
      metrics.Gauge("kvcove_master_owner_capacity_bytes", "memory that it gives to the pool",
                    number(owner.capacity_bytes), tier);
      metrics.Gauge("kvcove_master_owner_used_bytes", "of it in use",
                    number(owner.capacity_bytes - owner.free_bytes), tier);
      metrics.Gauge("kvcove_master_owner_objects", "objects that it holds", number(owner.objects),
                    labels);
      metrics.Gauge("kvcove_master_owner_lease_age_seconds", "since it renewed its lease",
                    number(owner.lease_age_ns) * 1e-9, labels);
      metrics.Counter("kvcove_master_owner_hits_total", "values read from it", number(owner.hits),
                      tier);
      metrics.Counter("kvcove_master_owner_puts_total", "values stored at it", number(owner.puts),
                      labels);
      metrics.Counter("kvcove_master_owner_evictions_total", "values evicted to make room",
                      number(owner.evictions), tier);
      metrics.Counter("kvcove_master_owner_stale_puts_total",
                      "puts that it rejected because they were begun before a reset or removal",
                      number(owner.stale_puts), labels);
      const std::int64_t broken =
          standings_[owner.number].broken_at_ns.load(std::memory_order_relaxed);
      metrics.Gauge("kvcove_master_owner_passed_over",
                    "1 while a requester passes it over because it does not answer",
                    broken != 0 && broken + 2 * kSecond > clock_.NowNs(), labels);
    }
    metrics.Gauge("kvcove_master_directory_entries", "keys and replicas that the master knows",
                  number(stat.directory_entries));
    metrics.Gauge("kvcove_master_directory_bytes", "memory of the directory",
                  number(stat.directory_bytes));
    metrics.Counter("kvcove_master_lookups_total", "keys looked up", number(stat.lookups));
    metrics.Counter("kvcove_master_listed_total", "objects that owners listed or withdrew",
                    number(stat.listed));
    metrics.Counter("kvcove_master_rejected_listings_total",
                    "listings that came second, or too late for a reset or removal",
                    number(stat.rejected));
    metrics.Counter("kvcove_master_resets_total", "reset calls", number(stat.resets));
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
    metrics.Gauge("kvcove_master_term", "starts of a master of this pool", number(stat.term));
    for (const auto& [method, name] : kTimed) {
      metrics.Histogram("kvcove_master_call_seconds", "how long calls took",
                        times_[static_cast<std::size_t>(method)], {{"call", name}});
    }
  }

  // ---- connections

  void OnOpen(rpc::ConnectionId id, const rpc::Peer& /*peer*/) override {
    const MutexLock lock(connections_mutex_);
    connections_[id];
  }
  void OnClose(rpc::ConnectionId id) override {
    const MutexLock lock(connections_mutex_);
    connections_.erase(id);
  }
  void OnProcessGone(std::uint64_t /*watch*/) override {}
  bool Admitted(rpc::ConnectionId id) const override {
    const MutexLock lock(connections_mutex_);
    const auto at = connections_.find(id);
    return at != connections_.end() && at->second.caller != nullptr;
  }

  void OnRequest(rpc::ConnectionId id, wire::Method method, std::span<const std::byte> body,
                 rpc::Responder respond) override {
    using wire::Method;
    std::shared_ptr<const rpc::Caller> caller;
    std::optional<rpc::Reply> greeted;
    {
      const MutexLock lock(connections_mutex_);
      rpc::Gate::Guest& guest = connections_[id];
      if (rpc::Gate::IsGreeting(method)) {
        greeted = gate_.Greet(guest, method, body);
      } else if (gate_.Admitted(guest)) {
        caller = guest.caller;
      }
    }
    if (greeted) return respond(std::move(*greeted));
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
    switch (method) {
      case Method::kOwnerHello:
        return Answer(respond, OwnerHello(body), kLeaseLoop);
      case Method::kRenew:
        return Answer(respond, Renew(body));
      case Method::kWatch:
        return Watch(body, std::move(respond));
      case Method::kOwnerGoodbye:
        return Answer(respond, OwnerGoodbye(body));
      case Method::kList:
        return Answer(respond, List(body));
      case Method::kLookup:
        return Answer(respond, Lookup(*caller, body));
      case Method::kOwners:
        return Answer(respond, OwnersFor(*caller, body));
      case Method::kRemoveEverywhere:
      case Method::kRegister:
      case Method::kReset:
      case Method::kNameVersions:
      case Method::kEndEngine: {
        const bool posted =
            workers_->Post([this, caller, method,
                            copy = std::vector<std::byte>(body.begin(), body.end()), respond] {
              if (method == Method::kRemoveEverywhere)
                return Answer(respond, Remove(*caller, copy));
              Tenancy tenancy(*this, *caller);
              Answer(respond,
                     wire::ServeGenerations(tenancy, method, copy, clock_.NowNs() + 10 * kSecond));
            });
        if (!posted) respond(rpc::ErrorReply({Code::kLimit, "too many calls are waiting"}));
        return;
      }
      default:
        return respond(rpc::ErrorReply({Code::kCorrupt, "not a call for the master"}, true));
    }
  }

 private:
  // A long poll for changes.
  struct Waiting {
    std::uint64_t have = 0;
    std::int64_t since_ns = 0;
    rpc::Responder respond;
  };
  // What owners removed by pattern, to be counted.
  struct PatternRemoval {
    std::uint64_t version = 0;
    std::uint64_t removed = 0;
  };

  // The calls of one tenant: its namespaces have its name in front, whatever it calls them.
  class Tenancy final : public wire::GenerationService {
   public:
    Tenancy(Impl& cluster, const rpc::Caller& caller) : cluster_(cluster), caller_(caller) {}
    Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                        std::int64_t deadline_ns) override {
      wire::RegisterRequest own = request;
      KVCOVE_ASSIGN(own.name, Own(request.name));
      return cluster_.Register(own, deadline_ns);
    }
    Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                     std::int64_t deadline_ns) override {
      wire::ResetRequest own = request;
      KVCOVE_ASSIGN(own.name, Own(request.name));
      return cluster_.Reset(own, deadline_ns);
    }
    Status NameVersions(std::string_view name, std::string_view engine,
                        std::span<const std::string> versions, std::int64_t deadline_ns) override {
      KVCOVE_ASSIGN(const std::string own, Own(name));
      return cluster_.NameVersions(own, engine, versions, deadline_ns);
    }
    Status EndEngine(std::string_view name, std::string_view engine,
                     std::int64_t deadline_ns) override {
      KVCOVE_ASSIGN(const std::string own, Own(name));
      return cluster_.EndEngine(own, engine, deadline_ns);
    }

   private:
    Result<std::string> Own(std::string_view name) const {
      KVCOVE_TRY(CheckName(name, "namespace"));
      return QualifiedName(caller_.tenant, name);
    }
    Impl& cluster_;
    const rpc::Caller& caller_;
  };

  static Status MayCall(const rpc::Caller& caller, wire::Method method) {
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
      case Method::kOwnerGoodbye:
      case Method::kList:
        return need(caller.Has(rpc::Scope::kOwner), "owner");
      case Method::kReset:
        return need(caller.Has(rpc::Scope::kReset), "reset");
      case Method::kRemoveEverywhere:
        return need(caller.Has(rpc::Scope::kWrite), "write");
      default:
        return need(caller.Has(rpc::Scope::kRead) || caller.Has(rpc::Scope::kWrite), "read");
    }
  }

  // False also for a slot that is free: nobody learns which are.
  bool MayTouch(const rpc::Caller& caller, SlotId slot) const {
    return slot < slot_tenants_.size() &&
           caller.MayTouch(slot_tenants_[slot].load(std::memory_order_acquire));
  }

  static void Answer(const rpc::Responder& respond, Result<std::string> answer,
                     std::size_t move_to_loop = 0) {
    if (!answer) {
      return respond(
          rpc::ErrorReply(answer.error(), /*close=*/answer.error().code == Code::kCorrupt));
    }
    respond({.code = Code::kOk,
             .body = std::move(*answer),
             .fds = {},
             .close = false,
             .move_to_loop = move_to_loop});
  }

  // ---- what entries of the directory are judged by; read without the control lock

  bool EpochIs(OwnerNumber number, std::uint32_t epoch) const {
    return number < standings_.size() &&
           standings_[number].epoch.load(std::memory_order_acquire) == epoch;
  }
  bool IsLive(OwnerNumber number) const {
    return standings_[number].live_until_ns.load(std::memory_order_acquire) > clock_.NowNs();
  }
  // The clock is read first: see Renew().
  bool IsPresent(OwnerNumber number) const {
    const std::int64_t now = clock_.NowNs();
    return standings_[number].present_until_ns.load(std::memory_order_seq_cst) > now;
  }
  bool MayListAgain(OwnerNumber number, std::uint32_t listed_under) const {
    const OwnerStanding& owner = standings_[number];
    return Membership::Standing{.epoch = owner.epoch.load(std::memory_order_acquire),
                                .first_epoch = owner.first_epoch.load(std::memory_order_acquire),
                                .told_epoch = owner.told_epoch.load(std::memory_order_acquire)}
        .MayListAgain(listed_under);
  }
  // Shows the directory what membership knows.
  void PublishStanding(OwnerNumber number) KVCOVE_REQUIRES(control_mutex_) {
    const Membership::Standing now = members_.StandingOf(number);
    OwnerStanding& owner = standings_[number];
    owner.first_epoch.store(now.first_epoch, std::memory_order_release);
    owner.told_epoch.store(now.told_epoch, std::memory_order_release);
    owner.epoch.store(now.epoch, std::memory_order_release);
    owner.present_until_ns.store(now.present_until_ns, std::memory_order_seq_cst);
  }
  bool IsCurrent(SlotId slot, Generation generation) const {
    return generation != 0 && slot < generations_.size() &&
           generations_[slot].load(std::memory_order_acquire) == generation;
  }

  // ---- generations

  // GenerationSink. Look-ups go by the new generation from here on.
  void Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) override {
    for (const SlotUpdate& update : updates) {
      slot_tenants_[update.slot].store(TenantTag(TenantOf(update.name)), std::memory_order_release);
      generations_[update.slot].store(update.generation, std::memory_order_seq_cst);
    }
    const MutexLock lock(control_mutex_);
    log_.Append(incarnation, updates);
    AnswerWatches();
  }

  Status Await(std::int64_t deadline_ns) override {
    const MutexLock lock(control_mutex_);
    return AwaitVersion(log_.version(), deadline_ns);
  }

  Status AwaitVersion(std::uint64_t version, std::int64_t deadline_ns)
      KVCOVE_REQUIRES(control_mutex_) {
    while (true) {
      const std::int64_t now = clock_.NowNs();
      const std::optional<std::int64_t> until = members_.AwaitedUntil(version, now);
      if (!until) return {};
      if (stopping_) return Fail(Code::kUnavailable, "the master is stopping");
      if (now >= deadline_ns) {
        return Fail(Code::kTimeout, "an owner has not acknowledged and its lease is running");
      }
      control_changed_.WaitFor(control_mutex_,
                               std::chrono::nanoseconds(std::min(*until, deadline_ns) - now));
    }
  }

  void AnswerWatches() KVCOVE_REQUIRES(control_mutex_) {
    last_version_.store(log_.version(), std::memory_order_release);
    std::map<OwnerNumber, Waiting> watches;
    watches.swap(watches_);
    for (const auto& [number, watch] : watches) AnswerWatch(watch);
  }

  // With what has changed since, or with nothing.
  void AnswerWatch(const Waiting& watch) KVCOVE_REQUIRES(control_mutex_) {
    watch.respond({.code = Code::kOk, .body = wire::Encode(log_.Since(watch.have)), .fds = {}});
  }

  // An owner gives a watch up after a few seconds, and with it the connection. Its renewals show
  // that it is there, so its watch is answered before, and asked again over the same connection.
  void AnswerOldWatch(OwnerNumber number, std::int64_t now) KVCOVE_REQUIRES(control_mutex_) {
    const auto at = watches_.find(number);
    if (at == watches_.end() || now < at->second.since_ns + kWatchNs) return;
    AnswerWatch(at->second);
    watches_.erase(at);
  }

  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t /*deadline_ns*/) override {
    return master_->Register(request);
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override {
    resets_.fetch_add(1);
    auto outcome = master_->Reset(request, deadline_ns);
    if (!outcome) resets_not_proven_.fetch_add(1);
    return outcome;
  }
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions,
                      std::int64_t /*deadline_ns*/) override {
    return master_->NameVersions(name, engine, {versions.begin(), versions.end()});
  }
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t /*deadline_ns*/) override {
    master_->EndEngine(name, engine);
    return {};
  }

  // ---- owners

  Result<std::string> OwnerHello(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::OwnerHello hello, wire::DecodeOwnerHello(body));
    const Id128 incarnation = master_->incarnation();
    const std::uint64_t term = master_->term();
    if (hello.incarnation == incarnation && hello.term > term) {
      return Fail(Code::kStale, fmt::format("this owner follows term {} of the pool, this master "
                                            "has term {}: it is an older one",
                                            hello.term, term));
    }
    const MutexLock lock(control_mutex_);
    KVCOVE_ASSIGN(wire::OwnerWelcome welcome, members_.Hello(hello, clock_.NowNs()));
    welcome.term = term;
    welcome.incarnation = incarnation;
    standings_[welcome.number].live_until_ns.store(0, std::memory_order_release);
    PublishStanding(welcome.number);
    LogInfo("owner {} at {} said hello (number {}, epoch {}, {} MiB)", hello.host, hello.address,
            welcome.number, welcome.epoch, hello.capacity_bytes >> 20);
    return wire::Encode(welcome);
  }

  Result<std::string> Renew(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::RenewRequest request, wire::DecodeRenew(body));
    const MutexLock lock(control_mutex_);
    const std::int64_t now = clock_.NowNs();
    if (members_.Current(request.number, request.epoch)) CountRemoved(request);
    const std::int64_t present_until = members_.StandingOf(request.number).present_until_ns;
    KVCOVE_ASSIGN(const bool granted,
                  members_.Renew(request, log_.version(), log_.slots_version(), now));
    PublishStanding(request.number);
    // This process may have stood still between the look at the clock and the line above, and a
    // listing that ran meanwhile found the owner absent. A listing reads the clock before it reads
    // `present_until_ns`: if the old time has not come yet, no listing can have found it passed.
    if (clock_.NowNs() >= present_until) {
      members_.Lapse(request.number);
      PublishStanding(request.number);
      return Fail(Code::kStale, "the lease had run out; say hello again");
    }
    control_changed_.NotifyAll();
    AnswerOldWatch(request.number, now);
    wire::RenewReply reply{.granted = granted,
                           .lease_ns = options_.lease_ns,
                           .changes = {.slots = {}, .removals = {}},
                           .draining = members_.Draining(request.number)};
    reply.changes.version = log_.version();
    if (granted) {
      standings_[request.number].live_until_ns.store(now + options_.lease_ns,
                                                     std::memory_order_release);
    } else {
      reply.changes = log_.Since(request.applied);
    }
    return wire::Encode(reply);
  }

  void Watch(std::span<const std::byte> body, rpc::Responder respond) {
    const Result<wire::RenewRequest> request = wire::DecodeRenew(body);
    if (!request) return respond(rpc::ErrorReply(request.error(), /*close=*/true));
    const MutexLock lock(control_mutex_);
    if (!members_.Current(request->number, request->epoch)) {
      return respond(rpc::ErrorReply({Code::kStale, "say hello again"}));
    }
    CountRemoved(*request);
    members_.Acknowledge(request->number, request->epoch, request->applied);
    control_changed_.NotifyAll();
    // Only one watch an owner: an earlier one lost its connection, and must not keep it open here.
    if (const auto at = watches_.find(request->number); at != watches_.end()) {
      at->second.respond(
          rpc::ErrorReply({Code::kStale, "another watch took this one's place"}, /*close=*/true));
      watches_.erase(at);
    }
    if (request->applied != log_.version()) {
      return respond(
          {.code = Code::kOk, .body = wire::Encode(log_.Since(request->applied)), .fds = {}});
    }
    watches_[request->number] = {
        .have = request->applied, .since_ns = clock_.NowNs(), .respond = std::move(respond)};
  }

  void CountRemoved(const wire::RenewRequest& request) KVCOVE_REQUIRES(control_mutex_) {
    for (PatternRemoval* removal : pattern_removals_) {
      if (removal->version <= request.applied && request.removed > 0) {
        removal->removed += request.removed;
        return;
      }
    }
  }

  Result<std::string> OwnerGoodbye(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::RenewRequest request, wire::DecodeRenew(body));
    const MutexLock lock(control_mutex_);
    if (members_.Current(request.number, request.epoch)) {
      standings_[request.number].live_until_ns.store(0, std::memory_order_release);
      members_.Goodbye(request.number, request.epoch);
      PublishStanding(request.number);
      watches_.erase(request.number);
      LogInfo("owner {} said goodbye", request.number);
    }
    control_changed_.NotifyAll();
    return std::string();
  }

  Result<std::string> List(std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::ListRequest request, wire::DecodeList(body));
    std::vector<Code> codes(request.items.size(), Code::kOk);
    std::uint64_t rejected = 0;
    {
      const MutexLock lock(directory_mutex_);
      if (!EpochIs(request.number, request.epoch)) {
        return Fail(Code::kStale, "the master does not know this owner; say hello again");
      }
      for (std::size_t i = 0; i < request.items.size(); ++i) {
        const wire::ListItem& item = request.items[i];
        if (item.gone) {
          directory_.Unlist(item.slot, item.hash, request.number);
          continue;
        }
        // Removed after the owner's last look, or after the other owner's from which it has a copy:
        // what it lists was begun before the removal.
        if (RemovedSince(item, request.applied) ||
            (item.copied_at != 0 &&
             (item.copied_at < first_version_ || item.copied_at < pattern_removed_at_[item.slot] ||
              RemovedSince(item, item.copied_at)))) {
          codes[i] = Code::kStale;
        } else {
          codes[i] = directory_.List(item, request.number, request.epoch);
        }
        rejected += codes[i] != Code::kOk ? 1 : 0;
      }
    }
    listed_.fetch_add(request.items.size(), std::memory_order_relaxed);
    rejected_.fetch_add(rejected, std::memory_order_relaxed);
    return wire::Encode(std::span<const Code>(codes));
  }

  bool RemovedSince(const wire::ListItem& item, std::uint64_t version) const
      KVCOVE_REQUIRES(directory_mutex_) {
    const auto removed = removed_at_.find(directory_.Tag(item.slot, item.hash));
    return version < removed_floor_ || (removed != removed_at_.end() && removed->second > version);
  }

  // ---- requesters

  Result<std::string> Lookup(const rpc::Caller& caller, std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::LookupRequest request, wire::DecodeLookup(body));
    if (!MayTouch(caller, request.token.slot) ||
        !IsCurrent(request.token.slot, request.token.generation)) {
      return Fail(Code::kStale, "the generation is not the current one; register again");
    }
    std::vector<wire::Place> places;
    places.reserve(request.hashes.size());
    bool missed = false;
    {
      const MutexLock lock(directory_mutex_);
      for (std::size_t i = 0; i < request.hashes.size(); ++i) {
        const std::size_t ahead = i + kLookAhead;
        if (ahead < request.hashes.size()) directory_.Prefetch(request.hashes[ahead]);
        places.push_back(directory_.Find(request.token.slot, request.hashes[i]));
        missed = missed || places.back().owner == wire::kNoOwner;
      }
    }
    lookups_.fetch_add(places.size(), std::memory_order_relaxed);
    if (missed && Warming()) {
      for (wire::Place& place : places) {
        if (place.reason == MissReason::kNeverPut) place.reason = MissReason::kWarmingUp;
      }
    }
    if (missed) RememberMisses(request.token.slot, request.hashes, places);
    return wire::Encode(std::span<const wire::Place>(places));
  }

  void RememberTold(const rpc::Caller& caller, const wire::RequesterReport& report) {
    if (report.recent.empty()) return;
    const MutexLock lock(directory_mutex_);
    for (const wire::RequesterReport::Miss& miss : report.recent) {
      if (MayTouch(caller, miss.slot)) RememberMiss(miss.slot, miss.hash, miss.reason);
    }
  }

  void RememberMiss(SlotId slot, const Id128& hash, MissReason reason)
      KVCOVE_REQUIRES(directory_mutex_) {
    const std::uint64_t tag = directory_.Tag(slot, hash);
    Missed& missed = missed_[tag % kMissesKept];
    if (missed.tag != tag) missed = {.tag = tag};
    missed.reason = reason;
    missed.at_ns = clock_.NowNs();
    ++missed.count;
  }

  void RememberMisses(SlotId slot, std::span<const Id128> hashes,
                      std::span<const wire::Place> places) {
    const MutexLock lock(directory_mutex_);
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (places[i].owner == wire::kNoOwner) RememberMiss(slot, hashes[i], places[i].reason);
    }
  }

  bool Warming() {
    const std::int64_t now = clock_.NowNs();
    if (now < started_ns_ + kListenNs) return true;
    const MutexLock lock(control_mutex_);
    return members_.Warming(now);
  }

  // Those that serve this tenant. The request tells what it missed since it asked last.
  Result<std::string> OwnersFor(const rpc::Caller& caller, std::span<const std::byte> body) {
    KVCOVE_ASSIGN(const wire::RequesterReport report, wire::DecodeReport(body));
    for (std::size_t i = 0; i < report.misses.size(); ++i) {
      misses_[i].fetch_add(report.misses[i], std::memory_order_relaxed);
    }
    fallbacks_.fetch_add(report.fallbacks, std::memory_order_relaxed);
    for (const OwnerNumber number : report.broken) {
      if (number < standings_.size()) standings_[number].broken_at_ns = clock_.NowNs();
    }
    RememberTold(caller, report);
    std::vector<wire::OwnerStat> owners = Owners();
    if (!caller.Has(rpc::Scope::kOwner)) {
      std::erase_if(owners, [&](const wire::OwnerStat& owner) {
        return !owner.tenant.empty() && owner.tenant != caller.tenant;
      });
    }
    return wire::Encode(owners);
  }

  Result<std::string> Remove(const rpc::Caller& caller, std::span<const std::byte> body) {
    KVCOVE_ASSIGN(wire::RemoveRequest request, wire::DecodeRemove(body));
    if (!MayTouch(caller, request.slot)) {
      return Fail(Code::kStale, "this slot is not of this tenant; register again");
    }
    return Remove(std::move(request));
  }

  Result<std::string> Remove(wire::RemoveRequest request) {
    const std::int64_t deadline_ns =
        clock_.NowNs() + std::clamp<std::int64_t>(request.budget_ns, 0, 3600 * kSecond);
    std::vector<Code> codes;
    PatternRemoval counted;
    std::uint64_t version = 0;
    {
      const MutexLock lock(control_mutex_);
      version = log_.version() + 1;
      {
        const MutexLock directory_lock(directory_mutex_);
        for (const std::string& key : request.keys) {
          const Id128 hash = DirectoryHash(request.slot, key);
          codes.push_back(directory_.Find(request.slot, hash).owner == wire::kNoOwner ? Code::kMiss
                                                                                      : Code::kOk);
          directory_.Remove(request.slot, hash);
          RememberRemoved(directory_.Tag(request.slot, hash), version);
        }
        if (!request.pattern.empty()) pattern_removed_at_[request.slot] = version;
      }
      log_.Append(
          {.slot = request.slot, .keys = std::move(request.keys), .pattern = request.pattern});
      counted.version = version;
      if (!request.pattern.empty()) pattern_removals_.push_back(&counted);
      AnswerWatches();
      const Status acknowledged = AwaitVersion(version, deadline_ns);
      std::erase(pattern_removals_, &counted);
      KVCOVE_TRY(acknowledged);
      if (!members_.Missed(version)) version = 0;
    }
    // An owner that nobody can trust any more does not know of it: it must never bring it back.
    if (version != 0) {
      KVCOVE_TRY(master_->PersistMissed(request.slot));
      const MutexLock lock(control_mutex_);
      log_.SetMissed({request.slot});
    }
    while (clock_.NowNs() < master_->proven_from_ns()) {
      if (clock_.NowNs() >= deadline_ns) {
        return Fail(Code::kTimeout, "leases that an earlier process gave are still running");
      }
      const MutexLock lock(control_mutex_);
      control_changed_.WaitFor(control_mutex_, std::chrono::milliseconds(20));
    }
    if (!request.pattern.empty()) return wire::EncodeCount(counted.removed);
    return wire::Encode(std::span<const Code>(codes));
  }

  // Bounded: beyond, listings that are behind are all refused, and tried again by their owners.
  void RememberRemoved(std::uint64_t tag, std::uint64_t version) KVCOVE_REQUIRES(directory_mutex_) {
    constexpr std::size_t kMaxRemembered = 1 << 18;
    removed_at_[tag] = version;
    removed_order_.push_back(tag);
    while (removed_order_.size() > kMaxRemembered) {
      const auto oldest = removed_at_.find(removed_order_.front());
      removed_order_.pop_front();
      if (oldest == removed_at_.end()) continue;
      removed_floor_ = std::max(removed_floor_, oldest->second);
      removed_at_.erase(oldest);
    }
  }

  const ClusterOptions options_;
  const Clock& clock_;
  const std::int64_t started_ns_;
  // Of the control log in this life: numbers of another one say nothing.
  const std::uint64_t first_version_;
  std::atomic<std::uint64_t> last_version_{0};

  mutable Mutex connections_mutex_;
  std::map<rpc::ConnectionId, rpc::Gate::Guest> connections_ KVCOVE_GUARDED_BY(connections_mutex_);

  mutable Mutex control_mutex_;
  CondVar control_changed_;
  Membership members_ KVCOVE_GUARDED_BY(control_mutex_);
  ControlLog log_ KVCOVE_GUARDED_BY(control_mutex_);
  std::map<OwnerNumber, Waiting> watches_ KVCOVE_GUARDED_BY(control_mutex_);
  std::vector<PatternRemoval*> pattern_removals_ KVCOVE_GUARDED_BY(control_mutex_);
  bool stopping_ KVCOVE_GUARDED_BY(control_mutex_) = false;

  mutable Mutex directory_mutex_;
  Directory directory_ KVCOVE_GUARDED_BY(directory_mutex_);
  // By Directory::Tag, as `missed_` is.
  std::unordered_map<std::uint64_t, std::uint64_t> removed_at_ KVCOVE_GUARDED_BY(directory_mutex_);
  std::deque<std::uint64_t> removed_order_ KVCOVE_GUARDED_BY(directory_mutex_);
  std::uint64_t removed_floor_ KVCOVE_GUARDED_BY(directory_mutex_) = 0;
  std::vector<std::uint64_t> pattern_removed_at_ KVCOVE_GUARDED_BY(directory_mutex_);  // by slot

  struct Missed {
    std::uint64_t tag = 0;
    std::int64_t at_ns = 0;
    std::uint32_t count = 0;
    MissReason reason = MissReason::kNone;
  };
  std::vector<Missed> missed_ KVCOVE_GUARDED_BY(directory_mutex_);

  rpc::Access access_;
  rpc::Gate gate_;
  std::vector<std::atomic<Generation>> generations_;
  std::vector<std::atomic<std::uint64_t>> slot_tenants_;  // TenantTag of each slot's tenant
  // By number. What membership knows of an owner, for calls that do not hold its lock.
  struct OwnerStanding {
    std::atomic<std::uint32_t> epoch{0};
    std::atomic<std::uint32_t> first_epoch{0};
    std::atomic<std::uint32_t> told_epoch{0};
    std::atomic<std::int64_t> live_until_ns{0};
    std::atomic<std::int64_t> present_until_ns{0};
    std::atomic<std::int64_t> broken_at_ns{0};  // when a requester said so
  };
  std::vector<OwnerStanding> standings_;
  std::atomic<std::uint64_t> lookups_{0};
  std::atomic<std::uint64_t> listed_{0};
  std::atomic<std::uint64_t> rejected_{0};
  std::atomic<std::uint64_t> resets_{0};
  std::atomic<std::uint64_t> resets_not_proven_{0};
  std::atomic<std::uint64_t> fallbacks_{0};
  std::array<std::atomic<std::uint64_t>, kMissReasons> misses_{};
  std::array<http::Histogram, wire::kMaxMethod + 1> times_;

  std::unique_ptr<Master> master_;
  std::unique_ptr<rpc::Workers> workers_;
  std::unique_ptr<rpc::Server> server_;
};

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cluster::~Cluster() = default;
const rpc::Address& Cluster::address() const { return impl_->address(); }
ClusterStat Cluster::Stat() const { return impl_->Stat(); }
const rpc::Access& Cluster::access() const { return impl_->access(); }
std::vector<wire::OwnerStat> Cluster::Owners() const { return impl_->Owners(); }
std::vector<SlotDescription> Cluster::Namespaces() const { return impl_->Namespaces(); }
wire::Place Cluster::Find(SlotId slot, std::string_view key) const {
  return impl_->Find(slot, key);
}
std::vector<std::vector<OwnerNumber>> Cluster::HoldersOf(
    std::span<const std::pair<SlotId, Id128>> objects) const {
  return impl_->HoldersOf(objects);
}
std::optional<RecentMiss> Cluster::Why(SlotId slot, std::string_view key) const {
  return impl_->Why(slot, key);
}
Result<wire::ResetOutcome> Cluster::Reset(const wire::ResetRequest& request,
                                          std::int64_t deadline_ns) {
  return impl_->ResetNow(request, deadline_ns);
}
Result<std::uint64_t> Cluster::RemovePattern(SlotId slot, std::string_view pattern,
                                             std::int64_t deadline_ns) {
  return impl_->RemovePattern(slot, pattern, deadline_ns);
}
Status Cluster::SetDraining(OwnerNumber number, bool draining) {
  return impl_->SetDraining(number, draining);
}
void Cluster::Collect(http::Metrics& metrics) const { impl_->Collect(metrics); }

Result<std::unique_ptr<Cluster>> Cluster::Open(const ClusterOptions& options, const Clock& clock) {
  auto impl = std::make_unique<Impl>(options, clock);
  KVCOVE_TRY(impl->Open());
  return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

}  // namespace kvcove::master
