// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/local_host.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "kvcove/base/log.h"
#include "kvcove/requester/cluster_host.h"
#include "kvcove/wire/master_stub.h"

namespace kvcove::pool {
namespace {

constexpr std::int64_t kTellNs = 500 * kMillisecond;
constexpr std::int64_t kRepeatNs = 5 * kSecond;

}  // namespace

class LocalHost::Service final : public wire::HostService {
 public:
  Service(LocalHost& host, wire::SessionNumber number) : host_(host), number_(number) {}

  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override {
    const EngineKey engine = {request.name, request.engine};
    KVCOVE_TRY(host_.AddEngine(engine, number_, deadline_ns));
    auto registration = host_.control().Register(request, deadline_ns);
    if (registration) host_.held_.Registered(request, *registration);
    host_.CheckEngine(engine);
    return registration;
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override {
    if (request.engine.empty()) return host_.control().Reset(request, deadline_ns);
    const EngineKey engine = {request.name, request.engine};
    KVCOVE_TRY(host_.AddEngine(engine, number_, deadline_ns));
    auto outcome = host_.control().Reset(request, deadline_ns);
    host_.CheckEngine(engine);
    return outcome;
  }
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override {
    host_.held_.Named(name, engine, {versions.begin(), versions.end()});
    return host_.control().NameVersions(name, engine, versions, deadline_ns);
  }
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t /*deadline_ns*/) override {
    host_.DropEngine({std::string(name), std::string(engine)}, number_);
    return {};
  }
  Result<std::vector<wire::PutResult>> Put(const Token& token, std::span<const wire::PutItem> items,
                                           std::int64_t deadline_ns) override {
    return host_.owner().Put(number_, token, items, deadline_ns);
  }
  Result<std::vector<Code>> Finish(std::span<const wire::FinishItem> items,
                                   std::int64_t deadline_ns) override {
    return host_.owner().Finish(number_, items, deadline_ns);
  }
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t deadline_ns) override {
    return host_.control().Remove(token, keys, deadline_ns);
  }
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override {
    return host_.control().RemoveMatching(token, pattern, deadline_ns);
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
                                    std::int64_t /*deadline_ns*/) override {
    return host_.owner().Page(request);
  }
  Result<wire::PoolStat> Stat(std::int64_t /*deadline_ns*/) override {
    return host_.owner().Stat();
  }

 private:
  LocalHost& host_;
  const wire::SessionNumber number_;
};

// Decided here: this host is the whole pool.
class LocalHost::OwnControl final : public wire::ControlService {
 public:
  OwnControl(master::BlockingGenerations& generations, owner::Owner& owner)
      : generations_(generations), owner_(owner) {}
  Result<wire::Registration> Register(const wire::RegisterRequest& request,
                                      std::int64_t deadline_ns) override {
    return generations_.Register(request, deadline_ns);
  }
  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override {
    return generations_.Reset(request, deadline_ns);
  }
  Status NameVersions(std::string_view name, std::string_view engine,
                      std::span<const std::string> versions, std::int64_t deadline_ns) override {
    return generations_.NameVersions(name, engine, versions, deadline_ns);
  }
  Status EndEngine(std::string_view name, std::string_view engine,
                   std::int64_t deadline_ns) override {
    return generations_.EndEngine(name, engine, deadline_ns);
  }
  Result<std::vector<Code>> Remove(const Token& token, std::span<const std::string_view> keys,
                                   std::int64_t /*deadline_ns*/) override {
    return owner_.Remove(token, keys);
  }
  Result<std::uint64_t> RemoveMatching(const Token& token, std::string_view pattern,
                                       std::int64_t deadline_ns) override {
    return owner_.RemoveMatching(token, pattern, deadline_ns);
  }

 private:
  master::BlockingGenerations& generations_;
  owner::Owner& owner_;
};

