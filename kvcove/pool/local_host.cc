// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/local_host.h"

#include <unistd.h>

#include <optional>

#include "kvcove/base/interrupt.h"
#include "kvcove/base/log.h"
#include "kvcove/requester/cluster/cluster_host.h"
#include "kvcove/wire/master_stub.h"

namespace kvcove::pool {
namespace {

constexpr std::int64_t kTellNs = 500 * kMillisecond;
constexpr std::int64_t kRepeatNs = 5 * kSecond;

// Returns the directory for the identity of an owner with disks in a cluster: where no directory is
// given, beside the first disk.
std::string DataDirectoryOf(const LocalHostOptions& options) {
  if (!options.data_directory.empty()) return options.data_directory;
  return disklog::DiskFileOf(options.owner.disks.front().path) + ".data";
}

}  // namespace

class LocalHost::Service final : public wire::HostService {
 public:
  Service(LocalHost& host, wire::SessionNumber number) : host_(host), number_(number) {}

  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override {
    const HostEngines::Engine engine = {request.name, request.engine};
    KVCOVE_TRY(host_.engines().Add(engine, host_.KeyOf(number_), deadline_ns));
    auto registration = host_.control().Register(request, deadline_ns);
    if (registration) host_.engines().held().Registered(request, *registration);
    host_.engines().Check(engine);
    return registration;
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override {
    const HostEngines::Engine engine = {request.name, request.engine};
    if (!request.engine.empty()) {
      KVCOVE_TRY(host_.engines().Add(engine, host_.KeyOf(number_), deadline_ns));
    }
    const std::int64_t began_ns = SystemClock::Instance().NowNs();
    auto outcome = host_.control().Reset(request, deadline_ns);
    host_.reset_time_.Add(SystemClock::Instance().NowNs() - began_ns);
    if (!request.engine.empty()) host_.engines().Check(engine);
    return outcome;
  }
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override {
    host_.engines().held().Named(name, engine, {versions.begin(), versions.end()});
    return host_.control().NameVersions(name, engine, versions, deadline_ns);
  }
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t /*deadline_ns*/) override {
    host_.engines().Drop({std::string(name), std::string(engine)}, host_.KeyOf(number_));
    return {};
  }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request,
                                   std::int64_t deadline_ns) override {
    return host_.control().Prune(request, deadline_ns);
  }
  Result<std::vector<wire::PutResult>> Put(const Token& token, std::span<const wire::PutItem> items,
                                           std::int64_t deadline_ns) override {
    return host_.owner().Put(number_, token, items, deadline_ns);
  }
  Result<std::vector<Code>> Finish(std::span<const wire::FinishItem> items,
                                   std::int64_t deadline_ns) override {
    return host_.owner().Finish(number_, items, deadline_ns);
  }
  Result<std::vector<Code>> NoteSaves(const Token& token, std::span<const Id128> hashes,
                                      SaveNotice notice, std::int64_t /*deadline_ns*/) override {
    return host_.owner().NoteSaves(number_, token, hashes, notice);
  }
  void PutThen(const Token& token, std::span<const wire::PutItem> items, std::int64_t deadline_ns,
               const PutDone& done) override {
    host_.owner().PutThen(number_, token, items, deadline_ns, done);
  }
  void FinishThen(std::span<const wire::FinishItem> items, std::int64_t deadline_ns,
                  const FinishDone& done) override {
    host_.owner().FinishThen(number_, items, deadline_ns, done);
  }
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override {
    return host_.control().Remove(token, keys, deadline_ns);
  }
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override {
    return host_.control().RemoveMatching(token, pattern, deadline_ns);
  }
  void RemoveThen(const Token& token, std::span<const std::string_view> keys,
                  std::int64_t deadline_ns, const RemoveDone& done) override {
    host_.control().RemoveThen(token, keys, deadline_ns, done);
  }
  void RemoveMatchingThen(const Token& token, std::string_view pattern, std::int64_t deadline_ns,
                          const MatchDone& done) override {
    host_.control().RemoveMatchingThen(token, pattern, deadline_ns, done);
  }
  Result<std::vector<Code>> Pin(const Token& token, std::span<const std::string_view> keys,
                                std::optional<wire::PinKind> kind, std::int64_t duration_ns,
                                std::int64_t deadline_ns) override {
    return host_.owner().Pin(token, keys, {.kind = kind, .duration_ns = duration_ns}, deadline_ns);
  }
  Result<std::vector<std::optional<wire::ObjectStat>>> StatObjects(
      const Token& token, std::span<const std::string_view> keys,
      std::int64_t deadline_ns) override {
    return host_.owner().StatObjects(token, keys, deadline_ns);
  }
  Result<wire::InventoryReply> Page(const wire::InventoryRequest& request,
                                    std::int64_t deadline_ns) override {
    return host_.owner().Page(request, deadline_ns);
  }
  Result<wire::PoolStat> Stat(std::int64_t /*deadline_ns*/) override {
    return host_.owner().Stat();
  }
  void Load(const wire::LoadRequest& request, std::int64_t /*deadline_ns*/,
            const Loaded& done) override {
    host_.owner().promotions().Read(number_, request, done);
  }

