// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/admin.h"

#include <fmt/core.h>

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kvcove/base/keys.h"
#include "kvcove/base/text.h"
#include "kvcove/http/url.h"
#include "kvcove/master/server/pins.h"
#include "kvcove/rpc/channel.h"
#include "kvcove/rpc/load_report.h"

namespace kvcove::master {
namespace {

using http::ErrorResponse;
using http::Request;
using http::Response;
using nlohmann::json;

constexpr std::uint32_t kMaxPage = 1000;

Result<std::uint64_t> Number(const Request& request, const std::string& name,
                             std::uint64_t otherwise) {
  const std::string text = request.Get(name);
  if (text.empty()) return otherwise;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Fail(Code::kInvalid, fmt::format("{}='{}' is not a number", name, text));
  }
  return value;
}

// JSON can only show a key that is UTF-8: in "key", U+FFFD replaces the other bytes. This adds the
// whole key, encoded as in a URL, so that a caller can ask for it again.
void AddPercent(std::string_view key, json& object) {
  if (!IsUtf8(key)) object["key_percent"] = http::UrlEncode(key);
}

json OwnerJson(const wire::OwnerStat& owner) {
  return {{"address", owner.address},
          {"host", owner.host},
          {"tenant", owner.tenant},
          {"state", !owner.live      ? "gone"
                    : owner.draining ? "draining"
                                     : "live"},
          {"capacity_bytes", owner.capacity_bytes},
          {"free_bytes", owner.free_bytes},
          {"objects", owner.objects},
          {"hits", owner.hits},
          {"hit_bytes", owner.hit_bytes},
          {"puts", owner.puts},
          {"put_bytes", owner.put_bytes},
          {"evictions", owner.evictions},
          {"stale_puts", owner.stale_puts},
          {"disks", owner.disks},
          {"disks_aside", owner.disks_aside},
          {"disk_capacity_bytes", owner.disk_capacity_bytes},
          {"disk_bytes", owner.disk_bytes},
          {"disk_hits", owner.disk_hits},
          {"disk_hit_bytes", owner.disk_hit_bytes},
          {"lease_age_ms", owner.lease_age_ns / kMillisecond}};
}

// Describes a key. `own`: the leader's own answer about the same key. Misses that requesters report
// are remembered by the leader, and by a shard for the keys that it is asked for, so the later one
// of the two is shown. `runs_for_ns`: since the master's start; it knows no earlier puts.
json KeyJson(const wire::HeldKey& key, const wire::HeldKey& own,
             const std::vector<wire::OwnerStat>& owners, std::int64_t runs_for_ns) {
  const bool found = key.reason == MissReason::kNone;
  json entry{{"found", found}, {"locations", json::array()}};
  if (found) entry["bytes"] = key.size_bytes;
  if (key.reason == MissReason::kNeverPut) {
    entry["reason"] = "not put since the master started";
    entry["started_seconds_ago"] = static_cast<double>(runs_for_ns) * 1e-9;
  } else if (!found) {
    entry["reason"] = MissReasonName(key.reason);
  }
  for (const wire::OwnerStat& owner : owners) {
    const auto at =
        std::ranges::find(key.holders, owner.number, &std::pair<wire::OwnerNumber, Tier>::first);
    if (at == key.holders.end()) continue;
    entry["locations"].push_back({{"owner", owner.address},
                                  {"host", owner.host},
                                  {"tier", at->second == Tier::kDisk ? "disk" : "memory"}});
  }
  const bool own_is_later =
      key.missed == MissReason::kNone ||
      (own.missed != MissReason::kNone && own.missed_age_ns < key.missed_age_ns);
  const wire::HeldKey& last = own_is_later ? own : key;
  if (last.missed != MissReason::kNone) {
    entry["last_miss"] = {{"reason", MissReasonName(last.missed)},
                          {"count", last.misses},
                          {"seconds_ago", static_cast<double>(last.missed_age_ns) * 1e-9}};
  }
  return entry;
}

json TaskJson(const TaskStat& task) {
  return {{"id", task.id},
          {"kind", TaskKindName(task.request.kind)},
          {"state", TaskStateName(task.state)},
          {"from", task.request.from},
          {"to", task.request.to},
          {"looked_at", task.looked_at},
          {"copied", task.copied},
          {"copied_bytes", task.copied_bytes},
          {"left", task.left},
          {"seconds", task.seconds},
          {"message", task.message}};
}

// Answers the paths; http::Server calls it from its threads. Thread-safe.
class Answers {
 public:
  Answers(MasterServer& cluster, Tasks& tasks, const Clock& clock)
      : cluster_(cluster), tasks_(tasks), clock_(clock) {}