Status LocalHost::JoinCluster(const LocalHostOptions& options, const Clock& clock) {
  const ClusterMember& member = *options.cluster;
  rpc::Access access{.credential = std::nullopt, .tls = member.tls};
  rpc::Access tenant_access = access;
  if (member.credentials != nullptr) {
    KVCOVE_ASSIGN(access.credential, member.credentials->OfOwner(member.tenant));
    if (!member.tenant.empty()) {
      const auto tenant = member.credentials->Find(member.tenant);
      if (!tenant) {
        return Fail(Code::kInvalid,
                    fmt::format("the credentials do not name the tenant '{}'", member.tenant));
      }
      tenant_access.credential = {.tenant = member.tenant, .token = tenant->tokens.front()};
    }
  }
  // What this host's own processes ask of the master, they ask as their tenant.
  channel_ = std::make_unique<rpc::TcpChannel>(member.master, tenant_access);
  control_ = std::make_unique<wire::MasterStub>(*channel_, process_);
  KVCOVE_ASSIGN(data_server_, owner::DataServer::Open(*owner_,
                                                      {.listen = member.listen,
                                                       .checksum = member.checksum,
                                                       .tenant = member.tenant,
                                                       .credentials = member.credentials,
                                                       .tls = member.tls,
                                                       .access = access},
                                                      clock));
  owner_->Start();
  owner::LinkOptions link;
  link.master = member.master;
  link.identity.owner = RandomId();
  link.identity.process = process_;
  if (advertised_.address.port == 0) advertised_.address.port = data_server_->address().port;
  link.identity.address = advertised_.address.ToString();
  link.identity.socket = options.socket_path;
  link.identity.host = member.host.empty() ? requester::HostIdentity() : member.host;
  link.identity.tenant = member.tenant;
  link.access = access;
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
  // The link's lease waits for nothing, so another thread says again what is registered here.
  repeats_ = std::make_unique<rpc::Workers>(1);
  link.on_heard = [this](std::uint64_t term) {
    if (repeating_.load() || !held_.Forgotten(term, SystemClock::Instance().NowNs())) return;
    repeating_.store(true);
    (void)repeats_->Post([this] {
      (void)held_.Repeat(*control_, SystemClock::Instance().NowNs() + kRepeatNs);
      repeating_.store(false);
    });
  };
  link_ = std::make_unique<owner::Link>(*owner_, link, clock);
  link_->Start();
  // Who waited for this owner may use it at once: mostly its first lease comes in milliseconds. A
  // master that is not there yet is no reason not to start.
  const std::int64_t until_ns = clock.NowNs() + kSecond / 2;
  while (owner_->LeaseUntilNs() <= clock.NowNs() && clock.NowNs() < until_ns) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {};
}

std::string LocalHost::address() const {
  return data_server_ == nullptr ? std::string() : data_server_->address().ToString();
}

void LocalHost::Collect(http::Metrics& metrics) const {
  if (data_server_ != nullptr) data_server_->Collect(metrics);
}

Result<std::unique_ptr<LocalHost>> LocalHost::Open(const LocalHostOptions& options,
                                                   const Clock& clock) {
  std::unique_ptr<LocalHost> host(new LocalHost);
  owner::OwnerOptions owner_options = options.owner;
  owner_options.cluster = options.cluster.has_value();
  if (options.cluster && options.cluster->credentials != nullptr) {
    owner_options.tenants = options.cluster->tenant.empty();
    for (const auto& [name, tenant] : options.cluster->credentials->All()) {
      owner::Quota quota;
      const std::uint64_t memory = owner_options.memory_bytes;
      if (tenant.maximum) quota.maximum_bytes = tenant.maximum->Of(memory);
      if (tenant.guaranteed) quota.guaranteed_bytes = tenant.guaranteed->Of(memory);
      owner_options.quotas[QualifiedName(name, "")] = quota;
    }
  }
  if (options.cluster) {
    // Before the memory is taken: a mistake is told at once.
    KVCOVE_ASSIGN(host->advertised_, net::ChooseAdvertised({.advertise = options.cluster->advertise,
                                                            .listen = options.cluster->listen,
                                                            .master = options.cluster->master}));
  }
  KVCOVE_ASSIGN(host->owner_, owner::Owner::Open(owner_options, clock));
  host->ends_ = std::make_unique<EngineEnds>(
      [raw = host.get()](std::span<const EngineKey> engines) { return raw->TellEnds(engines); });
  if (options.cluster) {
    KVCOVE_TRY(host->JoinCluster(options, clock));
    return host;
  }
  KVCOVE_ASSIGN(host->generations_,
                master::BlockingGenerations::Open(options.data_directory, options.owner.lease_ns,
                                                  *host, clock));
  host->control_ = std::make_unique<OwnControl>(*host->generations_, *host->owner_);
  host->owner_->Start();
  return host;
}

