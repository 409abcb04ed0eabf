// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/admin.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "kvcove/base/keys.h"
#include "kvcove/master/server/admin_pool.h"
#include "kvcove/master/server/admin_request.h"
#include "kvcove/master/server/page.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/load_report.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::master {
namespace {

using http::Request;
using nlohmann::json;

// Thread-safe, as MasterServer and Tasks are.
class ClusterPool final : public AdminPool {
 public:
  ClusterPool(MasterServer& cluster, kvcove::master::Tasks& tasks)
      : cluster_(cluster), tasks_(tasks) {}

  Readiness Ready() const override {
    const bool leads = cluster_.Leads();
    return {.ready = leads, .text = leads ? "leader" : "leader, cut off from etcd"};
  }
  json Status() const override {
    const MasterStat stat = cluster_.Stat();
    // Sums over live owners only: memory of an absent owner can store nothing.
    std::uint64_t capacity = 0;
    std::uint64_t free = 0;
    std::uint64_t live = 0;
    std::uint64_t objects = 0;
    std::uint64_t disks = 0;
    std::uint64_t disks_aside = 0;
    for (const wire::OwnerStat& owner : stat.owners) {
      if (!owner.live) continue;
      disks += owner.disks;
      disks_aside += owner.disks_aside;
      ++live;
      capacity += owner.capacity_bytes;
      free += owner.free_bytes;
      objects += owner.objects;
    }
    json status{{"role", stat.leads ? "leader" : "leader, cut off from etcd"},
                {"pool", ToHex(stat.pool)},
                {"incarnation", ToHex(stat.incarnation)},
                {"term", stat.term},
                {"revision", stat.revision},
                {"members", stat.control.members},
                {"barriers", stat.control.barriers},
                {"slots", stat.slots},
                {"registrations", stat.registrations},
                {"removal_log_entries", stat.control.removal_entries},
                {"remembered_removals", stat.remembered_removals},
                {"proofs", stat.control.proofs},
                {"owners", stat.owners.size()},
                {"owners_live", live},
                {"capacity_bytes", capacity},
                {"free_bytes", free},
                {"objects", objects},
                {"disks", disks},
                {"disks_aside", disks_aside},
                {"directory_entries", stat.entries_of_all},
                {"directory_bytes", stat.directory_bytes},
                {"lookups", stat.lookups},
                {"resets", stat.resets},
                {"bytes_in_flight", stat.load.bytes},
                {"refused_calls", rpc::RefusedCalls<json>(stat.load)},
                {"limited_tenants", rpc::LimitedTenants<json>(stat.load)}};
    if (stat.store) {
      status["store"] = "etcd";
      status["store_milliseconds"] = static_cast<double>(stat.store->latency_ns) * 1e-6;
      status["store_facts"] = stat.store->facts;
      status["store_facts_bytes"] = stat.store->facts_bytes;
      status["store_queued"] = stat.store->queued;
      status["store_repeated"] = stat.store->repeated;
    }
    return status;
  }
  std::string Metrics() const override {
    kvcove::Metrics metrics;
    cluster_.Collect(metrics);
    tasks_.Collect(metrics);
    metrics.Process();
    return metrics.Text();
  }
  std::vector<wire::OwnerStat> Owners() const override { return cluster_.Owners(); }
  Result<std::vector<SlotDescription>> Namespaces() const override { return cluster_.Namespaces(); }
  Result<std::vector<std::string>> VersionedNames() const override {
    return cluster_.master().generations().VersionedNames();
  }
  std::vector<std::uint64_t> BytesBySlot() const override {
    return cluster_.master().shards().BytesBySlot();
  }
  std::vector<std::uint64_t> EntriesBySlot() const override {
    return cluster_.master().shards().EntriesBySlot();
  }
  Result<EngineList> Engines(std::size_t at_most) const override {
    const GenerationKeeper& keeper = cluster_.master().generations();
    return EngineList{.engines = keeper.Engines(at_most), .registered = keeper.registrations()};
  }
  std::vector<TaskStat> Tasks() const override { return tasks_.List(); }
  Counts Count() const override {
    MasterCounts counts = cluster_.Counts();
    return {.misses = counts.misses,
            .resets = counts.resets,
            .resets_not_proven = counts.resets_not_proven,
            .calls = std::move(counts.calls)};
  }