 private:
  LocalHost& host_;
  const wire::SessionNumber number_;
};

Status LocalHost::ConnectToMaster(owner::LinkOptions& link) {
  const ClusterMember& member = *options_.cluster;
  rpc::Access tenant_access{.credentials = {}, .tls = member.tls};
  KVCOVE_ASSIGN(access_, rpc::ServerAccess(member.credentials, member.tenant, member.tls));
  if (member.credentials != nullptr && !member.tenant.empty()) {
    KVCOVE_TRY(member.credentials->OfTenant(member.tenant));
    tenant_access = rpc::TenantAccess(member.credentials, member.tenant, member.tls);
  }
  // Calls of this host's own processes carry their tenant's credential: with the owner's they could
  // touch the slots of other tenants.
  master_link_ = std::make_unique<rpc::Link>(member.master, tenant_access,
                                             rpc::LinkOptions{.peer = "the master"}, *clock_);
  master_ = std::make_unique<wire::MasterStub>(master_link_->channel(rpc::kPatient), process_);
  control_ = master_.get();
  authority_ = "master:" + member.master.ToString();
  link.master = member.master;
  link.access = access_;
  link.lease_renewal_ns = owner_->options().lease_renewal_ns;
  link.identity.process = process_;
  link.identity.socket = options_.socket_path;
  link.identity.host = member.host.empty() ? requester::HostIdentity() : member.host;
  link.identity.tenant = member.tenant;
  // The link's lease thread must not wait, so a worker repeats the registrations. `repeating_`
  // keeps the lease thread from queueing a second repeat while one is queued or runs.
  repeats_ = std::make_unique<rpc::Workers>(1);
  KVCOVE_TRY(repeats_->Start());
  link.on_heard = [this](std::uint64_t term) {
    if (repeating_.load() || !engines_->held().Forgotten(term, SystemClock::Instance().NowNs()))
      return;
    repeating_.store(true);
    (void)repeats_->Post([this] {
      (void)engines_->held().Repeat(*control_, SystemClock::Instance().NowNs() + kRepeatNs);
      repeating_.store(false);
    });
  };
  return {};
}

Status LocalHost::OpenData() {
  ClusterMember& member = *options_.cluster;
  KVCOVE_ASSIGN(auto server, owner::DataServer::Open(*owner_,
                                                     {.listen = member.listen,
                                                      .checksum = member.checksum,
                                                      .tenant = member.tenant,
                                                      .credentials = member.credentials,
                                                      .tls = member.tls,
                                                      .access = access_,
                                                      .transport = member.transport,
                                                      .limits = member.limits},
                                                     *clock_));
  // Kept for Resume and for a successor, which must listen on the port that others know.
  member.listen.port = server->address().port;
  {
    const MutexLock lock(data_mutex_);
    data_server_ = std::move(server);
  }
  if (advertised_.address.port == 0) advertised_.address.port = member.listen.port;
  return {};
}

