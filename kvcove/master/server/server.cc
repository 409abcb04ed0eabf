// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/server.h"

#include "kvcove/base/log.h"
#include "kvcove/base/loop_beat.h"
#include "kvcove/base/posix.h"
#include "kvcove/master/server/server_impl.h"
#include "kvcove/master/store/memory_store.h"

namespace kvcove::master {
namespace {

constexpr std::size_t kWorkers = 2;
constexpr std::int64_t kTickNs = 5 * kMillisecond;

}  // namespace

Status MasterServer::Impl::OpenStore(std::unique_ptr<PosixFileSystem> disk, Opened& opened) {
  if (options_.leadership != nullptr) {
    KVCOVE_ASSIGN(std::unique_ptr<EtcdStore> store,
                  EtcdStore::Open(options_.leadership, {}, clock_, opened));
    etcd_ = store.get();
    store_ = std::move(store);
    return {};
  }
  if (disk == nullptr) {
    store_ = std::make_unique<MemoryStore>();
    return {};
  }
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
  // Before Start: shards get no lease that outlives this master's leadership.
  if (options_.leadership != nullptr) {
    master_->SetLeads([leadership = options_.leadership] { return leadership->LeftNs(); });
  }
  // The answers of the store's thread are calls of master_, so the thread starts after it is made.
  if (file_ != nullptr) KVCOVE_TRY(file_->Start());
  KVCOVE_TRY(Wait<void>([&](Reply<void> ready) { master_->Start(std::move(ready)); }));
  // Only now: the facts of the old files are durable in the new format.
  if (file_ != nullptr && opened.from_v1) file_->RetireV1();
  return {};
}

Status MasterServer::Impl::Open() {
  KVCOVE_ASSIGN(access_, rpc::ServerAccess(options_.credentials, {}, options_.tls));
  std::unique_ptr<PosixFileSystem> disk;
  if (!options_.data_directory.empty()) {
    KVCOVE_ASSIGN(disk, PosixFileSystem::Open(options_.data_directory));
  }
  Opened opened;
  KVCOVE_TRY(OpenStore(std::move(disk), opened));
  KVCOVE_TRY(StartMaster(opened));
  KVCOVE_ASSIGN(server_, rpc::Server::Open(ServerOptionsOf(), *this));
  return Serve();
}

rpc::ServerOptions MasterServer::Impl::ServerOptionsOf() const {
  rpc::ServerOptions server;
  server.listen = options_.listen;
  server.loops = 2;
  // 1,000 owners have 4 connections each, and 8,000 requesters 1 or more.
  server.max_connections = 32768;
  server.name = "the master";
  server.tls = options_.tls;
  server.thread_name = "kvcove-master";
  server.admission = admission_;
  return server;
}

Status MasterServer::Impl::Serve() {
  serves_ = true;
  shard_calls_ = std::make_unique<ShardCalls>(*master_, access_, clock_);
  admission_->SetConnections(server_->connections().max());
  workers_ = std::make_unique<rpc::Workers>(kWorkers);
  locators_ = std::make_unique<rpc::Workers>(kWorkers);
  // The ticks first: if a later start fails, Stop waits for the master's end, and only ticks end
  // that wait when the store hangs. The loops last: their calls use all of the above.
  KVCOVE_ASSIGN(tick_, StartThread("kvcove-tick", [this] { Tick(); }));
  KVCOVE_TRY(shard_calls_->Start());
  KVCOVE_TRY(workers_->Start());
  KVCOVE_TRY(locators_->Start());
  return server_->Start();
}

void MasterServer::Impl::StopTick() {
  {
    const MutexLock lock(tick_mutex_);
    stopping_ = true;
    tick_changed_.NotifyAll();
  }
  if (tick_.joinable()) tick_.join();
}

// Ends the sources of calls first (loops, then the workers with the calls that loops have queued),
// then the master, and the ticks after it.
void MasterServer::Impl::Stop() {
  if (server_ != nullptr) server_->Stop();
  workers_.reset();
  locators_.reset();
  if (serves_) {
    const bool running = master_->control().LeaseRunning();
    const Status closed = Wait<void>([&](Reply<void> done) { master_->Stop(std::move(done)); });
    if (running) {
      LogInfo("leases are still running: the next start will wait for them");
    } else if (!closed) {
      LogWarn("the clean end could not be stored: {}", closed.error().ToString());
    }
  }
  // Ticks continue until here: they bound the time by which a disk that hangs delays the end.
  StopTick();
  // After the ticks, which post work to it. Its worker uses the master.
  shard_calls_.reset();
  // The store's thread calls the master with its answers, so the store ends first.
  store_.reset();
  master_.reset();
}

void MasterServer::Impl::Tick() {
  LoopBeat beat("kvcove-tick");
  const MutexLock lock(tick_mutex_);
  while (!stopping_) {
    beat.Turn();
    // No part is called under the lock: Tick runs replies, which may take any other lock.
    tick_mutex_.unlock();
    master_->Tick();
    shard_calls_->Tick();
    tick_mutex_.lock();
    if (!stopping_) tick_changed_.WaitFor(tick_mutex_, std::chrono::nanoseconds(kTickNs));
  }
}

MasterServer::MasterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MasterServer::~MasterServer() = default;
const rpc::Address& MasterServer::address() const { return impl_->address(); }
void MasterServer::SetAdmin(std::string address) { impl_->SetAdmin(std::move(address)); }
MasterStat MasterServer::Stat() const { return impl_->Stat(); }
MasterCounts MasterServer::Counts() const { return impl_->Counts(); }
bool MasterServer::Leads() const { return impl_->Leads(); }
Master& MasterServer::master() { return impl_->master(); }
ShardCalls::Found MasterServer::Find(std::span<const ShardCalls::Key> keys,
                                     std::int64_t deadline_ns) {
  return impl_->shard_calls().Find(keys, deadline_ns);
}
void MasterServer::CountPrefix(SlotId slot, std::span<const Id128> hashes, std::int64_t deadline_ns,
                               PrefixCount& count) {
  impl_->shard_calls().CountPrefix(slot, hashes, deadline_ns, count);
}
rpc::Access MasterServer::AccessTo(const std::string& address) const {
  return impl_->AccessTo(address);
}
std::vector<wire::OwnerStat> MasterServer::Owners() const {
  return impl_->master().control().Owners();
}
std::vector<SlotDescription> MasterServer::Namespaces() const {
  return impl_->master().generations().Describe();
}
void MasterServer::Collect(Metrics& metrics) const { impl_->Collect(metrics); }

Result<wire::ResetOutcome> MasterServer::Reset(const wire::ResetRequest& request,
                                               std::int64_t deadline_ns) {
  auto outcome = impl_->Wait<ResetOutcome>([&](Reply<ResetOutcome> reply) {
    impl_->master().generations().Reset(request, deadline_ns, std::move(reply));
  });
  // After the wait: if another master leads by then, it may have decided more.
  outcome = impl_->IfLeading(std::move(outcome));
  impl_->CountReset(outcome.has_value());
  return outcome;
}

Result<wire::PruneOutcome> MasterServer::Prune(const wire::PruneRequest& request,
                                               std::int64_t deadline_ns) {
  auto outcome = impl_->Wait<PruneOutcome>([&](Reply<PruneOutcome> reply) {
    impl_->master().generations().Prune(request, deadline_ns, std::move(reply));
  });
  outcome = impl_->IfLeading(std::move(outcome));  // as Reset
  impl_->CountPrune(outcome.has_value());
  return outcome;
}

Result<std::uint64_t> MasterServer::RemovePattern(const Token& token, std::string_view pattern,
                                                  std::int64_t deadline_ns) {
  auto removed = impl_->Wait<Master::Removed>([&](Reply<Master::Removed> reply) {
    impl_->master().Remove(token, {}, pattern, deadline_ns, std::move(reply));
  });
  removed = impl_->IfLeading(std::move(removed));
  if (!removed) return std::unexpected(removed.error());
  return removed->matches;
}

Result<std::unique_ptr<MasterServer>> MasterServer::Open(const MasterServerOptions& options,
                                                         const Clock& clock) {
  auto impl = std::make_unique<Impl>(options, clock);
  KVCOVE_TRY(impl->Open());
  return std::unique_ptr<MasterServer>(new MasterServer(std::move(impl)));
}

}  // namespace kvcove::master