  Result<AskPage> PagesOf(const wire::OwnerStat& owner) const override {
    KVCOVE_ASSIGN(const rpc::Address address, rpc::ParseAddress(owner.address, 0));
    const auto channel =
        std::make_shared<rpc::TcpChannel>(address, cluster_.AccessTo(owner.address));
    return [channel](const wire::InventoryRequest& request,
                     std::int64_t deadline_ns) -> Result<wire::InventoryReply> {
      const std::string body = wire::Encode(request);
      KVCOVE_ASSIGN(
          const std::string reply,
          channel->Call(wire::Method::kInventory, std::as_bytes(std::span(body)), deadline_ns));
      return wire::DecodeInventoryReply(std::as_bytes(std::span(reply)));
    };
  }

  Found Find(std::span<const SlotDescription> slots, std::string_view key,
             std::int64_t deadline_ns) const override {
    std::vector<ShardCalls::Key> asked;
    for (const SlotDescription& slot : slots) {
      asked.emplace_back(slot.slot, DirectoryHash(slot.slot, key));
    }
    ShardCalls::Found found = cluster_.Find(asked, deadline_ns);
    // Requesters report their misses to the leader only, even for keys of other shards.
    return {.keys = std::move(found.keys),
            .own = cluster_.master().directory().Held(asked),
            .away = std::move(found.away),
            .since = "the master started",
            .since_age_ns = cluster_.master().control().RunsForNs()};
  }

  void CountPrefix(const SlotDescription& slot, std::span<const std::string_view> keys,
                   std::int64_t deadline_ns, PrefixCount& count) const override {
    // In parts, as far as the prefix is found: a namespace may have thousands of versions.
    std::vector<Id128> hashes;
    while (!keys.empty() && !count.ended()) {
      const auto part = keys.first(std::min<std::size_t>(keys.size(), 1024));
      hashes.clear();
      for (const std::string_view key : part) hashes.push_back(DirectoryHash(slot.slot, key));
      cluster_.CountPrefix(slot.slot, hashes, deadline_ns, count);
      keys = keys.subspan(part.size());
    }
  }

  Result<wire::ResetOutcome> Reset(const wire::ResetRequest& request,
                                   std::int64_t deadline_ns) override {
    return cluster_.Reset(request, deadline_ns);
  }
  Result<wire::PruneOutcome> Prune(const wire::PruneRequest& request,
                                   std::int64_t deadline_ns) override {
    return cluster_.Prune(request, deadline_ns);
  }
  Result<std::uint64_t> Remove(const SlotDescription& slot, std::string_view pattern,
                               std::int64_t deadline_ns) override {
    return cluster_.RemovePattern({.incarnation = cluster_.Stat().incarnation,
                                   .generation = slot.generation,
                                   .slot = slot.slot},
                                  pattern, deadline_ns);
  }
  // Asks each owner, as a session would.
  Result<PinCounts> Pin(const PinRequest& request, std::int64_t deadline_ns) override {
    PinCounts counts;
    const Id128 incarnation = cluster_.Stat().incarnation;
    for (const wire::OwnerStat& owner : cluster_.Owners()) {
      if (!owner.live) continue;
      PinRequest mine = request;
      // An owner of one tenant has no values of other tenants, and refuses a call that names one
      // of their namespaces.
      std::erase_if(mine.slots, [&](const SlotDescription& slot) {
        return !owner.tenant.empty() && TenantOf(slot.name) != owner.tenant;
      });
      if (mine.slots.empty()) continue;
      KVCOVE_ASSIGN(const rpc::Address address, rpc::ParseAddress(owner.address, 0));
      rpc::TcpChannel channel(address, cluster_.AccessTo(owner.address));
      const auto stub = wire::MakeObjectStub(channel);
      const PinTarget target{
          .page = [&](const wire::InventoryRequest& page) { return stub->Page(page, deadline_ns); },
          .pin =
              [&](const Token& token, std::span<const std::string_view> keys) {
                return stub->Pin(token, keys, request.kind, request.duration_ns, deadline_ns);
              }};
      KVCOVE_ASSIGN(const PinCounts more, PinAt(target, owner.address, incarnation, mine));
      counts.Add(more);
    }
    return counts;
  }

 private:
  MasterServer& cluster_;
  kvcove::master::Tasks& tasks_;
};

// Answers the paths that a cluster alone has. Thread-safe.
class ClusterAnswers {
 public:
  ClusterAnswers(MasterServer& cluster, Tasks& tasks, std::shared_ptr<AdminPool> pool)
      : cluster_(cluster), tasks_(tasks), pool_(std::move(pool)) {}

