// SPDX-License-Identifier: Apache-2.0
// What namespaces and tenants may have of the disks, and which part of that is one disk's.
#include <algorithm>
#include <bit>

#include "kvcove/owner/disk/tiering.h"

namespace kvcove::owner {

std::vector<std::uint64_t> Tiering::ReadRates() const {
  std::vector<std::uint64_t> rates;
  const auto part = static_cast<std::uint64_t>(std::popcount(shares_.load()));
  for (const auto& [name, quota] : common_.quotas) {
    const std::uint64_t rate = quota.read_rate;
    rates.push_back(rate == 0 ? 0 : std::max<std::uint64_t>(rate / segment::kTierShares * part, 1));
  }
  return rates;
}

void Tiering::SetShares(std::uint64_t shares) {
  shares_ = shares;
  const MutexLock lock(mutex_);
  loads_.SetRates(ReadRates(), clock_.NowNs());
}

disklog::ShareNumber Tiering::ShareOf(SlotId slot) const {
  if (common_.quotas.empty()) return disklog::kNoShare;
  const auto known = slots_.find(slot);
  return known == slots_.end() ? disklog::kNoShare : common_.ShareOf(known->second.name);
}

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

// Keys are hashed over the disks, so a disk has its part of each namespace.
disklog::DiskShares Tiering::Shares() const {
  disklog::DiskShares shares;
  shares.of = [this](std::string_view name) { return common_.ShareOf(name); };
  const auto part = static_cast<std::uint64_t>(std::popcount(shares_.load()));
  const auto of = [&](std::uint64_t bytes) { return bytes / segment::kTierShares * part; };
  for (const auto& [name, quota] : common_.quotas) {
    shares.limits.push_back({.maximum_bytes = quota.maximum_bytes == DiskQuota().maximum_bytes
                                                  ? quota.maximum_bytes
                                                  : of(quota.maximum_bytes),
                             .guaranteed_bytes = of(quota.guaranteed_bytes)});
  }
  return shares;
}

bool Tiering::BeyondShare(const Demotion& demotion) const {
  if (demotion.share == disklog::kNoShare) return false;
  const std::uint64_t maximum = common_.quotas[demotion.share].second.maximum_bytes;
  if (maximum == DiskQuota().maximum_bytes) return false;
  const auto part = static_cast<std::uint64_t>(std::popcount(shares_.load()));
  return Held(demotion.share) + demotion.size_bytes > maximum / segment::kTierShares * part;
}

std::vector<std::uint64_t> Tiering::ReadByShare() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> read(held_.size());
  for (disklog::ShareNumber i = 0; i < read.size(); ++i) read[i] = loads_.read_bytes(i);
  return read;
}

std::vector<std::uint64_t> Tiering::HeldByShare() const {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> held(held_.size());
  for (disklog::ShareNumber i = 0; i < held.size(); ++i) held[i] = Held(i);
  return held;
}

}  // namespace kvcove::owner
