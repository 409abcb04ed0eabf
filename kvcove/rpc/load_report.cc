// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/load_report.h"

namespace kvcove::rpc {

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

}  // namespace kvcove::rpc
