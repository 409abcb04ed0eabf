// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disks_report.h"

#include <string>

#include "kvcove/base/log.h"
#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

double Number(std::uint64_t value) { return static_cast<double>(value); }

void Collect(const DiskMetric& metric, std::uint64_t value, const std::string& disk,
             Metrics& metrics) {
  if (metric.name.empty()) return;
  Labels labels = {{"disk", disk}};
  if (!metric.label.empty()) labels.emplace(metric.label, metric.label_value);
  metrics.Add(std::string(metric.name), std::string(metric.help), Number(value), labels);
}

void CollectShares(const Tiering& tiering, const DiskShared& common, const std::string& disk,
                   Metrics& metrics) {
  const std::vector<ShareFigures> shares = tiering.ByShare();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Labels labels = {{"namespace", ReadableName(common.quotas[i].first)}, {"disk", disk}};
    metrics.Gauge("kvcove_owner_disk_share_bytes",
                  "bytes that a namespace or tenant with a quota has on the disk, or in its queue",
                  Number(shares[i].held_bytes), labels);
    metrics.Counter("kvcove_owner_disk_share_read_bytes_total",
                    "bytes that were read for a namespace or tenant with a quota",
                    Number(shares[i].read_bytes), labels);
    const disklog::ShareLimits& limits = shares[i].limits;
    if (limits.maximum_bytes != disklog::ShareLimits().maximum_bytes) {
      metrics.Gauge("kvcove_owner_disk_share_maximum_bytes",
                    "bytes that a namespace or tenant may have on the disk",
                    Number(limits.maximum_bytes), labels);
    }
    metrics.Gauge("kvcove_owner_disk_share_guaranteed_bytes",
                  "bytes on the disk that are guaranteed to a namespace or tenant",
                  Number(limits.guaranteed_bytes), labels);
  }
}

DiskStat StatOf(const OwnerDisks& disks, std::size_t disk) {
  const disklog::DiskSpec& spec = disks.options().disks[disk];
  DiskStat stat = disks.set()[disk].Stat();
  stat.path = spec.path;
  // A disk that could not be opened has no zones to count, so its configured size is reported.
  if (stat.aside != 0 && stat.space.total_bytes == 0) stat.space.total_bytes = spec.size_bytes;
  return stat;
}

}  // namespace

void AddDisks(const OwnerDisks& disks, wire::RenewRequest& report) {
  for (std::size_t i = 0; i < disks.set().size(); ++i) {
    const DiskStat disk = StatOf(disks, i);
    ++report.disks;
    report.disks_aside += static_cast<std::uint32_t>(disk.aside);
    report.disk_capacity_bytes += disk.space.total_bytes;
    report.disk_bytes += disk.space.live_bytes;
    report.disk_hits += disk.promoted;
    report.disk_hit_bytes += disk.promoted_bytes;
  }
}

Histogram::Counts DiskReadTimes(const OwnerDisks& disks) {
  Histogram::Counts all{};
  const DiskSet& set = disks.set();
  for (std::size_t i = 0; i < set.size(); ++i) {
    const Histogram::Counts one = set[i].log().times().reads.Count();
    for (std::size_t bucket = 0; bucket < all.size(); ++bucket) all[bucket] += one[bucket];
  }
  return all;
}

void WarnOfWear(const OwnerDisks& disks, std::vector<bool>& said) {
  said.resize(disks.set().size());
  for (std::size_t i = 0; i < said.size(); ++i) {
    const DiskStat disk = StatOf(disks, i);
    const bool wears = disk.wears_for_nothing();
    if (wears && !said[i]) {
      LogWarn(
          "disk {} costs more than it brings: {} were written in {} h, and {} served; use "
          "--disk-admit policy, a larger disk, or none (docs/ssd.md, 'What the tier is worth')",
          disk.path, FormatSize(disk.log.written_bytes), disk.counted_ms / 3'600'000,
          FormatSize(disk.promoted_bytes));
    }
    said[i] = wears;
  }
}

void AddDisks(const OwnerDisks& disks, PoolStat& stat) {
  if (disks.set().size() == 0) return;
  for (std::size_t i = 0; i < disks.set().size(); ++i) stat.AddDisk(StatOf(disks, i));
  stat.disk_shares = disks.set().ShareStats();
}

void CollectDisks(const OwnerDisks& disks, Metrics& metrics, const Labels& labels) {
  if (disks.set().size() == 0) return;
  const DiskSet& set = disks.set();
  for (std::size_t i = 0; i < set.size(); ++i) {
    const std::string& disk = disks.options().disks[i].path;
    const DiskStat stat = StatOf(disks, i);
    ForEachFigure(stat, [&](const auto& figure, std::uint64_t value) {
      Collect(figure.metric, value, disk, metrics);
      Collect(figure.second, value, disk, metrics);
    });
    metrics.Gauge("kvcove_owner_disk_wears_for_nothing",
                  "1 while the disk has served less than a twentieth of what was written to it, in "
                  "an hour or more and once its size or more",
                  stat.wears_for_nothing() ? 1 : 0, {{"disk", disk}});
    CollectShares(set[i], set.common(), disk, metrics);
    const TierTimes& times = set[i].log().times();
    metrics.Histogram("kvcove_owner_disk_read_seconds", "how long reads of a record took",
                      times.reads, {{"disk", disk}});
    metrics.Histogram("kvcove_owner_disk_write_seconds",
                      "seconds from the moment that an evicted value was appended to the log until "
                      "the device had it",
                      times.writes, {{"disk", disk}});
  }
  metrics.Gauge(
      "kvcove_owner_disk_budget_bytes",
      "bytes that may be written now under --disk-write-rate; negative while a burst is paid off",
      static_cast<double>(set.common().budget_bytes.load(std::memory_order_relaxed)), labels);
}

}  // namespace kvcove::owner
