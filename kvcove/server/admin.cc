// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/admin.h"

#include <nlohmann/json.hpp>

#include "kvcove/master/server/admin_request.h"
#include "kvcove/owner/disk/disks_report.h"
#include "kvcove/rpc/load_report.h"

namespace kvcove::server {
namespace {

using http::Request;
using http::Response;
using nlohmann::json;

json Stat(pool::LocalHost& host) {
  const wire::PoolStat stat = host.owner().Stat();
  json answer;
  for (const PoolFigure& figure : kPoolFigures) answer[figure.key()] = stat.*figure.value;
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

std::string MetricsOf(pool::LocalHost& host, const Clock& clock) {
  Metrics metrics;
  CollectOwner(host, clock, metrics);
  metrics.Process();
  return metrics.Text();
}

}  // namespace

void CollectOwner(pool::LocalHost& host, const Clock& clock, Metrics& metrics,
                  const Labels& labels) {
  const wire::PoolStat stat = host.owner().Stat();
  const auto with = [&](const char* name, std::string value) {
    Labels more = labels;
    more[name] = std::move(value);
    return more;
  };
  const Labels memory = with("tier", "memory");
  for (const PoolFigure& figure : kPoolFigures) {
    if (figure.tier == "disk" && stat.disk_capacity_bytes == 0) continue;
    Labels more = with("tier", std::string(figure.tier));
    if (!figure.size.empty()) more["size"] = figure.size;
    metrics.Add(std::string(figure.metric), std::string(figure.help),
                static_cast<double>(stat.*figure.value), more);
  }
  metrics.Histogram("kvcove_owner_residence_seconds",
                    "seconds that evicted values had been in memory", host.owner().Residence(),
                    memory);
  for (std::size_t i = 1; i < kMissReasons; ++i) {
    metrics.Counter("kvcove_owner_local_misses_total",
                    "keys that this host's processes did not find in its own memory",
                    static_cast<double>(stat.local.misses[i]),
                    with("reason", std::string(MissReasonName(static_cast<MissReason>(i)))));
  }
  metrics.Counter("kvcove_owner_local_lookups_total", "keys that this host's processes looked up",
                  static_cast<double>(stat.local.lookups), labels);
  metrics.Counter("kvcove_owner_local_gets_total",
                  "values that processes of this host read from the owner's memory",
                  static_cast<double>(stat.local.gets), labels);
  metrics.Counter("kvcove_owner_local_get_bytes_total",
                  "bytes of values that processes of this host read from the owner's memory",
                  static_cast<double>(stat.local.get_bytes), labels);
  std::vector<NamedValue> spaces;
  for (const wire::NamespaceStat& space : stat.namespaces) {
    spaces.push_back({.labels = {{"namespace", ReadableName(space.name)}},
                      .value = static_cast<double>(space.bytes)});
  }
  metrics.Gauges("kvcove_owner_namespace_bytes",
                 "bytes of memory that a namespace, or all namespaces of a tenant, use",
                 std::move(spaces), labels);
  metrics.Gauge("kvcove_owner_sessions", "sessions of this host's processes with this owner",
                static_cast<double>(stat.sessions.size()), labels);
  metrics.Gauge("kvcove_owner_lease_seconds",
                "seconds until the owner's lease ends and its memory is not read any more",
                static_cast<double>(host.owner().memory().LeaseUntilNs() - clock.NowNs()) * 1e-9,
                labels);
  owner::CollectDisks(host.owner().disks(), metrics, labels);
  host.Collect(metrics, labels);
}

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
       .waits = true,
       .answer = [&host, &clock, text](const Request&) { return text(MetricsOf(host, clock)); }},
  };
  master::AddRoute(
      routes, "GET", "/v1/stat", /*waits=*/true,
      master::Taking({}, [&host](const Request&) -> Result<json> { return Stat(host); }));
  if (options.metrics_only) routes = http::MonitoringRoutes(routes);
  return http::Server::Open({.listener = std::move(options.listener),
                             .loopback = rpc::IsLoopback(options.address),
                             .authorize = rpc::BearersOf(std::move(options.credentials)),
                             .tunnel = rpc::TunnelOf(std::move(options.tls))},
                            std::move(routes));
}

}  // namespace kvcove::server
