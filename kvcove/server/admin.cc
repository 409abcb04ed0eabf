// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/admin.h"

#include <nlohmann/json.hpp>

#include "kvcove/owner/disk/disks_report.h"
#include "kvcove/rpc/load_report.h"

namespace kvcove::server {
namespace {

using http::Request;
using http::Response;
using nlohmann::json;

struct Number {
  const char* name;
  const char* help;
  std::uint64_t wire::PoolStat::* value;
  bool counter;
};

constexpr Number kNumbers[] = {
    {"capacity_bytes", "memory that this host gives to the pool", &wire::PoolStat::payload_bytes,
     false},
    {"populated_bytes", "payload memory whose pages are populated",
     &wire::PoolStat::populated_bytes, false},
    {"free_bytes", "payload memory that is free", &wire::PoolStat::free_bytes, false},
    {"object_bytes", "payload memory of stored values", &wire::PoolStat::object_bytes, false},
    {"reserved_bytes", "payload memory of values that are being written",
     &wire::PoolStat::reserved_bytes, false},
    {"withdrawn_bytes", "payload memory of values that are gone, but still being read",
     &wire::PoolStat::withdrawn_bytes, false},
    {"index_bytes", "memory for the index and keys, beside the payload",
     &wire::PoolStat::index_bytes, false},
    {"objects", "values that are stored", &wire::PoolStat::objects, false},
    {"puts_total", "values stored", &wire::PoolStat::puts, true},
    {"put_bytes_total", "bytes of values stored", &wire::PoolStat::put_bytes, true},
    {"hits_total", "values read", &wire::PoolStat::hits, true},
    {"evictions_total", "values evicted to make room", &wire::PoolStat::evictions, true},
    {"removals_total", "values removed", &wire::PoolStat::removals, true},
    {"resets_total", "generations that a reset replaced", &wire::PoolStat::resets, true},
    {"voided_total", "values whose generation ended, by a reset or with a version that is given up",
     &wire::PoolStat::voided, true},
    {"voided_bytes_total", "memory of values whose generation ended", &wire::PoolStat::voided_bytes,
     true},
    {"swept_total", "values of dead generations whose space came back", &wire::PoolStat::swept,
     true},
    {"stale_puts_total", "puts rejected because they were begun before a reset or removal",
     &wire::PoolStat::stale_puts, true},
    {"expired_puts_total", "puts that took so long that others got their key",
     &wire::PoolStat::expired_puts, true},
    {"dropped_events_total", "hits that a full ring lost", &wire::PoolStat::dropped_events, true},
};

std::string Metrics(pool::LocalHost& host, const Clock& clock) {
  const wire::PoolStat stat = host.owner().Stat();
  kvcove::Metrics metrics;
  const Labels memory = {{"tier", "memory"}};
  for (const Number& number : kNumbers) {
    const std::string name = std::string("kvcove_owner_") + number.name;
    const auto value = static_cast<double>(stat.*number.value);
    if (number.counter) {
      metrics.Counter(name, number.help, value, memory);
    } else {
      metrics.Gauge(name, number.help, value, memory);
    }
  }
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    metrics.Counter("kvcove_owner_local_misses_total",
                    "keys that this host's processes did not find in its own memory",
                    static_cast<double>(stat.local.misses[i]),
                    {{"reason", std::string(MissReasonName(static_cast<MissReason>(i)))}});
  }
  metrics.Counter("kvcove_owner_local_lookups_total", "keys that this host's processes looked up",
                  static_cast<double>(stat.local.lookups));
  metrics.Counter("kvcove_owner_local_gets_total",
                  "values that processes of this host read from the owner's memory",
                  static_cast<double>(stat.local.gets));
  metrics.Counter("kvcove_owner_local_get_bytes_total",
                  "bytes of values that processes of this host read from the owner's memory",
                  static_cast<double>(stat.local.get_bytes));
  for (const wire::NamespaceStat& space : stat.namespaces) {
    metrics.Gauge("kvcove_owner_namespace_bytes", "memory of a namespace, or of a tenant's",
                  static_cast<double>(space.bytes), {{"namespace", ReadableName(space.name)}});
  }
  metrics.Gauge("kvcove_owner_sessions", "processes on this host that use the pool",
                static_cast<double>(stat.sessions.size()));
  metrics.Gauge("kvcove_owner_lease_seconds",
                "seconds for which the owner's memory may still be trusted",
                static_cast<double>(host.owner().memory().LeaseUntilNs() - clock.NowNs()) * 1e-9);
  owner::CollectDisks(host.owner().disks(), metrics);
  host.Collect(metrics);
  metrics.Process();
  return metrics.Text();
}

json Stat(pool::LocalHost& host) {
  const wire::PoolStat stat = host.owner().Stat();
  json answer;
  for (const Number& number : kNumbers) answer[number.name] = stat.*number.value;
  answer["namespaces"] = json::array();
  for (const wire::NamespaceStat& space : stat.namespaces) {
    json entry{{"namespace", ReadableName(space.name)},
               {"bytes", space.bytes},
               {"guaranteed_bytes", space.guaranteed_bytes}};
    if (space.priority != NamespacePriority::kUnsaid)
      entry["priority"] = PriorityName(space.priority);
    if (space.maximum_bytes != ~0ULL) entry["maximum_bytes"] = space.maximum_bytes;
    answer["namespaces"].push_back(std::move(entry));
  }
  answer["sessions"] = json::array();
  for (const wire::SessionStat& session : stat.sessions) {
    answer["sessions"].push_back({{"number", session.number},
                                  {"pid", session.pid},
                                  {"protected_objects", session.protected_objects},
                                  {"reserved_bytes", session.reserved_bytes},
                                  {"held_bytes", session.held_bytes}});
  }
  const rpc::CallLimits::Stat load = host.Load();
  answer["bytes_in_flight"] = load.bytes;
  answer["refused_calls"] = rpc::RefusedCalls<json>(load);
  answer["limited_tenants"] = rpc::LimitedTenants<json>(load);
  return answer;
}

}  // namespace

Result<std::unique_ptr<http::Server>> ServeAdmin(pool::LocalHost& host, AdminOptions options,
                                                 const Clock& clock) {
  const auto text = [](std::string body) {
    return Response{.body = std::move(body), .type = "text/plain; version=0.0.4"};
  };
  std::vector<http::Route> routes = {
      {.method = "GET",
       .path = "/healthz",
       .open = true,
       .answer = [text](const Request&) { return text("ok\n"); }},
      {.method = "GET",
       .path = "/readyz",
       .open = true,
       .answer =
           [&host, &clock, text](const Request&) {
             const bool ready = host.owner().memory().LeaseUntilNs() > clock.NowNs();
             Response response = text(ready ? "ok\n" : "no lease: the master does not answer\n");
             if (!ready) response.status = 503;
             return response;
           }},
      {.method = "GET",
       .path = "/metrics",
       .metrics = true,
       .answer = [&host, &clock, text](const Request&) { return text(Metrics(host, clock)); }},
      {.method = "GET",
       .path = "/v1/stat",
       .answer = [&host](const Request&) { return http::JsonResponse(Stat(host)); }},
  };
  if (options.metrics_only) routes = http::MonitoringRoutes(routes);
  return http::Server::Open({.listener = std::move(options.listener),
                             .loopback = rpc::IsLoopback(options.address),
                             .authorize = rpc::BearersOf(std::move(options.credentials)),
                             .tunnel = rpc::TunnelOf(std::move(options.tls))},
                            std::move(routes));
}

}  // namespace kvcove::server
