// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_shared.h"

#include <algorithm>

namespace kvcove::owner {

DiskShared::DiskShared(const segment::TierTable& table, const DemotionOptions& demotions,
                       const DiskQuotas& of_disks, std::int64_t now_ns)
    : tags(table),
      quotas(of_disks.begin(), of_disks.end()),
      rules(
          [&] {
            DemotionOptions options = demotions;
            for (const auto& [name, quota] : quotas) {
              options.share_rates.push_back(quota.write_rate);
            }
            return options;
          }(),
          now_ns) {}

disklog::ShareNumber DiskShared::ShareOf(std::string_view name) const {
  // All namespaces of a tenant are one share, as in memory (owner/core/spaces.h).
  const std::string_view tenant = TenantOf(name);
  const std::string of = tenant.empty() ? std::string(name) : QualifiedName(tenant, "");
  const auto at = std::ranges::find(quotas, of, &std::pair<std::string, DiskQuota>::first);
  return at == quotas.end() ? disklog::kNoShare
                            : static_cast<disklog::ShareNumber>(at - quotas.begin());
}

}  // namespace kvcove::owner
