// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/disk_shares.h"

#include <algorithm>

#include "kvcove/segment/tier_table.h"

namespace kvcove::owner {

DiskShares::DiskShares(const NamedQuotas& quotas)
    : quotas_(quotas), part_(segment::kTierShares), held_(quotas.size()) {}

// Divides first, so that no quota overflows.
std::uint64_t DiskShares::PartOf(std::uint64_t of_all_disks) const {
  return of_all_disks / segment::kTierShares * part_;
}

std::vector<std::uint64_t> DiskShares::ReadRates() const {
  std::vector<std::uint64_t> rates;
  for (const auto& [name, quota] : quotas_) {
    // A small rate must not become 0, which is any rate.
    const std::uint64_t rate = quota.read_rate;
    rates.push_back(rate == 0 ? 0 : std::max<std::uint64_t>(PartOf(rate), 1));
  }
  return rates;
}

std::vector<disklog::ShareLimits> DiskShares::Limits() const {
  std::vector<disklog::ShareLimits> limits;
  for (const auto& [name, quota] : quotas_) {
    const bool bounded = quota.maximum_bytes != DiskQuota().maximum_bytes;
    limits.push_back({.maximum_bytes = bounded ? PartOf(quota.maximum_bytes) : quota.maximum_bytes,
                      .guaranteed_bytes = PartOf(quota.guaranteed_bytes)});
  }
  return limits;
}

bool DiskShares::Beyond(disklog::ShareNumber share, std::uint64_t bytes) const {
  const std::uint64_t maximum = quotas_[share].second.maximum_bytes;
  return maximum != DiskQuota().maximum_bytes && bytes > PartOf(maximum);
}

// Ignores the figures of a log that was opened without shares.
void DiskShares::NoteHeld(std::vector<std::uint64_t> held) {
  if (held.size() == held_.size()) held_ = std::move(held);
}

}  // namespace kvcove::owner