  // Shows absent owners, too, and how far each must catch up before its objects are found again.
  Result<json> Members() const {
    json list = json::array();
    const Control::Counts counts = cluster_.master().control().Count();
    std::map<SlotId, std::string> names;
    for (const SlotDescription& slot : cluster_.Namespaces()) {
      names[slot.slot] = ReadableName(slot.name);
    }
    for (const MemberDescription& member : cluster_.master().control().Describe()) {
      json barriers = json::array();
      for (const auto& [slot, barrier] : member.barriers) {
        barriers.push_back({{"namespace", names[slot]},
                            {"slot", slot},
                            {"term", barrier.term},
                            {"acknowledged", barrier.acknowledged}});
      }
      list.push_back(
          {{"number", member.number},
           {"identity", ToHex(member.id)},
           {"owner", member.address},
           {"host", member.host},
           {"tenant", member.tenant},
           {"state", member.leased ? (member.told ? "live" : "live, being listed") : "away"},
           {"away_seconds",
            member.away_ns ? json(static_cast<double>(*member.away_ns) * 1e-9) : json(nullptr)},
           {"joined", member.joined_s},
           {"disk", member.disk},
           {"generations_current", member.table >= counts.table},
           {"generations", member.table},
           {"removals_behind", counts.removals - std::min(counts.removals, member.removals)},
           {"removals", member.removals},
           {"hidden_slots", barriers.size()},
           {"barriers", std::move(barriers)}});
    }
    return json{{"members", list}, {"generations", counts.table}, {"removals", counts.removals}};
  }

