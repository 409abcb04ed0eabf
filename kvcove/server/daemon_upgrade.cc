// SPDX-License-Identifier: Apache-2.0
// The hand-over of daemons from one process to another (docs/upgrade.md): of all daemons of a
// process, or of none.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <utility>

#include "kvcove/base/log.h"
#include "kvcove/rpc/fd_message.h"
#include "kvcove/rpc/inherited.h"
#include "kvcove/server/daemon_impl.h"

namespace kvcove::server {
namespace {

// How long an upgrade waits for calls that are under way. A call that waits longer, such as a reset
// that is not proven yet, loses its connection, and its session makes another one.
constexpr std::int64_t kPauseNs = 200 * kMillisecond;
// How long workers may take to end their calls after EndWaits has ended what these wait for.
constexpr std::int64_t kQuietNs = kSecond;
constexpr std::size_t kFiles = 2;   // header, payload
constexpr std::size_t kStates = 3;  // the owner's, its policies', the daemon's
// Bytes of state for each object, measured with 10^6 objects and the default policy. So many pages
// are allocated before puts wait; further ones as they are written.
constexpr std::uint64_t kOwnerBytes = 16;
constexpr std::uint64_t kPolicyBytes = 48;

}  // namespace

// ---- the running process

UpgradeHello Daemon::Impl::HelloOf(const pool::LocalHostOptions& options,
                                   const owner::OwnerOptions& owner) {
  UpgradeHello hello{.layout = segment::kLayoutVersion,
                     .role = options.cluster ? "owner" : "serve",
                     .memory_bytes = owner.memory_bytes,
                     .max_objects = owner.max_objects,
                     .data = options.data_directory,
                     .disks = owner::DiskOptions(owner.disks),
                     .master = {},
                     .listen = {},
                     .tenant = {}};
  if (options.cluster) {
    hello.master = options.cluster->master.ToString();
    hello.listen = options.cluster->listen.ToString();
    hello.tenant = options.cluster->tenant;
  }
  return hello;
}

void Daemon::Impl::SetGroup(std::vector<Impl*> group) {
  const MutexLock lock(group_mutex_);
  group_ = std::move(group);
}

Status Daemon::Impl::MayTakeOver(const Connection& connection, std::span<const std::byte> body,
                                 const std::vector<Impl*>& group) const {
  KVCOVE_ASSIGN(const std::vector<UpgradeHello> asking,
                DecodeHellos({reinterpret_cast<const char*>(body.data()), body.size()}));
  // The files let the process write all of the memory, which engines of other users must not.
  if (connection.peer.uid != geteuid()) {
    return Fail(Code::kDenied,
                fmt::format("it runs as user {}, not as user {}", geteuid(), connection.peer.uid));
  }
  // A take-over now would move this daemon alone, or others that do not serve yet.
  if (group.empty()) return Fail(Code::kInProgress, "it is still starting; try again");
  if (group.front() != this) {
    return Fail(Code::kInvalid, fmt::format("it is one of the {} owners of a process: take over "
                                            "all of them with --socket {} and the same --numa",
                                            group.size(), group.front()->options_.socket_path));
  }
  std::vector<UpgradeHello> running;
  for (const Impl* one : group) running.push_back(one->hello_);
  if (const std::string why = Mismatch(running, asking); !why.empty()) {
    return Fail(Code::kIncompatible, why);
  }
  return {};
}

void Daemon::Impl::HandOver(rpc::ConnectionId id, const Connection& connection,
                            std::span<const std::byte> body, const rpc::Responder& respond) {
  const auto fail = [&](const Error& error) { respond(rpc::ErrorReply(error, /*close=*/true)); };
  std::vector<Impl*> group;
  {
    const MutexLock lock(group_mutex_);
    group = group_;
  }
  if (const Status may = MayTakeOver(connection, body, group); !may) return fail(may.error());
  const std::vector<UpgradeGiver*> givers(group.begin(), group.end());
  if (upgrade_.Begin(*server_, id, connection.peer.pid, givers, respond)) connections_.erase(id);
}

Result<std::vector<UniqueFd>> Daemon::Impl::Files() {
  KVCOVE_ASSIGN(owner::Owner::Files copies, host_->owner().CopyFiles());
  std::vector<UniqueFd> files;
  files.push_back(std::move(copies.memory.header));
  files.push_back(std::move(copies.memory.payload));
  return files;
}

void Daemon::Impl::Prepare() {
  states_opened_ = OpenStates();
  // Populating holds the lock of the address space, for which each new thread waits to get a stack.
  host_->owner().memory().PausePopulating();
  host_->owner().disks().Drain();
}

// A call that continued would change the memory while another process has its state, or use a file
// that the other process has opened. The order matters: the loop is paused first, so that no new
// call reaches the workers; then EndWaits ends what running calls wait for, else AwaitQuiet would
// wait for a lease or the master.
Status Daemon::Impl::Quiet() {
  KVCOVE_TRY(host_->owner().MayPauseDisks());
  KVCOVE_TRY(host_->MayPause());
  server_->Pause(clock_.NowNs() + kPauseNs);
  const std::array workers = {workers_.get(), control_workers_.get(), removal_workers_.get(),
                              pattern_workers_.get()};
  for (rpc::Workers* const one : workers) one->Pause();
  host_->EndWaits();
  if (std::ranges::all_of(workers, [](auto* one) { return one->AwaitQuiet(kQuietNs); })) return {};
  return Fail(Code::kInProgress, "a call to the master is under way and does not end; try again");
}

// The lease is renewed before the link pauses, because nobody renews it until the successor does.
// The owner is frozen before the disks close, because its threads use them.
Status Daemon::Impl::Freeze() {
  KVCOVE_TRY(host_->AwaitFreshLease());
  host_->owner().Freeze();
  KVCOVE_TRY(host_->Pause());
  return host_->owner().PauseDisks();
}

Status Daemon::Impl::OpenStates() {
  states_.clear();
  const std::uint64_t objects = host_->owner().link_side().Report().objects;
  for (const std::uint64_t each : {kOwnerBytes, kPolicyBytes, std::uint64_t{0}}) {
    KVCOVE_ASSIGN(StateWriter writer, StateWriter::Open(objects * each));
    states_.push_back(std::move(writer));
  }
  return {};
}

Result<UpgradeState> Daemon::Impl::Save() {
  UpgradeState state;
  KVCOVE_TRY(states_opened_);
  std::vector<StateWriter> writers = std::move(states_);
  StateWriter& owner = writers[0];
  StateWriter& policies = writers[1];
  StateWriter& daemon = writers[2];
  KVCOVE_TRY(host_->owner().Save(owner, policies));
  CarryOne(daemon, *host_);
  host_->SaveLink(daemon);
  CarryOne(daemon, *this);
  if (const int lineage = host_->lineage_fd(); lineage >= 0) {
    state.lineage = UniqueFd(fcntl(lineage, F_DUPFD_CLOEXEC, 0));
  }
  if (host_->in_cluster()) state.tcp_listeners = rpc::CopyTcpListeners();
  for (StateWriter& writer : writers) {
    KVCOVE_ASSIGN(UniqueFd file, writer.Finish());
    state.states.push_back(std::move(file));
  }
  KVCOVE_ASSIGN(owner::Owner::Files files, host_->owner().CopyFiles());
  state.pages = std::move(files.memory.pages);
  state.disk_lock = std::move(files.disk_lock);
  state.server = server_->HandOver();
  return state;
}

std::int64_t Daemon::Impl::LeaseUntilNs() const {
  // The lease's thread continues outside a cluster, while all else is frozen.
  return host_->in_cluster() ? host_->LeaseUntilNs() : std::numeric_limits<std::int64_t>::max();
}

std::int64_t Daemon::Impl::StopLease() {
  if (!host_->in_cluster()) host_->owner().StopLease();
  return host_->LeaseUntilNs();
}

void Daemon::Impl::Thaw() {
  states_.clear();
  host_->owner().Thaw();
  host_->Resume();
  workers_->Resume();
  control_workers_->Resume();
  removal_workers_->Resume();
  pattern_workers_->Resume();
  server_->Resume();
  host_->owner().memory().StartPopulating();
}

// ---- the successor's process

Status Daemon::Impl::Adopt(StateReader& state, rpc::HandedServer handed) {
  CarryOne(state, *this);
  if (!state.ok()) return Fail(Code::kIncompatible, "the state of connections differs");
  for (auto& [number, session] : sessions_) session.service = host_->ServiceFor(number);
  // A connection that the predecessor could not hand over closes with that process. Its session
  // continues, and its client connects again; one that attended would be counted twice then.
  std::set<rpc::ConnectionId> taken;
  for (const rpc::HandedConnection& one : handed.connections) taken.insert(one.id);
  std::erase_if(connections_, [&](const auto& entry) {
    const bool lost = !taken.contains(entry.first);
    if (lost && entry.second.attends) --attendants_;
    return lost;
  });
  rpc::ServerOptions server;
  server.socket_path = options_.socket_path;
  server.unix_access = options_.unix_access;
  KVCOVE_ASSIGN(server_, rpc::Server::Adopt(server, *this, std::move(handed)));
  return {};
}

struct Daemon::Taking {
  const DaemonOptions* options = nullptr;
  pool::LocalHostOptions host_options;
  owner::OwnerOptions owner_options;
  std::unique_ptr<owner::Owner> owner;
  std::unique_ptr<Impl> impl;
  bool kept = false;  // whether the eviction policy's knowledge was kept
  // The state's files. They are closed only when all daemons serve: freeing their pages takes tens
  // of milliseconds, for which puts would wait.
  std::vector<UniqueFd> files;
  std::vector<StateReader> readers;
};

// Checks this process's own options before the running process is asked, so that a mistake stops
// nothing there.
Result<Daemon::Taking> Daemon::PrepareTaking(const DaemonOptions& options) {
  if (options.Shared()) {
    return Fail(Code::kInvalid,
                "--take-over: an owner that tenants share has no socket to be found at; restart "
                "it instead, or name its only tenant with --tenant");
  }
  Taking taking{.options = &options,
                .host_options = {},
                .owner_options = {},
                .owner = {},
                .impl = {},
                .files = {},
                .readers = {}};
  KVCOVE_ASSIGN(taking.host_options, HostOptionsOf(options));
  KVCOVE_ASSIGN(taking.owner_options,
                owner::Owner::Complete(pool::LocalHost::OwnerOptionsOf(taking.host_options)));
  KVCOVE_TRY(policy::MakePolicy(taking.owner_options.policy));
  return taking;
}

// Reads the state. Writes nothing to the memory: until "mine" the predecessor may continue with it.
Status Daemon::Load(Taking& taking, UpgradeState state, const Clock& clock) {
  taking.files = std::move(state.states);
  for (const UniqueFd& file : taking.files) {
    KVCOVE_ASSIGN(StateReader reader, StateReader::Open(file));
    taking.readers.push_back(std::move(reader));
  }
  StateReader& owner_state = taking.readers[0];
  StateReader& policies = taking.readers[1];
  StateReader& daemon = taking.readers[2];
  KVCOVE_ASSIGN(taking.kept,
                taking.owner->Restore(
                    owner_state, policies,
                    {.memory = {.header = {}, .payload = {}, .pages = std::move(state.pages)},
                     .disk_lock = std::move(state.disk_lock)}));
  KVCOVE_ASSIGN(auto host, pool::LocalHost::Adopt(taking.host_options, std::move(taking.owner),
                                                  daemon, std::move(state.lineage), clock));
  // Every daemon's state has those of the whole process.
  rpc::InheritTcpListeners(std::move(state.tcp_listeners));
  taking.impl =
      std::make_unique<Impl>(std::move(host), *taking.options, taking.host_options, clock);
  return taking.impl->Adopt(daemon, std::move(state.server));
}

Status Daemon::Take(UpgradeTaker& taker, std::vector<Taking>& all, const Clock& clock) {
  for (Taking& one : all) {
    KVCOVE_ASSIGN(std::vector<UniqueFd> files, taker.ReceiveFiles(kFiles));
    KVCOVE_ASSIGN(
        one.owner,
        owner::Owner::Map(
            one.owner_options,
            {.header = std::move(files[0]), .payload = std::move(files[1]), .pages = {}}, clock));
  }
  KVCOVE_TRY(taker.SayMapped());
  std::vector<UpgradeState> states;
  for (std::size_t i = 0; i < all.size(); ++i) {
    KVCOVE_ASSIGN(UpgradeState state, taker.ReceiveState(kStates));
    states.push_back(std::move(state));
  }
  if (all.size() > 1 && !all.front().host_options.cluster) {
    // The running process has closed its store before it sent the state (LocalHost::Pause), so its
    // lock is free.
    KVCOVE_ASSIGN(const auto control,
                  pool::HostControl::Open(all.front().host_options.ControlOptions(), clock));
    for (Taking& one : all) one.host_options.control = control;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    KVCOVE_TRY(Load(all[i], std::move(states[i]), clock));
  }
  return taker.AwaitGo();
}

Result<std::vector<std::unique_ptr<Daemon>>> Daemon::TakeOver(
    const std::vector<DaemonOptions>& options, const Clock& clock) {
  std::vector<Taking> all;
  std::vector<UpgradeHello> hellos;
  for (const DaemonOptions& one : options) {
    KVCOVE_ASSIGN(Taking taking, PrepareTaking(one));
    hellos.push_back(Impl::HelloOf(taking.host_options, taking.owner_options));
    all.push_back(std::move(taking));
  }
  KVCOVE_ASSIGN(UpgradeTaker taker, UpgradeTaker::Begin(options.front().socket_path, hellos, clock,
                                                        options.front().on_stage));
  if (const Status taken = Take(taker, all, clock); !taken) {
    taker.SayFailed(taken.error());
    const bool ended = taken.error().detail.ends_with(rpc::kOtherEnded);
    return Fail(taken.error().code,
                fmt::format("--take-over: {}{}", taken.error().detail,
                            ended ? "" : fmt::format("; process {} goes on", taker.giver_pid())));
  }
  // From "go" on nobody renews the lease, so it is claimed before anything else, and only then is
  // the predecessor told to end. Nothing is served before it has read that: it could still kill
  // this process and continue, and an answer that was given by then would be taken back.
  for (const Taking& one : all) one.impl->host().ClaimLease();
  taker.SayMine();
  std::vector<std::unique_ptr<Daemon>> daemons;
  for (Taking& one : all) {
    KVCOVE_TRY(one.impl->host().StartAdopted());
    daemons.push_back(std::unique_ptr<Daemon>(new Daemon(std::move(one.impl))));
  }
  // Owners start before any daemon serves: a removal asks all owners of the process.
  for (const auto& daemon : daemons) KVCOVE_TRY(daemon->impl_->Serve());
  Group(daemons);
  for (const auto& daemon : daemons) daemon->host().owner().memory().StartPopulating();
  // Several owners share one authority, so one call repeats the registrations of all.
  daemons.front()->host().RepeatEngines();
  for (std::size_t i = 0; i < all.size(); ++i) {
    LogInfo("took over from process {}: {} objects{}", taker.giver_pid(),
            daemons[i]->host().owner().link_side().Report().objects,
            all[i].kept ? "" : "; the eviction policy is another one and learns anew");
  }
  return daemons;
}

}  // namespace kvcove::server
