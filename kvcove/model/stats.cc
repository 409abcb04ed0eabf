// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/stats.h"

#include <algorithm>
#include <utility>

namespace kvcove {
namespace {

constexpr std::uint64_t kHourMs = 3'600'000;

template <typename Stat, std::size_t count>
void AddAll(Stat& sum, const Stat& more, const std::array<DiskFigure<Stat>, count>& figures) {
  for (const DiskFigure<Stat>& figure : figures) sum.*figure.value += more.*figure.value;
}

std::optional<double> Ratio(std::uint64_t value, std::uint64_t divisor) {
  if (divisor == 0) return std::nullopt;
  return static_cast<double>(value) / static_cast<double>(divisor);
}

}  // namespace

DiskLogCounters& DiskLogCounters::operator+=(const DiskLogCounters& more) {
  AddAll(*this, more, kDiskLogFigures);
  return *this;
}

DiskStat& DiskStat::operator+=(const DiskStat& more) {
  AddAll(space, more.space, kDiskSpaceFigures);
  AddAll(log, more.log, kDiskLogFigures);
  AddAll(*this, more, kDiskTierFigures);
  counted_ms = std::max(counted_ms, more.counted_ms);
  return *this;
}

std::optional<double> DiskStat::write_amplification() const {
  return Ratio(log.written_bytes, demoted_bytes);
}
std::optional<double> DiskStat::read_amplification() const {
  return Ratio(log.read_bytes, promoted_bytes);
}
std::optional<double> DiskStat::served_per_written() const {
  return Ratio(promoted_bytes, log.written_bytes);
}
bool DiskStat::wears_for_nothing() const {
  return counted_ms >= kHourMs && space.total_bytes > 0 && log.written_bytes >= space.total_bytes &&
         served_per_written().value_or(0) < kLeastServed;
}
std::optional<double> DiskStat::tombstone_share() const {
  return Ratio(space.tombstone_bytes, space.total_bytes);
}
std::optional<double> DiskStat::written_bytes_per_day() const {
  if (counted_ms < kHourMs) return std::nullopt;
  return static_cast<double>(log.written_bytes) * 24 * kHourMs / static_cast<double>(counted_ms);
}

std::optional<double> PoolStat::expected_ratio(std::uint64_t PoolStat::* expected_hits) const {
  return Ratio(this->*expected_hits, asked);
}

std::optional<double> PoolStat::most_ratio() const {
  return Ratio(asked - std::min(asked, distinct), asked);
}

void PoolStat::AddDisk(DiskStat disk) {
  disk_capacity_bytes += disk.space.total_bytes;
  disk_bytes += disk.space.live_bytes;
  disk_objects += disk.space.objects;
  disk_queued_bytes += disk.space.queued_bytes;
  disk_aside += disk.aside;
  disk_puts += disk.demoted;
  disk_put_bytes += disk.demoted_bytes;
  disk_written_bytes += disk.log.written_bytes;
  disk_kept += disk.kept;
  disk_dropped_full += disk.dropped_full;
  disk_dropped_other += disk.dropped_other + disk.table_full;
  disk_evictions += disk.log.dropped_objects;
  disk_hits += disk.promoted;
  disk_hit_bytes += disk.promoted_bytes;
  disk_misses += disk.load_misses;
  disk_timeouts += disk.load_timeouts;
  disk_damaged += disk.log.corrupt;
  disk_errors += disk.log.read_errors + disk.log.write_errors;
  disk_not_worth += disk.not_worth;
  disk_over_rate += disk.over_rate;
  disk_asides += disk.asides;
  disk_reads += disk.log.reads;
  disk_read_bytes += disk.log.read_bytes;
  disk_failed += disk.load_failed;
  disk_no_room += disk.load_no_room;
  disk_over_share += disk.over_share;
  disks.push_back(std::move(disk));
}

}  // namespace kvcove