  Result<json> Forget(const Request& request) {
    KVCOVE_ASSIGN(const std::string owner, request.Need("owner"));
    std::vector<std::string> known;
    for (const MemberDescription& member : cluster_.master().control().Describe()) {
      if (member.address == owner || ToHex(member.id) == owner ||
          std::to_string(member.number) == owner) {
        KVCOVE_TRY(cluster_.master().control().Forget(member.number));
        return json{{"forgotten", member.address}};
      }
      known.push_back(member.address);
    }
    const std::vector<std::string_view> views(known.begin(), known.end());
    const std::string_view nearest = NearestKey(owner, views);
    return Fail(Code::kMiss,
                fmt::format("no member '{}'{}; 'kvcove admin members' shows them", owner,
                            nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
  }

  Result<json> Start(TaskKind kind, const Request& request) {
    TaskRequest task{.kind = kind};
    if (kind == TaskKind::kDrain) {
      KVCOVE_ASSIGN(task.from, request.Need("owner"));
    } else if (kind != TaskKind::kRepair) {
      KVCOVE_ASSIGN(task.from, request.Need("from"));
      KVCOVE_ASSIGN(task.to, TextIn(request, "to"));
      KVCOVE_ASSIGN(task.prefix, TextIn(request, "prefix"));
      // Without any of the two the task covers all slots, those that are taken later, too.
      const bool named = request.query.contains("namespace");
      if (named) KVCOVE_TRY(request.Need("namespace"));
      if (named || request.query.contains("version")) {
        KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsIn(*pool_, request));
        for (const SlotDescription& slot : slots) task.slots.push_back(slot.slot);
      }
      KVCOVE_ASSIGN(const std::string key, TextIn(request, "key"));
      if (!key.empty()) {
        if (!task.prefix.empty()) return Fail(Code::kInvalid, "give 'key' or 'prefix', not both");
        KVCOVE_TRY(request.Need("namespace"));
        task.prefix = key;
        task.one_key = true;
      }
    }
    KVCOVE_ASSIGN(const std::uint64_t id, tasks_.Start(task));
    return json{{"task", id}};
  }

  Result<json> Masters() const {
    json list = json::array();
    for (const ShardDescription& shard : cluster_.master().shards().Describe()) {
      list.push_back({{"master", shard.address.empty() ? "leader" : shard.address},
                      {"shard", shard.number},
                      {"slices", shard.slices},
                      {"entries", shard.entries},
                      {"draining", shard.draining},
                      {"lease_milliseconds", shard.lease_ns / kMillisecond}});
    }
    return json{{"masters", list}};
  }

  Result<json> DrainMaster(const Request& request) {
    KVCOVE_ASSIGN(const std::string master, request.Need("master"));
    KVCOVE_ASSIGN(const bool undo, IsTrue(request, "undo"));
    const bool draining = !undo;
    KVCOVE_TRY(cluster_.master().shards().SetDraining(master, draining));
    return json{{"master", master}, {"draining", draining}};
  }

  Result<json> Cancel(const Request& request) {
    KVCOVE_TRY(request.Need("id"));
    KVCOVE_ASSIGN(const std::uint64_t id, NumberIn(request, "id", 0));
    KVCOVE_TRY(tasks_.Cancel(id));
    return json{{"cancelled", id}};
  }

 private:
  MasterServer& cluster_;
  Tasks& tasks_;
  const std::shared_ptr<AdminPool> pool_;
};

void AddClusterRoutes(std::vector<http::Route>& routes,
                      const std::shared_ptr<ClusterAnswers>& answers) {
  using Names = std::vector<std::string_view>;
  const auto add = [&](const char* method, const std::string& path, Names parameters,
                       JsonAnswer answer) {
    AddRoute(routes, method, path, /*waits=*/false,
             Taking(std::move(parameters), std::move(answer)));
  };
  add("GET", "/v1/members", {}, [answers](const Request&) { return answers->Members(); });
  add("GET", "/v1/masters", {}, [answers](const Request&) { return answers->Masters(); });
  add("POST", "/v1/drain-master", {"master", "undo"},
      [answers](const Request& request) { return answers->DrainMaster(request); });
  add("POST", "/v1/forget", {"owner"},
      [answers](const Request& request) { return answers->Forget(request); });
  const Names of_copies = {"from", "to", "namespace", "version", "key", "prefix"};
  for (const auto& [kind, parameters] :
       {std::pair(TaskKind::kDrain, Names{"owner"}), std::pair(TaskKind::kCopy, of_copies),
        std::pair(TaskKind::kMove, of_copies), std::pair(TaskKind::kRepair, Names{})}) {
    add("POST", fmt::format("/v1/{}", TaskKindName(kind)), parameters,
        [answers, kind = kind](const Request& request) { return answers->Start(kind, request); });
  }
  add("POST", "/v1/cancel", {"id"},
      [answers](const Request& request) { return answers->Cancel(request); });
}

}  // namespace

std::vector<std::pair<std::string, std::string>> LeaderPaths() {
  std::vector<std::pair<std::string, std::string>> paths;
  for (const char* path : {"segments", "namespaces", "versions", "engines", "keys", "key", "tasks",
                           "members", "masters", "page"}) {
    paths.emplace_back("GET", fmt::format("/v1/{}", path));
  }
  for (const char* path : {"forget", "drain-master", "reset", "prune", "remove", "pin", "unpin",
                           "prefix", "drain", "copy", "move", "repair", "cancel"}) {
    paths.emplace_back("POST", fmt::format("/v1/{}", path));
  }
  return paths;
}

Result<std::unique_ptr<http::Server>> ServeMetrics(rpc::Address& address,
                                                   std::shared_ptr<rpc::Credentials> credentials,
                                                   std::shared_ptr<rpc::Tls> tls,
                                                   const std::vector<http::Route>& routes) {
  http::ServerOptions server{.loopback = rpc::IsLoopback(address),
                             .authorize = rpc::BearersOf(std::move(credentials)),
                             .tunnel = rpc::TunnelOf(std::move(tls))};
  KVCOVE_ASSIGN(server.listener, rpc::ListenTcp(address));
  return http::Server::Open(std::move(server), http::MonitoringRoutes(routes));
}

Result<std::unique_ptr<Admin>> Admin::Open(MasterServer& cluster, Tasks& tasks,
                                           const AdminOptions& options, const Clock& clock) {
  std::unique_ptr<Admin> admin(new Admin);
  http::ServerOptions server{.authorize = rpc::BearersOf(options.credentials), .tunnel = {}};
  if (options.listen) {
    admin->address_ = *options.listen;
    server.loopback = rpc::IsLoopback(admin->address_);
    KVCOVE_ASSIGN(server.listener, rpc::ListenTcp(admin->address_));
  }
  const auto pool = std::make_shared<ClusterPool>(cluster, tasks);
  std::vector<http::Route> routes = PoolRoutes(pool, clock);
  AddClusterRoutes(routes, std::make_shared<ClusterAnswers>(cluster, tasks, pool));
  if (options.metrics) {
    admin->metrics_address_ = *options.metrics;
    KVCOVE_ASSIGN(admin->metrics_,
                  ServeMetrics(admin->metrics_address_, options.credentials, options.tls, routes));
  }
  if (!options.listen) return admin;
  Page page = PageOf(pool, {.drains = true}, clock);
  std::ranges::move(page.routes, std::back_inserter(routes));
  server.tick = std::move(page.tick);
  server.logins = true;
  KVCOVE_ASSIGN(admin->server_, http::Server::Open(std::move(server), std::move(routes)));
  return admin;
}

}  // namespace kvcove::master
