// SPDX-License-Identifier: Apache-2.0
// The limits of a server and their use, as metrics and JSON for operators; the same at masters and
// owners. The JSON is a template, because an engine's library has this module and no JSON.
#pragma once

#include <string>

#include "kvcove/base/metrics.h"
#include "kvcove/rpc/call_limits.h"

namespace kvcove::rpc {

// Adds the metrics. `prefix`: the module, such as "kvcove_master".
void CollectLoad(Metrics& metrics, const std::string& prefix, const CallLimits::Stat& load);

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