Status LocalHost::JoinCluster(const LocalHostOptions& options, const Clock& clock) {
  owner::LinkOptions link;
  // Disks first: a mistake in a disk's path shows before the master knows this owner. Then the data
  // server, before the link: other hosts connect as soon as the master lists this owner.
  link.identity.owner = RandomId();
  if (!options.owner.disks.empty()) {
    KVCOVE_ASSIGN(link.identity.before, owner_->PrepareDisks(DataDirectoryOf(options)));
    link.identity.owner = link.identity.before->identity;
    link.identity.disk = true;
  }
  KVCOVE_TRY(ConnectToMaster(link));
  KVCOVE_TRY(OpenData());
  KVCOVE_TRY(owner_->Start());
  link.identity.address = advertised_.address.ToString();
  if (!options.lineage.empty()) {
    auto lineage = owner::Lineage::Open(options.lineage, link.identity.owner);
    if (lineage) {
      lineage_ = std::move(*lineage);
      link.lineage = lineage_.get();
    } else {
      LogWarn(
          "should this owner be killed, its identity ends by the master's --member-ttl only: {}",
          lineage.error().ToString());
    }
  }
  link_ = std::make_unique<owner::Link>(owner_->link_side(), owner_->outbox(), link, clock);
  KVCOVE_TRY(link_->Start());
  // Waits for the first lease, without which all reads are misses; it mostly comes in milliseconds.
  // An owner whose master is still away starts all the same.
  const std::int64_t until_ns = clock.NowNs() + kSecond / 2;
  while (owner_->memory().LeaseUntilNs() <= clock.NowNs() && LeftNs(until_ns, clock) > 0) {
    SleepNs(2 * kMillisecond);
  }
  return {};
}

std::unique_ptr<owner::DataServer> LocalHost::TakeData() {
  const MutexLock lock(data_mutex_);
  return std::move(data_server_);
}

std::string LocalHost::address() const {
  const MutexLock lock(data_mutex_);
  return data_server_ == nullptr ? std::string() : data_server_->address().ToString();
}

rpc::CallLimits::Stat LocalHost::Load() const {
  const MutexLock lock(data_mutex_);
  return data_server_ == nullptr ? rpc::CallLimits::Stat() : data_server_->Load();
}

namespace {

constexpr auto kTimedLocalCalls = std::to_array<std::pair<wire::Method, const char*>>({
    {wire::Method::kPut, "put"},
    {wire::Method::kFinish, "finish"},
    {wire::Method::kLoad, "load"},
    {wire::Method::kRemove, "remove"},
    {wire::Method::kPin, "pin"},
    {wire::Method::kRegister, "register"},
});

}  // namespace

Histogram* LocalHost::CallTime(wire::Method method) {
  static_assert(kTimedLocalCalls.size() == std::tuple_size_v<decltype(call_times_)>);
  for (std::size_t i = 0; i < kTimedLocalCalls.size(); ++i) {
    if (kTimedLocalCalls[i].first == method) return &call_times_[i];
  }
  return nullptr;
}

void LocalHost::Collect(Metrics& metrics, const Labels& labels) const {
  metrics.Histogram("kvcove_owner_reset_seconds",
                    "seconds that a reset of this host's processes took, proven or not",
                    reset_time_, labels);
  for (std::size_t i = 0; !options_.socket_path.empty() && i < call_times_.size(); ++i) {
    Labels with_call = labels;
    with_call["call"] = kTimedLocalCalls[i].second;
    metrics.Histogram("kvcove_owner_local_call_seconds",
                      "seconds from the arrival of a call of this host's processes to its answer",
                      call_times_[i], with_call);
  }
  for (const auto& collect : more_metrics_) collect(metrics, labels);
  const MutexLock lock(data_mutex_);
  if (data_server_ != nullptr) data_server_->Collect(metrics);
}

