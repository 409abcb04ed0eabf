// SPDX-License-Identifier: Apache-2.0
// The limits of a server and their use, as metrics and JSON for operators; the same at masters and
// owners. Templates, because this module knows neither metrics nor JSON.
#pragma once

#include <string>

#include "kvcove/rpc/call_limits.h"

namespace kvcove::rpc {

// Adds the metrics. `metrics`: Metrics. `prefix`: the module, such as "kvcove_master".
template <typename Metrics>
void CollectLoad(Metrics& metrics, const std::string& prefix, const CallLimits::Stat& load) {
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  for (std::size_t i = 1; i < kRefusals; ++i) {
    metrics.Counter(prefix + "_refused_calls_total",
                    "calls that were answered \"busy, ask again\", by the limit that they exceeded",
                    number(load.refused[i]),
                    {{"reason", std::string(RefusalName(static_cast<Refusal>(i)))}});
  }
  metrics.Gauge(prefix + "_bytes_in_flight", "bytes of requests and answers that are under way",
                number(load.bytes));
  metrics.Counter(prefix + "_reserved_calls_total",
                  "calls of owners and administrators, for which a part of the limits is reserved",
                  number(load.reserved_calls));
  for (const CallLimits::TenantStat& tenant : load.tenants) {
    metrics.Gauge(prefix + "_tenant_connections", "open connections of a tenant",
                  number(tenant.connections), {{"tenant", tenant.tenant}});
    metrics.Gauge(prefix + "_tenant_bytes_in_flight",
                  "bytes of a tenant's requests and answers that are under way",
                  number(tenant.bytes), {{"tenant", tenant.tenant}});
    metrics.Counter(prefix + "_tenant_refused_calls_total",
                    "calls of a tenant that were answered \"busy\"", number(tenant.refused),
                    {{"tenant", tenant.tenant}});
    metrics.Gauge(prefix + "_tenant_limited", "1 while calls of the tenant are refused",
                  tenant.limited ? 1 : 0, {{"tenant", tenant.tenant}});
  }
}

// Returns the tenants whose calls were refused within the last second, with their limits (0: none).
// `Json`: nlohmann::json.
template <typename Json>
Json LimitedTenants(const CallLimits::Stat& load) {
  Json list = Json::array();
  for (const CallLimits::TenantStat& tenant : load.tenants) {
    if (!tenant.limited) continue;
    list.push_back({{"tenant", tenant.tenant},
                    {"connections", tenant.connections},
                    {"bytes_in_flight", tenant.bytes},
                    {"refused_calls", tenant.refused},
                    {"calls_per_second_limit", tenant.limit.calls_per_second},
                    {"bytes_in_flight_limit", tenant.limit.bytes},
                    {"connections_limit", tenant.limit.connections}});
  }
  return list;
}

// Returns the numbers of refused calls, by the limit that they exceeded.
template <typename Json>
Json RefusedCalls(const CallLimits::Stat& load) {
  Json refused = Json::object();
  for (std::size_t i = 1; i < kRefusals; ++i) {
    refused[std::string(RefusalName(static_cast<Refusal>(i)))] = load.refused[i];
  }
  return refused;
}

}  // namespace kvcove::rpc
