// SPDX-License-Identifier: Apache-2.0
// A master's part of an upgrade (docs/upgrade.md): it stands still, and its successor goes on in
// the same term, over the same connections and the same data directory.
#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/master/server/server.h"
#include "kvcove/master/server/server_impl.h"

namespace kvcove::master {
namespace {

// For resets and removals that wait for owners. Renewals go on meanwhile.
constexpr std::int64_t kSettleNs = 400 * kMillisecond;
constexpr auto kSettleLook = std::chrono::microseconds(500);
// For the rest, which waits for nobody.
constexpr std::int64_t kDrainNs = 100 * kMillisecond;
constexpr std::int64_t kRestNs = 100 * kMillisecond;
// An owner gives a renewal up after 500 ms, and its connection with it.
constexpr std::int64_t kStillNs = 650 * kMillisecond;

std::unexpected<Error> StillBusy() {
  return Fail(Code::kInProgress,
              "a reset, a removal or a registration waits for an owner or for the disk; try again");
}

}  // namespace

// A call of these kinds that was lost with its connection would be an error to its caller, or be
// repeated. So none is begun any more, and those under way are waited for.
bool MasterServer::Impl::IsSlow(wire::Method method) {
  switch (method) {
    case wire::Method::kReset:
    case wire::Method::kRemoveEverywhere:
    case wire::Method::kRegister:
    case wire::Method::kOwnerHello:
      return true;
    default:
      return false;
  }
}

// Counted first: Quiet holds calls back first, and then looks at how many there are.
Status MasterServer::Impl::BeginCall() {
  ++slow_calls_;
  if (!held_) return {};
  --slow_calls_;
  return BeingTakenOver();
}

// ---- the running process

Result<UniqueFd> MasterServer::Impl::SaveAhead() {
  KVCOVE_ASSIGN(StateWriter ar, StateWriter::Open());
  master_->directory().SaveAhead(ar);
  return ar.Finish();
}

UniqueFd MasterServer::Impl::CopyLock() const {
  return UniqueFd(disk_ == nullptr ? -1 : fcntl(disk_->lock().get(), F_DUPFD_CLOEXEC, 0));
}

Status MasterServer::Impl::Quiet() {
  held_ = true;
  const std::int64_t until_ns = clock_.NowNs() + kSettleNs;
  while (slow_calls_ > 0 && clock_.NowNs() < until_ns) std::this_thread::sleep_for(kSettleLook);
  master_->BeginPause();
  still_since_ns_ = clock_.NowNs();
  server_->Pause(still_since_ns_ + kDrainNs);
  workers_->Pause();
  StopTick();
  return slow_calls_ == 0 && workers_->AwaitQuiet(kDrainNs) ? Status() : Status(StillBusy());
}

Status MasterServer::Impl::Freeze() {
  if (file_ != nullptr) KVCOVE_TRY(file_->Rest(clock_.NowNs() + kRestNs));
  return master_->Idle() ? Status() : Status(StillBusy());
}

std::int64_t MasterServer::Impl::LeaseUntilNs() const {
  const std::optional<std::int64_t> lease_ns = master_->control().FirstLeaseEndNs();
  if (!lease_ns) return std::numeric_limits<std::int64_t>::max();
  return std::min(*lease_ns, still_since_ns_ + kStillNs);
}

template <typename Ar>
void MasterServer::Impl::CarryCounters(Ar& ar) {
  CarryAtomic(ar, resets_);
  CarryAtomic(ar, resets_not_proven_);
  CarryAtomic(ar, fallbacks_);
  for (auto& misses : misses_) CarryAtomic(ar, misses);
  for (http::Histogram& times : times_) CarryOne(ar, times);
}

void MasterServer::Impl::Save(StateWriter& ar) {
  std::string host = server_->address().host;
  std::uint16_t port = server_->address().port;
  CarryAll(ar, host, port, still_since_ns_);
  master_->Save(ar);
  CarryCounters(ar);
  const MutexLock lock(connections_mutex_);
  CarryOne(ar, connections_);
}

void MasterServer::Impl::Thaw() {
  StartAgain([this] { return file_ != nullptr ? file_->Start() : Status(); });
  StartAgain([this] { return StartTick(); });
  master_->EndPause();
  held_ = false;
  workers_->Resume();
  server_->Resume();
}

// ---- the successor's process

Result<MasterServer::Ahead> MasterServer::LoadAhead(const MasterServerOptions& options,
                                                    const UniqueFd& saved, UniqueFd lock) {
  Ahead ahead;
  KVCOVE_ASSIGN(ahead.disk, PosixFileSystem::Adopt(options.data_directory, std::move(lock)));
  KVCOVE_ASSIGN(StateReader ar, StateReader::Open(saved));
  ahead.directory = DirectoryService::LoadAhead(ar);
  if (!ar.ok()) return Fail(Code::kIncompatible, "the state of the directory differs");
  return ahead;
}

Status MasterServer::Impl::Adopt(Ahead ahead, StateReader& state, rpc::HandedServer handed) {
  KVCOVE_ASSIGN(access_, rpc::ServerAccess(options_.credentials, {}, options_.tls));
  rpc::ServerOptions server = ServerOptionsOf();
  CarryAll(state, server.listen.host, server.listen.port, still_since_ns_);
  const Master::Carried carried = Master::PlanOf(state);
  if (!state.ok()) return Fail(Code::kIncompatible, "the state differs");
  Opened opened;
  KVCOVE_TRY(OpenStore(std::move(ahead.disk), opened));
  // All that the running master has acknowledged is in both, or this is not its store.
  if (opened.revision != carried.revision) {
    return Fail(Code::kIncompatible,
                fmt::format("its state is at revision {}, the store in '{}' at {}",
                            carried.revision, options_.data_directory, opened.revision));
  }
  master_ =
      std::make_unique<Master>(options_.master, carried.plan, *store_, carried.revision, clock_);
  master_->Load(state, std::move(ahead.directory));
  CarryCounters(state);
  LoadConnections(state, handed);
  if (!state.ok()) return Fail(Code::kIncompatible, "the state differs");
  KVCOVE_ASSIGN(server_, rpc::Server::Adopt(server, *this, std::move(handed)));
  return {};
}

void MasterServer::Impl::LoadConnections(StateReader& state, rpc::HandedServer& handed) {
  std::set<rpc::ConnectionId> come;
  for (const rpc::HandedConnection& one : handed.connections) come.insert(one.id);
  {
    const MutexLock lock(connections_mutex_);
    CarryOne(state, connections_);
    if (!connections_.empty()) handed.last = connections_.rbegin()->first;
    std::erase_if(connections_, [&](const auto& entry) { return !come.contains(entry.first); });
  }
  master_->control().KeepConnections(come);
}

Status MasterServer::Impl::StartAdopted() {
  if (disk_ != nullptr) disk_->BeginToWrite();
  if (file_ != nullptr) KVCOVE_TRY(file_->Start());
  KVCOVE_TRY(Serve());
  const MasterStat stat = Stat();
  LogInfo("{} objects of {} owners and {} connections go on here; calls have waited for {} ms",
          stat.directory_entries, stat.owners.size(), stat.connections,
          (clock_.NowNs() - still_since_ns_) / kMillisecond);
  return {};
}

// ---- MasterServer

Result<UniqueFd> MasterServer::SaveAhead() { return impl_->SaveAhead(); }
UniqueFd MasterServer::CopyLock() const { return impl_->CopyLock(); }
Status MasterServer::Quiet() { return impl_->Quiet(); }
Status MasterServer::Freeze() { return impl_->Freeze(); }
std::int64_t MasterServer::LeaseUntilNs() const { return impl_->LeaseUntilNs(); }
void MasterServer::Save(StateWriter& ar) { impl_->Save(ar); }
rpc::HandedServer MasterServer::HandOver() { return impl_->HandOver(); }
void MasterServer::Thaw() { impl_->Thaw(); }
Status MasterServer::StartAdopted() { return impl_->StartAdopted(); }

Result<std::unique_ptr<MasterServer>> MasterServer::Adopt(const MasterServerOptions& options,
                                                          Ahead ahead, StateReader& state,
                                                          rpc::HandedServer handed,
                                                          const Clock& clock) {
  auto impl = std::make_unique<Impl>(options, clock);
  KVCOVE_TRY(impl->Adopt(std::move(ahead), state, std::move(handed)));
  return std::unique_ptr<MasterServer>(new MasterServer(std::move(impl)));
}

}  // namespace kvcove::master