owner::OwnerOptions LocalHost::OwnerOptionsOf(const LocalHostOptions& options) {
  owner::OwnerOptions owner_options = options.owner;
  owner_options.cluster = options.cluster.has_value();
  if (options.cluster && options.cluster->credentials != nullptr) {
    owner_options.tenants = options.cluster->tenant.empty();
    std::uint64_t disk_bytes = 0;
    for (const disklog::DiskSpec& disk : owner_options.disks) disk_bytes += disk.size_bytes;
    for (const auto& [name, tenant] : options.cluster->credentials->All()) {
      owner::Quota quota;
      const std::uint64_t memory = owner_options.memory_bytes;
      if (tenant.maximum) quota.maximum_bytes = tenant.maximum->Of(memory);
      if (tenant.guaranteed) quota.guaranteed_bytes = tenant.guaranteed->Of(memory);
      owner_options.quotas[QualifiedName(name, "")] = quota;
      // A share (such as 25%) holds for memory and for disks; a number of bytes for memory only.
      owner::DiskQuota on_disk;
      if (tenant.maximum && tenant.maximum->fraction > 0) {
        on_disk.maximum_bytes = tenant.maximum->Of(disk_bytes);
      }
      if (tenant.guaranteed && tenant.guaranteed->fraction > 0) {
        on_disk.guaranteed_bytes = tenant.guaranteed->Of(disk_bytes / 4 * 3);
      }
      if (!(on_disk == owner::DiskQuota())) {
        owner_options.disk_quotas.try_emplace(QualifiedName(name, ""), on_disk);
      }
    }
  }
  return owner_options;
}

Result<std::unique_ptr<LocalHost>> LocalHost::Open(const LocalHostOptions& options,
                                                   const Clock& clock) {
  std::unique_ptr<LocalHost> host(new LocalHost);
  host->options_ = options;
  host->clock_ = &clock;
  if (options.cluster) {
    // Before the memory is allocated, which may take long: a mistake shows at once.
    KVCOVE_ASSIGN(host->advertised_, net::ChooseAdvertised({.advertise = options.cluster->advertise,
                                                            .listen = options.cluster->listen,
                                                            .master = options.cluster->master}));
  }
  // Threads that start here remain on the owner's node, and pages that they touch first are there.
  const OnNode on_node(options.owner.place);
  KVCOVE_ASSIGN(host->owner_, owner::Owner::Open(OwnerOptionsOf(options), clock));
  KVCOVE_TRY(host->OpenEngines());
  host->started_ = true;
  if (options.cluster) {
    KVCOVE_TRY(host->JoinCluster(options, clock));
    return host;
  }
  host->index_ = host->alone_->AddOwner(host->owner_);
  KVCOVE_TRY(host->OpenDisks());
  KVCOVE_TRY(host->owner_->Start());
  return host;
}

// Call it after HostControl::AddOwner, which publishes all current generations: a value on a disk
// is valid only under one of them.
Status LocalHost::OpenDisks() {
  if (options_.data_directory.empty()) {
    if (options_.owner.disks.empty()) return {};
    return Fail(Code::kInvalid,
                "a disk needs a directory in which the pool's generations outlive the process");
  }
  // Only by the first owner, which opens first: no owner serves before all are open (Daemon::Make).
  if (options_.number == 0) {
    KVCOVE_TRY(owner::KnownDisks::ForgetOwners(options_.data_directory, options_.of_owners));
  }
  return owner_->OpenDisks(DiskPlace());
}

// The note has no lock of the directory, unlike that of a cluster's owner: a call of HostControl
// may keep the owner, and so the note, beyond the end of the pool, which could not be opened again
// meanwhile. So a thread that was left behind in a write of the note may end that write late, over
// the note of the next process. A disk that was opened since then has another opening than that
// write names, so the disk starts empty (docs/ssd.md, Copies).
owner::TierPlace LocalHost::DiskPlace() const {
  const master::PoolFact pool = alone_->pool();
  return {.pool = pool.pool,
          .incarnation = pool.incarnation,
          .known = std::make_shared<owner::KnownDisks>(options_.data_directory, options_.number)};
}

