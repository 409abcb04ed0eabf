// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/cluster_host.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::requester {
namespace {

constexpr std::int64_t kOwnersNs = 200 * kMillisecond;  // for one list of owners
// All requesters lose a master at the same moment. Each delays its probes by a random part of this,
// or they would probe in step.
constexpr std::uint64_t kProbeSpreadNs = 125 * kMillisecond;
constexpr std::int64_t kEnginesNs = 2 * kSecond;       // to repeat all registrations
constexpr std::size_t kAheadKeys = 1024;               // of one call
constexpr std::int64_t kAheadNs = 200 * kMillisecond;  // of a ReadAhead, from its start
constexpr std::size_t kMaxRecent = 512;                // misses with their keys in one report
// Failed attempts before a line is logged: an owner that restarts does not answer for a moment.
constexpr int kPatientLooks = 5;

// Says that nothing is shared on this host. Where an owner is on this machine, a line of its own
// says why that one is not used.
void NoteNoOwnerHere(const std::string& host, std::span<const wire::OwnerStat> owners) {
  const bool any = std::ranges::any_of(owners, [&](const wire::OwnerStat& owner) {
    return owner.host == host || AreNeighbours(host, owner.host);
  });
  if (any) return;
  LogInfo(
      "no owner of the pool is on this host, which is called '{}': values travel over the network. "
      "An owner that is here all the same has another name ($KVCOVE_HOST_ID, `kvcove admin "
      "segments`)",
      host);
}

}  // namespace

std::string HostIdentity() {
  if (const char* id = std::getenv("KVCOVE_HOST_ID"); id != nullptr && *id != '\0') return id;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  char space[64] = {};
  if (readlink("/proc/thread-self/ns/net", space, sizeof(space) - 1) < 0) space[0] = '\0';
  return boot + "/" + space;
}

bool AreNeighbours(std::string_view host, std::string_view other) {
  const std::size_t slash = host.find("/net:");
  return host != other && slash != std::string_view::npos && slash > 0 &&
         other.starts_with(host.substr(0, slash + 5));
}