LocalHost::~LocalHost() {
  ends_.reset();
  if (owner_ == nullptr) return;
  if (link_ != nullptr) link_->Stop();  // from here on nobody answers for what waits to be listed
  data_server_.reset();
  owner_->Stop();  // ends the lease
  if (generations_ == nullptr) return;
  if (const Status closed = generations_->Close(); !closed) {
    LogWarn("the clean end could not be written down, so the next start waits for leases: {}",
            closed.error().ToString());
  }
}

void LocalHost::Publish(const Id128& incarnation, const std::vector<SlotUpdate>& updates) {
  owner_->Publish(incarnation, updates);
}

Result<owner::Owner::Grant> LocalHost::AddSession(std::int32_t pid) {
  KVCOVE_ASSIGN(owner::Owner::Grant grant, owner_->AddSession(pid));
  const MutexLock lock(mutex_);
  sessions_.insert(grant.number);
  return grant;
}

void LocalHost::EndSession(wire::SessionNumber number) {
  owner_->EndSession(number);
  std::vector<EngineKey> mine;
  {
    const MutexLock lock(mutex_);
    sessions_.erase(number);
    for (const auto& [engine, sessions] : engines_) {
      if (sessions.contains(number)) mine.push_back(engine);
    }
  }
  for (const EngineKey& engine : mine) DropEngine(engine, number);
}

Status LocalHost::AddEngine(const EngineKey& engine, wire::SessionNumber number,
                            std::int64_t deadline_ns) {
  {
    const MutexLock lock(mutex_);
    if (!sessions_.contains(number)) return Fail(Code::kUnavailable, "this session has ended");
    engines_[engine].insert(number);
  }
  if (ends_->AwaitTold(engine, deadline_ns)) return {};
  return Fail(Code::kTimeout, "the master does not answer");
}

// Its last session may have ended while the master was asked, and the end may have reached the
// master first: it is told once more.
void LocalHost::CheckEngine(const EngineKey& engine) {
  {
    const MutexLock lock(mutex_);
    if (engines_.contains(engine)) return;
  }
  ends_->Add(engine);
}

void LocalHost::DropEngine(const EngineKey& engine, wire::SessionNumber number) {
  {
    const MutexLock lock(mutex_);
    const auto at = engines_.find(engine);
    if (at == engines_.end() || at->second.erase(number) == 0 || !at->second.empty()) return;
    engines_.erase(at);
  }
  held_.Ended(engine.first, engine.second);
  ends_->Add(engine);
}

std::size_t LocalHost::TellEnds(std::span<const EngineKey> engines) {
  // In a cluster over a connection of its own, whose hello shows that the master answers. A frozen
  // master would find a call in its socket when it thaws, and end an engine that runs again.
  std::optional<rpc::TcpChannel> channel;
  std::optional<wire::MasterStub> stub;
  wire::ControlService* control = control_.get();
  if (channel_ != nullptr) {
    channel.emplace(channel_->address(), channel_->access());
    control = &stub.emplace(*channel, process_);
  }
  std::size_t told = 0;
  for (const auto& [name, engine] : engines) {
    const Status ended =
        control->EndEngine(name, engine, SystemClock::Instance().NowNs() + kTellNs);
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
  DirectAttachment(LocalHost& host, const owner::Owner::Grant& grant)
      : Attachment(host.owner().header(), host.owner().payload(), grant.mapped),
        service_(host.ServiceFor(grant.number)) {}
  wire::HostService& service() override { return *service_; }

 private:
  std::unique_ptr<wire::HostService> service_;
};

Result<std::unique_ptr<EmbeddedHost>> EmbeddedHost::Open(const LocalHostOptions& options,
                                                         const Clock& clock) {
  std::unique_ptr<EmbeddedHost> host(new EmbeddedHost);
  KVCOVE_ASSIGN(host->local_, LocalHost::Open(options, clock));
  KVCOVE_ASSIGN(const owner::Owner::Grant grant, host->local_->AddSession(getpid()));
  host->number_ = grant.number;
  host->attachment_ = std::make_shared<DirectAttachment>(*host->local_, grant);
  return host;
}

EmbeddedHost::~EmbeddedHost() {
  if (attachment_ != nullptr) attachment_->Disconnect();
  if (local_ != nullptr) local_->EndSession(number_);
}

}  // namespace kvcove::pool