  Result<json> Status() const {
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
  bool Leads() const { return cluster_.Stat().leads; }

  Result<json> Segments() const {
    json list = json::array();
    for (const wire::OwnerStat& owner : cluster_.Owners()) list.push_back(OwnerJson(owner));
    return json{{"segments", list}};
  }

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

  Result<json> Engines(const Request& request) const {
    KVCOVE_ASSIGN(const std::uint64_t limit, Number(request, "limit", kMaxPage));
    json list = json::array();
    for (const EngineDescription& engine : cluster_.master().generations().Engines(limit)) {
      list.push_back({{"engine", engine.engine},
                      {"namespace", ReadableName(engine.name)},
                      {"version", engine.version.value_or("")},
                      {"open", engine.open},
                      {"processes", engine.processes}});
    }
    return json{{"engines", list}, {"registered", cluster_.master().generations().registrations()}};
  }

  Result<json> Namespaces() const {
    json list = json::array();
    const std::vector<std::uint64_t> bytes = cluster_.master().shards().BytesBySlot();
    for (const SlotDescription& slot : cluster_.Namespaces()) {
      list.push_back({{"namespace", ReadableName(slot.name)},
                      {"version", slot.version},
                      {"bytes", bytes[slot.slot]},
                      {"slot", slot.slot},
                      {"generation", slot.generation},
                      {"used", slot.used},
                      {"named", slot.named},
                      {"dead", slot.dead}});
    }
    return json{{"namespaces", list}};
  }

  // Lists keys, a page at a time, from one owner after the other. `after`: the index of an owner
  // and a cursor at that owner, as `next` of the page before; if owners join or end between two
  // pages, keys may be missed or repeated. For a named namespace the disks are listed, too; a key
  // in both tiers is one entry.
  Result<json> Keys(const Request& request) const {
    wire::InventoryRequest page{.with_keys = true};
    if (!request.Get("namespace").empty()) {
      KVCOVE_ASSIGN(const SlotDescription slot, SlotOf(request));
      page.slot = slot.slot;
      page.disks = true;
    }
    page.prefix = request.Get("prefix");
    KVCOVE_ASSIGN(const std::uint64_t limit, Number(request, "limit", 100));
    const std::string after = request.Get("after", "0.0.0.0");
    std::size_t which = 0;
    if (std::sscanf(after.c_str(), "%zu.%u.%" SCNu64 ".%" SCNu64, &which, &page.cursor,
                    &page.within, &page.since) < 3) {
      return Fail(Code::kInvalid, "'after' must be the 'next' of an earlier answer");
    }
    std::map<SlotId, std::string> names;
    for (const SlotDescription& slot : cluster_.Namespaces()) {
      names[slot.slot] = ReadableName(slot.name);
    }
    json keys = json::array();
    const std::vector<wire::OwnerStat> owners = cluster_.Owners();
    const std::uint64_t most = std::clamp<std::uint64_t>(limit, 1, kMaxPage);
    const std::int64_t deadline_ns = clock_.NowNs() + 5 * kSecond;
    for (; which < owners.size(); ++which, page.cursor = 0, page.within = 0, page.since = 0) {
      if (!owners[which].live) continue;
      KVCOVE_ASSIGN(const rpc::Address address, rpc::ParseAddress(owners[which].address, 0));
      rpc::TcpChannel channel(address, cluster_.AccessTo(owners[which].address));
      while (page.cursor != wire::kInventoryDone && keys.size() < most) {
        page.at_most = static_cast<std::uint32_t>(most - keys.size());
        const std::string body = wire::Encode(page);
        KVCOVE_ASSIGN(
            const std::string reply,
            channel.Call(wire::Method::kInventory, std::as_bytes(std::span(body)), deadline_ns));
        KVCOVE_ASSIGN(const wire::InventoryReply got,
                      wire::DecodeInventoryReply(std::as_bytes(std::span(reply))));
        for (const wire::HeldObject& object : got.objects) {
          keys.push_back({{"key", object.key},
                          {"namespace", names[object.slot]},
                          {"bytes", object.size_bytes},
                          {"owner", owners[which].address},
                          {"copies", object.copies},
                          {"tier", object.tier == Tier::kDisk ? "disk"
                                   : object.on_disk           ? "memory+disk"
                                                              : "memory"},
                          {"hard_pinned", object.hard_pinned}});
          AddPercent(object.key, keys.back());
        }
        page.cursor = got.cursor;
        page.within = got.within;
        page.since = got.since;
      }
      if (page.cursor != wire::kInventoryDone) break;
    }
    json answer{{"keys", keys}};
    if (which < owners.size()) {
      answer["next"] = fmt::format("{}.{}.{}.{}", which, page.cursor, page.within, page.since);
    }
    return answer;
  }

  // Says which owners have the key, or why no owner has it; in each weight version of the
  // namespace, or of all.
  Result<json> Key(const Request& request) const {
    KVCOVE_ASSIGN(const std::string key, request.Need("key"));
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsOf(request));
    std::vector<ShardCalls::Key> asked;
    for (const SlotDescription& slot : slots) {
      asked.emplace_back(slot.slot, DirectoryHash(slot.slot, key));
    }
    const ShardCalls::Found found = cluster_.Find(asked, clock_.NowNs() + 2 * kSecond);
    // Requesters report their misses to the leader only, even for keys of other shards.
    const std::vector<wire::HeldKey> own = cluster_.master().directory().Held(asked);
    const std::vector<wire::OwnerStat> owners = cluster_.Owners();
    const std::int64_t runs_for_ns = cluster_.master().control().RunsForNs();
    json list = json::array();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      json entry = KeyJson(found.keys[i], own[i], owners, runs_for_ns);
      entry["namespace"] = ReadableName(slots[i].name);
      entry["version"] = slots[i].version;
      if (found.keys[i].reason == MissReason::kShardAway) entry["away"] = found.away;
      list.push_back(std::move(entry));
    }
    json answer{{"key", key}, {"in", list}};
    AddPercent(key, answer);
    return answer;
  }