Status LocalHost::OpenEngines() {
  if (options_.cluster) {
    own_engines_ = std::make_unique<HostEngines>(
        [this](std::span<const HostEngines::Engine> engines) { return TellEnds(engines); });
    engines_ = own_engines_.get();
    return own_engines_->Resume();
  }
  alone_ = options_.control;
  if (alone_ == nullptr) {
    KVCOVE_ASSIGN(alone_, HostControl::Open(options_.ControlOptions(), *clock_));
  }
  control_ = alone_.get();
  engines_ = &alone_->engines();
  authority_ = alone_->name();
  return {};
}

LocalHost::~LocalHost() {
  // Reports the ends of this host's engines. Not destroyed yet, because the link's lease thread
  // still uses it (on_heard).
  if (own_engines_ != nullptr) own_engines_->Pause();
  // An adopted owner that never started must not end the lease: the other process continues.
  if (owner_ == nullptr || !started_) return;
  if (link_ != nullptr) link_->Stop();  // from here on no put is listed any more
  owner_->disks().set().EndLoads();
  TakeData().reset();
  ending_.reset();
  owner_->Stop();  // ends the lease
  if (alone_ != nullptr) alone_->RemoveOwner(*owner_);
}

Result<owner::Memory::Grant> LocalHost::AddSession(std::int32_t pid) {
  KVCOVE_ASSIGN(owner::Memory::Grant grant, owner_->memory().AddSession(pid));
  engines_->AddSession(KeyOf(grant.number));
  return grant;
}

// A daemon whose take-over fails ends its sessions, too. The other process continues with them:
// their pages say what their processes are reading now, and their ends would clear that.
void LocalHost::EndSession(wire::SessionNumber number) {
  if (!started_) return;
  owner_->memory().EndSession(number);
  owner_->EndSaves(number);
  engines_->EndSession(KeyOf(number));
}

void LocalHost::EndRemovals() {
  if (alone_ != nullptr) alone_->EndRemovals();
}

std::size_t LocalHost::TellEnds(std::span<const HostEngines::Engine> engines) {
  // Over a new connection, whose hello shows that the master answers now. On an old connection the
  // call could wait in the socket of a frozen master, which would take it when it thaws, and end an
  // engine that has registered again meanwhile.
  rpc::TcpChannel channel(master_link_->address(), master_link_->access());
  wire::MasterStub stub(channel, process_);
  std::size_t told = 0;
  for (const auto& [name, engine] : engines) {
    const Status ended = stub.EndEngine(name, engine, SystemClock::Instance().NowNs() + kTellNs);
    // No answer: this engine and the later ones are reported again. Any other error is the master's
    // answer, which a repetition would only get again.
    if (!ended &&
        (ended.error().code == Code::kTimeout || ended.error().code == Code::kUnavailable)) {
      break;
    }
    ++told;
  }
  return told;
}

std::unique_ptr<wire::HostService> LocalHost::ServiceFor(wire::SessionNumber number) {
  return std::make_unique<Service>(*this, number);
}

class EmbeddedHost::DirectAttachment final : public requester::Attachment {
 public:
  DirectAttachment(LocalHost& host, const owner::Memory::Grant& grant)
      : Attachment(host.owner().memory().header(), host.owner().memory().payload().data,
                   grant.mapped),
        service_(host.ServiceFor(grant.number)) {}
  wire::HostService& service() override { return *service_; }

 private:
  std::unique_ptr<wire::HostService> service_;
};

Result<std::unique_ptr<EmbeddedHost>> EmbeddedHost::Open(const LocalHostOptions& options,
                                                         const Clock& clock) {
  std::unique_ptr<EmbeddedHost> host(new EmbeddedHost);
  KVCOVE_ASSIGN(host->local_, LocalHost::Open(options, clock));
  KVCOVE_ASSIGN(const owner::Memory::Grant grant, host->local_->AddSession(getpid()));
  host->number_ = grant.number;
  host->attachment_ = std::make_shared<DirectAttachment>(*host->local_, grant);
  host->local_->owner().memory().StartPopulating();
  return host;
}

// Disconnects first: the attachment may outlive the host, and its calls must not reach it any more.
EmbeddedHost::~EmbeddedHost() {
  if (attachment_ != nullptr) attachment_->Disconnect();
  if (local_ != nullptr) local_->EndSession(number_);
}

}  // namespace kvcove::pool
