// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/disks_report.h"

#include <algorithm>
#include <string>

namespace kvcove::owner {
namespace {

double Number(std::uint64_t value) { return static_cast<double>(value); }

void CollectSpace(const TierStat& stat, const std::string& disk, Metrics& metrics) {
  const Labels in_tier = {{"tier", "disk"}, {"disk", disk}};
  const Labels labels = {{"disk", disk}};
  metrics.Gauge("kvcove_owner_capacity_bytes", "bytes that this owner gives to the pool, by tier",
                Number(stat.space.total_bytes), in_tier);
  metrics.Gauge("kvcove_owner_object_bytes", "bytes of stored values, by tier",
                Number(stat.space.live_bytes), in_tier);
  metrics.Gauge("kvcove_owner_objects", "values that are stored now, by tier",
                Number(stat.space.objects), in_tier);
  metrics.Gauge("kvcove_owner_index_bytes",
                "bytes of memory for the index and the keys of stored values, by tier",
                Number(stat.space.index_bytes), in_tier);
  metrics.Gauge("kvcove_owner_disk_free_zones", "zones of the disk that are empty",
                stat.space.free_zones, labels);
  metrics.Gauge("kvcove_owner_disk_lost_zones",
                "zones of the disk that are not used any more after an error",
                stat.space.lost_zones, labels);
  metrics.Gauge("kvcove_owner_disk_queued_bytes",
                "bytes of evicted values that wait to be written to the disk",
                Number(stat.space.queued_bytes), labels);
  metrics.Gauge("kvcove_owner_disk_aside", "1 while the disk is set aside, else 0",
                stat.aside ? 1 : 0, labels);
}

void CollectWrites(const TierStat& stat, const std::string& disk, Metrics& metrics) {
  const Labels labels = {{"disk", disk}};
  const auto evicted = [&](const char* outcome, std::uint64_t count) {
    metrics.Counter("kvcove_owner_disk_evicted_total",
                    "values that were evicted from memory, by what the disk did with them",
                    Number(count), {{"outcome", outcome}, {"disk", disk}});
  };
  evicted("written", stat.demoted);
  evicted("kept", stat.kept);
  evicted("not_worth", stat.not_worth);
  evicted("over_rate", stat.over_rate);
  evicted("over_share", stat.over_share);
  evicted("queue_full", stat.dropped_full);
  evicted("dropped", stat.dropped_other);
  metrics.Counter("kvcove_owner_disk_put_bytes_total",
                  "bytes of evicted values that were written to the disk",
                  Number(stat.demoted_bytes), labels);
  metrics.Counter(
      "kvcove_owner_disk_written_bytes_total",
      "bytes that were written to the device; divided by put_bytes: the write amplification",
      Number(stat.log.written_bytes), labels);
  metrics.Counter("kvcove_owner_disk_moved_total",
                  "objects that were written again because their zone was freed",
                  Number(stat.log.moved_objects), labels);
  metrics.Counter("kvcove_owner_disk_moved_bytes_total",
                  "bytes of records that were written again because their zone was freed",
                  Number(stat.log.moved_bytes), labels);
  metrics.Counter("kvcove_owner_disk_evictions_total",
                  "objects that were evicted from the disk with their zone",
                  Number(stat.log.dropped_objects), labels);
  metrics.Counter("kvcove_owner_disk_voided_total",
                  "objects on the disk whose generation ended, by a reset or because no engine "
                  "uses its version any more",
                  Number(stat.log.voided_objects), labels);
  metrics.Counter("kvcove_owner_disk_voided_bytes_total",
                  "bytes of records on the disk whose generation ended",
                  Number(stat.log.voided_bytes), labels);
}

void CollectReads(const TierStat& stat, const std::string& disk, Metrics& metrics) {
  const Labels labels = {{"disk", disk}};
  metrics.Counter("kvcove_owner_disk_hits_total",
                  "values that were promoted from the disk into memory", Number(stat.promoted),
                  labels);
  metrics.Counter("kvcove_owner_disk_hit_bytes_total",
                  "bytes of values that were promoted from the disk into memory",
                  Number(stat.promoted_bytes), labels);
  metrics.Counter("kvcove_owner_disk_read_bytes_total", "bytes that were read from the device",
                  Number(stat.log.read_bytes), labels);
  const auto missed = [&](MissReason reason, std::uint64_t count) {
    metrics.Counter("kvcove_owner_disk_misses_total",
                    "keys that were on the disk and were not promoted, by reason", Number(count),
                    {{"reason", std::string(MissReasonName(reason))}, {"disk", disk}});
  };
  missed(MissReason::kDiskDamaged, stat.log.corrupt);
  missed(MissReason::kDiskFailed, stat.load_failed);
  missed(MissReason::kDiskTimeout, stat.load_timeouts);
  missed(MissReason::kNoRoom, stat.load_no_room);
  const auto errors = [&](const char* kind, std::uint64_t count) {
    metrics.Counter("kvcove_owner_disk_errors_total", "errors of the disk, by kind", Number(count),
                    {{"kind", kind}, {"disk", disk}});
  };
  errors("read", stat.log.read_errors);
  errors("write", stat.log.write_errors);
  errors("damaged", stat.log.corrupt);
  errors("set_aside", stat.asides);
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
                  "bytes on the disk that nobody takes from a namespace or tenant",
                  Number(limits.guaranteed_bytes), labels);
  }
}