  Result<json> Reset(const Request& request) {
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(const SlotDescription slot, SlotOf(request));
    wire::ResetRequest reset{.name = slot.name, .engine = {}, .version = {}, .id = RandomId()};
    KVCOVE_ASSIGN(const std::uint64_t timeout_ms, Number(request, "timeout_ms", 2500));
    const std::int64_t began = clock_.NowNs();
    KVCOVE_ASSIGN(
        const wire::ResetOutcome outcome,
        cluster_.Reset(reset, began + static_cast<std::int64_t>(timeout_ms) * kMillisecond));
    return json{{"proven", true},
                {"raised", outcome.raised},
                {"milliseconds", static_cast<double>(clock_.NowNs() - began) * 1e-6}};
  }

  Result<json> Prune(const Request& request) {
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(const std::string before, request.Need("before"));
    KVCOVE_ASSIGN(const SlotDescription slot, SlotOf(request));
    KVCOVE_ASSIGN(const std::uint64_t timeout_ms, Number(request, "timeout_ms", 2500));
    const std::int64_t began = clock_.NowNs();
    KVCOVE_ASSIGN(const wire::PruneOutcome outcome,
                  cluster_.Prune({.name = slot.name, .before = before},
                                 began + static_cast<std::int64_t>(timeout_ms) * kMillisecond));
    return json{{"proven", true},
                {"versions", outcome.versions},
                {"raised", outcome.raised},
                {"milliseconds", static_cast<double>(clock_.NowNs() - began) * 1e-6}};
  }