ClusterHost::ClusterHost(const ClusterHostOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      link_(options.master, options.access,
            {.peer = "the master",
             .on_change = [this](rpc::Breaker::Change change) { NoteMaster(change); }},
            clock),
      stub_(link_.channel(rpc::kPatient), process_),
      guarded_stub_(link_.channel(rpc::kPatientGuarded), process_),
      shards_(
          options.access,
          [this](const Token& token, std::span<const Id128> hashes, std::int64_t deadline_ns,
                 SaveNotice notice) {
            return guarded_stub_.Lookup(token, hashes, deadline_ns, notice);
          },
          [this](std::int64_t deadline_ns) {
            const auto reply =
                guarded_stub_.Owners(std::min(clock_.NowNs() + kOwnersNs, deadline_ns));
            if (reply) shards_.SetMap(reply->map);
          },
          clock) {}

Result<std::unique_ptr<ClusterHost>> ClusterHost::Connect(const ClusterHostOptions& given,
                                                          std::int64_t deadline_ns,
                                                          const Clock& clock) {
  ClusterHostOptions options = given;
  if (options.host.empty()) options.host = HostIdentity();
  // The order: the map before any look-up; local owners before the thread of Peers, which also
  // finds them; and `peers_now_` last, since its acquire promises a complete Peers.
  std::unique_ptr<ClusterHost> host(new ClusterHost(options, clock));
  KVCOVE_ASSIGN(const wire::OwnersReply first, host->stub_.Owners(deadline_ns));
  host->NoteSettings(first.settings);
  host->shards_.SetMap(first.map);
  host->FindLocal(first.owners, deadline_ns);
  if (options.local) NoteNoOwnerHere(options.host, first.owners);
  host->peers_ = std::make_unique<Peers>(
      [raw = host.get()](Asker asker, std::vector<wire::OwnerNumber> passed_over,
                         std::int64_t deadline_ns) {
        return raw->AskOwners(asker, std::move(passed_over), deadline_ns);
      },
      [raw = host.get(), later_ns = static_cast<std::int64_t>(RandomU64() % kProbeSpreadNs)] {
        const std::int64_t due_ns = raw->link_.breaker().ProbeDueNs();
        return due_ns == rpc::Breaker::kNever ? due_ns : due_ns + later_ns;
      },
      *options.transport, options.access, clock);
  KVCOVE_TRY(host->peers_->Start());
  host->peers_now_.store(host->peers_.get(), std::memory_order_release);
  return host;
}

Result<std::vector<wire::OwnerStat>> ClusterHost::AskOwners(
    Asker asker, std::vector<wire::OwnerNumber> passed_over, std::int64_t deadline_ns) {
  const std::int64_t until_ns = std::min(clock_.NowNs() + kOwnersNs, deadline_ns);
  // A call takes the list only: it must not wait for registrations, or for owners of this host.
  if (asker == Asker::kCall) {
    KVCOVE_ASSIGN(wire::OwnersReply reply, guarded_stub_.Owners(until_ns));
    NoteSettings(std::move(reply.settings));
    shards_.SetMap(std::move(reply.map));
    return std::move(reply.owners);
  }
  // Over the unguarded stub with a pass of its own: a probe must reach a broken master, and its
  // outcome is what makes the master trusted again.
  const rpc::Breaker::Pass pass = link_.breaker().BeginProbe(until_ns);
  auto reply = stub_.Owners(until_ns, TakeReport(std::move(passed_over)));
  NoteMaster(link_.breaker().End(
      pass, reply ? rpc::Breaker::Outcome::kAnswered : rpc::OutcomeOf(reply.error())));
  if (!reply) return std::unexpected(reply.error());
  NoteSettings(std::move(reply->settings));
  shards_.SetMap(std::move(reply->map));
  TellEngines(reply->term);
  FindLocal(reply->owners, clock_.NowNs() + kOwnersNs);
  return std::move(reply->owners);
}

// Queued work sees `closing_` and ends at once; a call under way ends by its deadline of 200 ms.
// The worker uses peers_, so it is joined here, before the members end; after the lock, which is
// released first.
ClusterHost::~ClusterHost() {
  closing_.store(true, std::memory_order_relaxed);
  std::unique_ptr<rpc::Workers> ahead;
  const MutexLock lock(ahead_mutex_);
  ahead.swap(ahead_);
}

// A thread must not start under a lock. If two callers start one each, the second one's ends here,
// after the lock.
rpc::Workers* ClusterHost::Ahead() {
  {
    const MutexLock lock(ahead_mutex_);
    if (ahead_ != nullptr) return ahead_.get();
  }
  auto made = std::make_unique<rpc::Workers>(1);
  if (!made->Start()) return nullptr;
  const MutexLock lock(ahead_mutex_);
  if (ahead_ == nullptr) ahead_ = std::move(made);
  return ahead_.get();
}

void ClusterHost::ReadAhead(const Token& token, wire::OwnerNumber owner,
                            std::vector<std::string> keys, std::chrono::milliseconds hold) {
  const std::int64_t until_ns = clock_.NowNs() + kAheadNs;
  rpc::Workers* const ahead = Ahead();
  if (ahead == nullptr) return;
  (void)ahead->Post([this, token, owner, keys = std::move(keys), hold, until_ns] {
    // Relaxed: a late view costs one more call, which ends by its deadline.
    if (closing_.load(std::memory_order_relaxed) || clock_.NowNs() >= until_ns) return;
    const auto peer = peers_->Get(owner, until_ns);
    if (peer == nullptr || peer->broken()) return;
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    const auto objects = wire::MakeObjectStub(peer->channel());
    for (std::size_t from = 0; from < views.size(); from += kAheadKeys) {
      objects->Load(
          {.token = token,
           .keys = std::span(views).subspan(from, std::min(kAheadKeys, views.size() - from)),
           .wait_ns = 0,
           .hold_ns = hold.count() * kMillisecond},
          until_ns, [](const auto&) {});
    }
  });
}

void ClusterHost::NoteSettings(wire::MasterSettings settings) {
  const MutexLock lock(settings_mutex_);
  settings_ = std::move(settings);
}

wire::MasterSettings ClusterHost::Settings() {
  const MutexLock lock(settings_mutex_);
  return settings_;
}

void ClusterHost::OpenEngine(const std::string& name, const std::string& engine) {
  const MutexLock lock(engines_mutex_);
  ++sessions_[{name, engine}];
  ended_.erase({name, engine});
}

void ClusterHost::CloseEngine(const std::string& name, const std::string& engine) {
  {
    const MutexLock lock(engines_mutex_);
    const auto at = sessions_.find({name, engine});
    if (at == sessions_.end() || --at->second > 0) return;
    sessions_.erase(at);
    ended_.insert({name, engine});
  }
  // After `ended_`: if TellEngines repeats this engine's registration in between, it ends the
  // engine at the master afterwards.
  engines_.Ended(name, engine);
}

// Repeats first, then ends engines: a repetition works on a copy, which may still have an engine
// that has ended since. An end that fails is tried again with the next refresh; if the master
// remains away, it ends the registrations of a silent process by itself.
void ClusterHost::TellEngines(std::uint64_t term) {
  const std::int64_t now = clock_.NowNs();
  if (engines_.Forgotten(term, now)) (void)engines_.Repeat(stub_, now + kEnginesNs);
  while (true) {
    Engine engine;
    {
      const MutexLock lock(engines_mutex_);
      if (ended_.empty()) return;
      engine = *ended_.begin();
      ended_.erase(ended_.begin());
    }
    if (stub_.EndEngine(engine.first, engine.second, clock_.NowNs() + kOwnersNs)) continue;
    // A new session of the engine may have begun during the call: it must keep its registration.
    const MutexLock lock(engines_mutex_);
    if (!sessions_.contains(engine)) ended_.insert(engine);
    return;
  }
}

void ClusterHost::NoteMaster(rpc::Breaker::Change change) {
  using Change = rpc::Breaker::Change;
  if (change == Change::kMended) {
    LogInfo("the master at {} answers again", options_.master.ToString());
  }
  if (change == Change::kBroken) {
    LogWarn("the master at {} does not answer: keys of other hosts are misses",
            options_.master.ToString());
  }
  // Acquire: pairs with the release in Connect. The thread must compute anew when it probes: it may
  // sleep until its next refresh, up to 5 s.
  Peers* peers = peers_now_.load(std::memory_order_acquire);
  if ((change == Change::kSuspected || change == Change::kBroken) && peers != nullptr) {
    peers->Wake();
  }
}

void ClusterHost::FindLocal(std::span<const wire::OwnerStat> owners, std::int64_t deadline_ns) {
  // One thread at a time; the others do not wait for it, and find the owners with a later look. The
  // exchange and the store (both seq_cst) also hand refusals_ from one such thread to the next.
  if (!options_.local || finding_.exchange(true)) return;
  ConnectLocal(owners, deadline_ns);
  finding_ = false;
}

void ClusterHost::ConnectLocal(std::span<const wire::OwnerStat> owners, std::int64_t deadline_ns) {
  // An owner that left the list may return with a socket that works: its count begins anew.
  std::erase_if(refusals_, [&](const auto& refused) {
    return std::ranges::find(owners, refused.first, &wire::OwnerStat::socket) == owners.end();
  });
  for (const wire::OwnerStat& owner : owners) {
    if (owner.socket.empty() || (!options_.owner.empty() && owner.address != options_.owner)) {
      continue;
    }
    if (AreNeighbours(options_.host, owner.host)) NoteNeighbour(owner, deadline_ns);
    if (owner.host != options_.host || locals_.Has(owner.socket)) continue;
    auto local = SocketOwner::Connect(owner.socket, deadline_ns, clock_, options_.warm);
    if (local) {
      (void)locals_.Add({.socket = owner.socket, .host = std::move(*local)});
      refusals_.erase(owner.socket);
      LogInfo(
          "the owner at {} is on this host: its memory is mapped by way of '{}', so its values are "
          "copied in shared memory and not sent over the network",
          owner.address, owner.socket);
    } else {
      NoteRefusal(owner, local.error());
    }
  }
}

// Each look at the owners tries again. Another address or code at the same socket is another owner
// or another reason, which is worth its own line.
void ClusterHost::NoteRefusal(const wire::OwnerStat& owner, const Error& why) {
  Refusal& refusal = refusals_[owner.socket];
  if (refusal.address != owner.address || refusal.code != why.code) {
    refusal = {.address = owner.address, .code = why.code};
  }
  const bool may_pass = why.code == Code::kUnavailable || why.code == Code::kTimeout;
  if (++refusal.looks < (may_pass ? kPatientLooks : 1) || !owner.live || refusal.said) {
    return LogDebug("the owner at '{}' cannot be used directly: {}", owner.socket, why.ToString());
  }
  refusal.said = true;
  LogWarn(
      "the owner at '{}' is on this host, but its memory cannot be mapped: {}. Its values travel "
      "over TCP, which is slower",
      owner.socket, why.detail);
}

// The owner and this process are mostly two pods of one node. The kernel lets them share memory,
// but an operator must allow it with KVCOVE_HOST_ID, because two network namespaces count as two
// hosts. The attempt to connect decides which advice is useful.
void ClusterHost::NoteNeighbour(const wire::OwnerStat& owner, std::int64_t deadline_ns) {
  if (!owner.live || std::exchange(logged_neighbour_, true)) return;
  const auto socket = rpc::Client::Connect(owner.socket, deadline_ns);
  if (socket) {
    return LogWarn(
        "the owner at {} runs on this machine, in another network namespace, so its values travel "
        "over TCP, which is slower. Its socket '{}' can be opened from here: to share memory, set "
        "KVCOVE_HOST_ID to one text for the owner and for this process, such as the node's name",
        owner.address, owner.socket);
  }
  LogInfo(
      "the owner at {} runs on this machine, in another network namespace, so its values travel "
      "over TCP. To share memory, mount the directory of its socket '{}' here under the same path "
      "({}), and set KVCOVE_HOST_ID to one text for both, such as the node's name",
      owner.address, owner.socket, socket.error().detail);
}

std::vector<wire::OwnerNumber> ClusterHost::LocalNumbers(const std::string& address) const {
  std::vector<wire::OwnerNumber> numbers;
  if (locals_.count() == 0) return numbers;
  for (const wire::OwnerStat& owner : peers_->Owners()) {
    if (!address.empty() && owner.address != address) continue;
    if (owner.host == options_.host && locals_.Usable(owner.socket)) {
      numbers.push_back(owner.number);
    }
  }
  return numbers;
}

std::optional<std::size_t> ClusterHost::LocalAt(const std::string& address) const {
  for (const wire::OwnerStat& owner : peers_->Owners()) {
    if (owner.address != address || owner.host != options_.host) continue;
    if (const auto at = locals_.Usable(owner.socket)) return at;
  }
  return std::nullopt;
}

void ClusterHost::CountMiss(std::optional<SlotId> slot, std::string_view key, MissReason reason) {
  misses_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
  switch (reason) {
    case MissReason::kLease:
    case MissReason::kUnavailable:
    case MissReason::kRaced:
    case MissReason::kLimited:
    case MissReason::kOwnerGone:
    case MissReason::kTimeout:
    case MissReason::kDenied:
    case MissReason::kDiskDamaged:
    case MissReason::kDiskFailed:
    case MissReason::kDiskTimeout:
    case MissReason::kNoRoom:
    case MissReason::kShardAway:
      break;
    default:
      return;  // the master gave this reason, so it has the miss already
  }
  if (!slot) return;
  const MutexLock lock(recent_mutex_);
  if (recent_.size() < kMaxRecent) {
    recent_.push_back({.hash = DirectoryHash(*slot, key), .slot = *slot, .reason = reason});
  }
}

// The counts of a report that does not reach the master are lost: these are statistics.
wire::RequesterReport ClusterHost::TakeReport(std::vector<wire::OwnerNumber> passed_over) {
  wire::RequesterReport report;
  report.holder = process_;
  for (std::size_t i = 0; i < misses_.size(); ++i) report.misses[i] = misses_[i].exchange(0);
  report.fallbacks = fallbacks_.exchange(0);
  report.broken = std::move(passed_over);
  const MutexLock lock(recent_mutex_);
  report.recent.swap(recent_);
  return report;
}

Result<std::vector<wire::Place>> ClusterHost::Lookup(const Token& token,
                                                     std::span<const Id128> hashes,
                                                     std::int64_t deadline_ns) {
  return shards_.Lookup(token, hashes, deadline_ns);
}

// A look-up that carries the notice, so that each master gets that about its own keys.
Status ClusterHost::Announce(const Token& token, std::span<const Id128> hashes, SaveNotice notice,
                             std::int64_t deadline_ns) {
  const auto places = shards_.Lookup(token, hashes, deadline_ns, notice);
  if (!places) return std::unexpected(places.error());
  return {};
}

Result<wire::Registration> ClusterHost::Register(const wire::RegisterRequest& request,
                                                 std::int64_t deadline_ns) {
  // Kept for a later master; Locator keeps the binding itself.
  KVCOVE_ASSIGN(const wire::Registration registration,
                guarded_stub_.Register(request, deadline_ns));
  engines_.Registered(request, registration);
  return registration;
}

}  // namespace kvcove::requester