DiskStat StatOf(const OwnerDisks& disks, std::size_t disk, const Clock& clock) {
  const TierStat tier = disks.set().StatOf(disk);
  const disklog::DiskSpec& spec = disks.options().disks[disk];
  // What could not be opened has no zones that could be counted.
  DiskStat stat{.path = spec.path,
                .capacity_bytes = tier.aside && tier.space.total_bytes == 0
                                      ? spec.size_bytes
                                      : tier.space.total_bytes,
                .bytes = tier.space.live_bytes,
                .objects = tier.space.objects,
                .queued_bytes = tier.space.queued_bytes,
                .aside = tier.aside ? 1ULL : 0ULL,
                .puts = tier.demoted,
                .put_bytes = tier.demoted_bytes,
                .written_bytes = tier.log.written_bytes,
                .hits = tier.promoted,
                .hit_bytes = tier.promoted_bytes,
                .misses = tier.load_misses,
                .read_errors = tier.log.read_errors,
                .write_errors = tier.log.write_errors,
                .damaged = tier.log.corrupt,
                .timeouts = tier.load_timeouts,
                .asides = tier.asides};
  // Of Tiering, not of the disk itself, which may be closed just now for an upgrade.
  const std::int64_t left_ns = tier.retry_at_ns - clock.NowNs();
  stat.retry_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(left_ns, 0) / kMillisecond);
  return stat;
}

}  // namespace

void AddDisks(const OwnerDisks& disks, const Clock& clock, wire::RenewRequest& report) {
  for (std::size_t i = 0; i < disks.set().size(); ++i) {
    const DiskStat disk = StatOf(disks, i, clock);
    ++report.disks;
    report.disks_aside += static_cast<std::uint32_t>(disk.aside);
    report.disk_capacity_bytes += disk.capacity_bytes;
    report.disk_bytes += disk.bytes;
  }
}

void AddDisks(const OwnerDisks& disks, const Clock& clock, PoolStat& stat) {
  if (disks.set().size() == 0) return;
  const TierStat tier = disks.set().Stat();
  stat.disk_bytes = tier.space.live_bytes;
  stat.disk_objects = tier.space.objects;
  stat.disk_queued_bytes = tier.space.queued_bytes;
  stat.disk_aside = tier.aside ? 1 : 0;
  stat.disk_puts = tier.demoted;
  stat.disk_put_bytes = tier.demoted_bytes;
  stat.disk_written_bytes = tier.log.written_bytes;
  stat.disk_kept = tier.kept;
  stat.disk_not_worth = tier.not_worth;
  stat.disk_over_rate = tier.over_rate;
  stat.disk_over_share = tier.over_share;
  stat.disk_dropped_full = tier.dropped_full;
  stat.disk_dropped_other = tier.dropped_other;
  stat.disk_evictions = tier.log.dropped_objects;
  stat.disk_hits = tier.promoted;
  stat.disk_hit_bytes = tier.promoted_bytes;
  stat.disk_misses = tier.load_misses;
  stat.disk_timeouts = tier.load_timeouts;
  stat.disk_failed = tier.load_failed;
  stat.disk_no_room = tier.load_no_room;
  stat.disk_asides = tier.asides;
  stat.disk_reads = tier.log.reads;
  stat.disk_read_bytes = tier.log.read_bytes;
  stat.disk_damaged = tier.log.corrupt;
  stat.disk_errors = tier.log.write_errors + tier.log.read_errors;
  for (std::size_t i = 0; i < disks.set().size(); ++i) {
    stat.disks.push_back(StatOf(disks, i, clock));
    stat.disk_capacity_bytes += stat.disks.back().capacity_bytes;
  }
  stat.disk_shares = disks.set().ShareStats();
}

void CollectDisks(const OwnerDisks& disks, Metrics& metrics) {
  if (disks.set().size() == 0) return;
  const DiskSet& set = disks.set();
  for (std::size_t i = 0; i < set.size(); ++i) {
    const std::string& disk = disks.options().disks[i].path;
    const TierStat stat = set.StatOf(i);
    CollectSpace(stat, disk, metrics);
    CollectWrites(stat, disk, metrics);
    CollectReads(stat, disk, metrics);
    CollectShares(set[i], set.common(), disk, metrics);
    const TierTimes& times = set[i].times();
    metrics.Histogram("kvcove_owner_disk_read_seconds",
                      "seconds that the read of a record from the disk took", times.reads,
                      {{"disk", disk}});
    metrics.Histogram("kvcove_owner_disk_write_seconds",
                      "seconds from the moment that an evicted value was appended to the log until "
                      "the device had it",
                      times.writes, {{"disk", disk}});
  }
  metrics.Gauge("kvcove_owner_disk_budget_bytes",
                "bytes that may be written now under --disk-write-rate; negative after a burst",
                static_cast<double>(set.Stat().budget_bytes));
}

}  // namespace kvcove::owner