  Result<json> Remove(const Request& request) {
    std::string pattern = request.Get("pattern");
    const std::string prefix = request.Get("prefix");
    if (pattern.empty() == prefix.empty()) {
      return Fail(Code::kInvalid, "give 'prefix' or 'pattern', one of them");
    }
    if (!prefix.empty() && prefix.find_first_of("*?") != std::string::npos) {
      return Fail(Code::kInvalid,
                  "this prefix holds '*' or '?', which stand for other bytes in a pattern; if that "
                  "is meant, give it as 'pattern', with a '*' at its end");
    }
    if (pattern.empty()) pattern = prefix + "*";
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsOf(request));
    std::uint64_t removed = 0;
    const Id128 incarnation = cluster_.Stat().incarnation;
    for (const SlotDescription& slot : slots) {
      KVCOVE_ASSIGN(
          const std::uint64_t count,
          cluster_.RemovePattern(
              {.incarnation = incarnation, .generation = slot.generation, .slot = slot.slot},
              pattern, clock_.NowNs() + 10 * kSecond));
      removed += count;
    }
    return json{{"removed", removed}};
  }

  Result<json> Pin(const Request& request) {
    KVCOVE_ASSIGN(PinRequest pins, PinsOf(request));
    KVCOVE_TRY(request.Need("seconds"));
    KVCOVE_ASSIGN(const std::uint64_t seconds, Number(request, "seconds", 0));
    constexpr std::uint64_t kLongest = std::chrono::seconds(kLongestHardPin).count();
    if (seconds > kLongest) {
      return Fail(Code::kInvalid,
                  fmt::format("seconds={}: a pin ends after {} seconds at most; 0 stands for a pin "
                              "without an end",
                              seconds, kLongest));
    }
    pins.kind = wire::PinKind::kHard;
    pins.duration_ns = static_cast<std::int64_t>(seconds) * kSecond;
    KVCOVE_ASSIGN(const PinCounts counts,
                  PinAtOwners(cluster_, pins, clock_.NowNs() + 10 * kSecond));
    return json{{"pinned", counts.done}, {"refused", counts.refused}};
  }

  Result<json> Unpin(const Request& request) {
    KVCOVE_ASSIGN(const PinRequest pins, PinsOf(request));
    KVCOVE_ASSIGN(const PinCounts counts,
                  PinAtOwners(cluster_, pins, clock_.NowNs() + 10 * kSecond));
    return json{{"unpinned", counts.done}};
  }

  Result<json> Start(TaskKind kind, const Request& request) {
    TaskRequest task{.kind = kind};
    if (kind == TaskKind::kDrain) {
      KVCOVE_ASSIGN(task.from, request.Need("owner"));
    } else if (kind != TaskKind::kRepair) {
      KVCOVE_ASSIGN(task.from, request.Need("from"));
      task.to = request.Get("to");
      task.prefix = request.Get("prefix");
      if (!request.Get("namespace").empty()) {
        KVCOVE_ASSIGN(const SlotDescription slot, SlotOf(request));
        task.slot = slot.slot;
      }
      if (!request.Get("key").empty()) {
        KVCOVE_TRY(request.Need("namespace"));
        task.prefix = request.Get("key");
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
    const bool draining = request.Get("undo") != "true";
    KVCOVE_TRY(cluster_.master().shards().SetDraining(master, draining));
    return json{{"master", master}, {"draining", draining}};
  }

  Result<json> Cancel(const Request& request) {
    KVCOVE_TRY(request.Need("id"));
    KVCOVE_ASSIGN(const std::uint64_t id, Number(request, "id", 0));
    KVCOVE_TRY(tasks_.Cancel(id));
    return json{{"cancelled", id}};
  }

  Result<json> ListTasks() const {
    json list = json::array();
    for (const TaskStat& task : tasks_.List()) list.push_back(TaskJson(task));
    return json{{"tasks", list}};
  }

  std::string Metrics() const {
    kvcove::Metrics metrics;
    cluster_.Collect(metrics);
    tasks_.Collect(metrics);
    metrics.Process();
    return metrics.Text();
  }

 private:
  // Returns the values that a request to pin or unpin names.
  Result<PinRequest> PinsOf(const Request& request) const {
    PinRequest pins{
        .slots = {}, .key = request.Get("key"), .prefix = request.Get("prefix"), .kind = {}};
    if (pins.key.empty() == pins.prefix.empty()) {
      return Fail(Code::kInvalid, "give 'key' or 'prefix', one of them");
    }
    KVCOVE_TRY(request.Need("namespace"));
    KVCOVE_ASSIGN(pins.slots, SlotsOf(request));
    return pins;
  }
  // Returns all weight versions of a namespace, or the named one; without a namespace, those of
  // all. Errors: kMiss if that leaves none.
  Result<std::vector<SlotDescription>> SlotsOf(const Request& request) const {
    const std::string name = request.Get("namespace");
    const bool versioned = request.query.contains("version");
    std::vector<SlotDescription> found;
    std::vector<std::string> names;
    for (const SlotDescription& slot : cluster_.Namespaces()) {
      names.push_back(ReadableName(slot.name));
      if (!name.empty() && names.back() != name) continue;
      if (versioned && slot.version != request.Get("version")) continue;
      found.push_back(slot);
    }
    if (!found.empty() || (name.empty() && !versioned)) return found;
    const std::vector<std::string_view> known(names.begin(), names.end());
    const std::string_view nearest = NearestKey(name, known);
    return Fail(
        Code::kMiss,
        fmt::format(
            "no namespace '{}'{}{}", name,
            versioned ? fmt::format(" with version '{}'", request.Get("version")) : std::string(),
            nearest.empty() ? std::string() : fmt::format("; did you mean '{}'?", nearest)));
  }
  Result<SlotDescription> SlotOf(const Request& request) const {
    KVCOVE_ASSIGN(const std::vector<SlotDescription> slots, SlotsOf(request));
    return slots.front();
  }

  MasterServer& cluster_;
  Tasks& tasks_;
  const Clock& clock_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> LeaderPaths() {
  std::vector<std::pair<std::string, std::string>> paths;
  for (const char* path :
       {"segments", "namespaces", "engines", "keys", "key", "tasks", "members", "masters"}) {
    paths.emplace_back("GET", fmt::format("/v1/{}", path));
  }
  for (const char* path : {"forget", "drain-master", "reset", "prune", "remove", "pin", "unpin",
                           "drain", "copy", "move", "repair", "cancel"}) {
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
  // Shared by the routes of both servers.
  const auto answers = std::make_shared<Answers>(cluster, tasks, clock);
  std::vector<http::Route> routes;
  // `waits`: the answer may wait for other processes, so it needs a thread that may wait.
  const auto add = [&](const char* method, const char* path, bool waits,
                       std::function<Result<json>(const Request&)> answer) {
    routes.push_back({.method = method,
                      .path = path,
                      .open = false,
                      .waits = waits,
                      .answer = [answer = std::move(answer)](const Request& request) {
                        const Result<json> body = answer(request);
                        return body ? http::JsonResponse(*body) : ErrorResponse(body.error());
                      }});
  };
  routes.push_back(
      {.method = "GET",
       .path = "/healthz",
       .open = true,
       .waits = false,
       .answer = [](const Request&) { return Response{.body = "ok\n", .type = "text/plain"}; }});
  routes.push_back({.method = "GET",
                    .path = "/readyz",
                    .open = true,
                    .waits = false,
                    .answer = [answers](const Request&) {
                      const bool leads = answers->Leads();
                      return Response{.status = leads ? 200 : 503,
                                      .body = leads ? "leader\n" : "leader, cut off from etcd\n",
                                      .type = "text/plain"};
                    }});
  routes.push_back({.method = "GET",
                    .path = "/metrics",
                    .open = false,
                    .metrics = true,
                    .waits = false,
                    .answer = [answers](const Request&) {
                      return Response{.body = answers->Metrics(),
                                      .type = "text/plain; version=0.0.4"};
                    }});
  add("GET", "/v1/status", false, [answers](const Request&) { return answers->Status(); });
  add("GET", "/v1/segments", false, [answers](const Request&) { return answers->Segments(); });
  add("GET", "/v1/namespaces", false, [answers](const Request&) { return answers->Namespaces(); });
  add("GET", "/v1/engines", false,
      [answers](const Request& request) { return answers->Engines(request); });
  add("GET", "/v1/keys", true,
      [answers](const Request& request) { return answers->Keys(request); });
  add("GET", "/v1/key", true, [answers](const Request& request) { return answers->Key(request); });
  add("GET", "/v1/tasks", false, [answers](const Request&) { return answers->ListTasks(); });
  add("GET", "/v1/members", false, [answers](const Request&) { return answers->Members(); });
  add("GET", "/v1/masters", false, [answers](const Request&) { return answers->Masters(); });
  add("POST", "/v1/drain-master", false,
      [answers](const Request& request) { return answers->DrainMaster(request); });
  add("POST", "/v1/forget", false,
      [answers](const Request& request) { return answers->Forget(request); });
  add("POST", "/v1/reset", true,
      [answers](const Request& request) { return answers->Reset(request); });
  add("POST", "/v1/prune", true,
      [answers](const Request& request) { return answers->Prune(request); });
  add("POST", "/v1/remove", true,
      [answers](const Request& request) { return answers->Remove(request); });
  add("POST", "/v1/pin", true, [answers](const Request& request) { return answers->Pin(request); });
  add("POST", "/v1/unpin", true,
      [answers](const Request& request) { return answers->Unpin(request); });
  for (const TaskKind kind :
       {TaskKind::kDrain, TaskKind::kCopy, TaskKind::kMove, TaskKind::kRepair}) {
    const std::string path = fmt::format("/v1/{}", TaskKindName(kind));
    add("POST", path.c_str(), false,
        [answers, kind](const Request& request) { return answers->Start(kind, request); });
  }
  add("POST", "/v1/cancel", false,
      [answers](const Request& request) { return answers->Cancel(request); });
  if (options.metrics) {
    admin->metrics_address_ = *options.metrics;
    KVCOVE_ASSIGN(admin->metrics_,
                  ServeMetrics(admin->metrics_address_, options.credentials, options.tls, routes));
  }
  if (!options.listen) return admin;
  KVCOVE_ASSIGN(admin->server_, http::Server::Open(std::move(server), std::move(routes)));
  return admin;
}

}  // namespace kvcove::master
