// SPDX-License-Identifier: Apache-2.0
// The statistics of an owner's disks, and tables of their figures. A row of a table is all that
// a new figure needs beside its field and the place that counts it: the sum over several disks, the
// frame between an owner and `kvcove status`, `kvcove status --json` and /metrics are made of the
// rows. scripts/check_metrics.py compares the metrics with docs/metrics.md. A frame has the values
// of each table in its order, and builds of different ages read it: a new row goes to the end of
// its table.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvcove {

// One series of a metric; each series has the label `disk`, too. A metric whose name ends in _total
// is a counter, any other one a gauge.
struct DiskMetric {
  std::string_view name = {};  // empty: none
  std::string_view help = {};
  std::string_view label = {};  // tells the series of one metric apart; empty: there is one
  std::string_view label_value = {};

  static constexpr DiskMetric Evicted(std::string_view outcome) {
    return {"kvcove_owner_disk_evicted_total", "values that memory evicted, by outcome", "outcome",
            outcome};
  }
  static constexpr DiskMetric Missed(std::string_view reason) {
    return {"kvcove_owner_disk_misses_total", "keys on the disk that were not promoted, by reason",
            "reason", reason};
  }
  static constexpr DiskMetric Failed(std::string_view kind) {
    return {"kvcove_owner_disk_errors_total", "errors of the disk, by kind", "kind", kind};
  }
};

template <typename Stat>
struct DiskFigure {
  std::uint64_t Stat::* value;
  std::string_view key = {};  // in `kvcove status --json`; empty: it is not there
  DiskMetric metric = {};
  DiskMetric second = {};  // of a figure that two metrics show
};

// ---- what is on a disk now

struct DiskSpace {
  std::uint64_t total_bytes = 0;
  std::uint64_t live_bytes = 0;       // of records that can be found
  std::uint64_t dead_bytes = 0;       // the rest of what is written in zones that are in use
  std::uint64_t tombstone_bytes = 0;  // of tombstones that are needed; part of dead_bytes
  std::uint64_t objects = 0;
  std::uint64_t zones = 0;
  std::uint64_t free_zones = 0;
  std::uint64_t lost_zones = 0;  // that could not be freed: not used until the disk is formatted
  std::uint64_t index_bytes = 0;
  std::uint64_t queued_bytes = 0;
};

inline constexpr auto kDiskSpaceFigures = std::to_array<DiskFigure<DiskSpace>>({
    {&DiskSpace::total_bytes,
     "capacity_bytes",
     {"kvcove_owner_capacity_bytes", "memory that this host gives to the pool", "tier", "disk"}},
    {&DiskSpace::live_bytes,
     "bytes",
     {"kvcove_owner_object_bytes", "payload memory of stored values", "tier", "disk"}},
    {&DiskSpace::dead_bytes,
     "dead_bytes",
     {"kvcove_owner_disk_dead_bytes",
      "bytes on the disk that no value needs: values that ended, tombstones, padding"}},
    {&DiskSpace::tombstone_bytes,
     "tombstone_bytes",
     {"kvcove_owner_disk_tombstone_bytes",
      "bytes of tombstones on the disk that cover records of removed values"}},
    {&DiskSpace::objects,
     "objects",
     {"kvcove_owner_objects", "values that are stored", "tier", "disk"}},
    {&DiskSpace::zones},
    {&DiskSpace::free_zones,
     "free_zones",
     {"kvcove_owner_disk_free_zones", "empty zones of the disk"}},
    {&DiskSpace::lost_zones,
     "lost_zones",
     {"kvcove_owner_disk_lost_zones", "zones that are not used after an error"}},
    {&DiskSpace::index_bytes,
     "index_bytes",
     {"kvcove_owner_index_bytes", "memory for the index and keys, beside the payload", "tier",
      "disk"}},
    {&DiskSpace::queued_bytes,
     "queued_bytes",
     {"kvcove_owner_disk_queued_bytes", "bytes of evicted values that are not written yet"}},
});

// ---- what a disk's log has counted since it was opened

struct DiskLogCounters {
  std::uint64_t put_objects = 0;
  std::uint64_t put_bytes = 0;      // keys and values that callers gave
  std::uint64_t written_bytes = 0;  // all bytes that were passed to the device, but superblocks
  std::uint64_t padding_bytes = 0;  // part of written_bytes: to a block's end, and between records
  std::uint64_t summary_bytes = 0;  // part of it: summaries, headers and trailers of zones
  std::uint64_t moved_objects = 0;
  std::uint64_t moved_bytes = 0;    // records that the cleaner copied to another zone
  std::uint64_t tombstones = 0;     // written for callers; not the cleaner's copies
  std::uint64_t refused_full = 0;   // puts that found the write queue full
  std::uint64_t refused_space = 0;  // puts that found no free zone
  std::uint64_t write_errors = 0;
  std::uint64_t read_errors = 0;
  std::uint64_t reads = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t corrupt = 0;  // reads whose record was not the one that was written
  std::uint64_t raced = 0;    // reads whose object ended meanwhile
  std::uint64_t syncs = 0;
  std::uint64_t zones_freed = 0;
  std::uint64_t zones_freed_unread = 0;  // part of zones_freed: no object in them was alive
  std::uint64_t zones_sealed = 0;
  std::uint64_t dropped_objects = 0;  // live objects that were dropped with their zone
  std::uint64_t voided_objects = 0;   // live objects whose generation ended
  std::uint64_t voided_bytes = 0;     // bytes of their records

  // Adds the counts of a log that was open before.
  DiskLogCounters& operator+=(const DiskLogCounters& more);
  // Returns the bytes written for each byte put.
  double write_amplification() const {
    return put_bytes == 0 ? 0 : static_cast<double>(written_bytes) / static_cast<double>(put_bytes);
  }
};

inline constexpr auto kDiskLogFigures = std::to_array<DiskFigure<DiskLogCounters>>({
    {&DiskLogCounters::put_objects},
    {&DiskLogCounters::put_bytes},
    {&DiskLogCounters::written_bytes,
     "written_bytes",
     {"kvcove_owner_disk_written_bytes_total",
      "bytes that were written to the device; divided by kvcove_owner_disk_put_bytes_total, the "
      "write amplification"}},
    {&DiskLogCounters::padding_bytes},
    {&DiskLogCounters::summary_bytes},
    {&DiskLogCounters::moved_objects,
     "moved",
     {"kvcove_owner_disk_moved_total",
      "objects that were written again, out of a zone that was freed"}},
    {&DiskLogCounters::moved_bytes,
     "moved_bytes",
     {"kvcove_owner_disk_moved_bytes_total", "bytes of records that were written again"}},
    {&DiskLogCounters::tombstones},
    {&DiskLogCounters::refused_full},
    {&DiskLogCounters::refused_space},
    {&DiskLogCounters::write_errors, "write_errors", DiskMetric::Failed("write")},
    {&DiskLogCounters::read_errors, "read_errors", DiskMetric::Failed("read")},
    {&DiskLogCounters::reads, "reads"},
    {&DiskLogCounters::read_bytes,
     "read_bytes",
     {"kvcove_owner_disk_read_bytes_total", "bytes that were read from the device"}},
    {&DiskLogCounters::corrupt, "damaged", DiskMetric::Failed("damaged"),
     DiskMetric::Missed("disk damaged")},
    {&DiskLogCounters::raced},
    {&DiskLogCounters::syncs},
    {&DiskLogCounters::zones_freed},
    {&DiskLogCounters::zones_freed_unread},
    {&DiskLogCounters::zones_sealed},
    {&DiskLogCounters::dropped_objects,
     "evictions",
     {"kvcove_owner_disk_evictions_total", "objects that were dropped with their zone"}},
    {&DiskLogCounters::voided_objects,
     "voided",
     {"kvcove_owner_disk_voided_total",
      "objects whose generation ended, by a reset or with a version that is given up"}},
    {&DiskLogCounters::voided_bytes,
     "voided_bytes",
     {"kvcove_owner_disk_voided_bytes_total", "bytes of records whose generation ended"}},
});

// ---- a disk of an owner, or the sum of several

struct DiskStat {
  std::string path;  // of one disk
  DiskSpace space;
  DiskLogCounters log;
  // Counted since the owner's start:
  std::uint64_t demoted = 0;        // handed to the log
  std::uint64_t demoted_bytes = 0;  // values
  std::uint64_t kept = 0;           // evicted, and on the disk already
  std::uint64_t not_worth = 0;      // evicted, and refused by the rule of admission
  std::uint64_t over_rate = 0;      // evicted beyond the write rate
  std::uint64_t over_share = 0;     // evicted beyond the maximum of the namespace or tenant
  std::uint64_t dropped_full = 0;   // evicted while the queue was full
  std::uint64_t table_full = 0;     // evicted without a place in the shared table
  std::uint64_t dropped_other = 0;  // too large, fenced, failed, or the disk is set aside
  std::uint64_t promoted = 0;
  std::uint64_t promoted_bytes = 0;
  std::uint64_t load_misses = 0;  // reads that gave nothing, whatever the reason
  std::uint64_t load_timeouts = 0;
  std::uint64_t load_failed = 0;   // not read: an error of the device, or it is set aside
  std::uint64_t load_no_room = 0;  // in memory
  std::uint64_t asides = 0;        // how often it was set aside
  // Now:
  std::uint64_t aside = 0;     // disks that are set aside
  std::uint64_t retry_ms = 0;  // of one disk: until it is tried again; 0: now, never, or not aside

  // How long the counts have been counted. The longest of several disks; 0: an owner of an earlier
  // version does not report it. An upgrade of the process begins all counts anew, this one too.
  std::uint64_t counted_ms = 0;

  // Adds the figures of another disk.
  DiskStat& operator+=(const DiskStat& more);

  // Figures to judge a disk by. None where the divisor is 0.
  // Bytes written to the device for each byte of evicted values that were stored.
  std::optional<double> write_amplification() const;
  // Bytes read from the device for each byte of promoted values.
  std::optional<double> read_amplification() const;
  // Bytes of promoted values for each byte written to the device: the gain for its wear.
  std::optional<double> served_per_written() const;
  // Returns whether it wears out for next to nothing: less than kLeastServed of what was written
  // was served. Never before an hour was counted, and the disk was written in full: a disk that
  // fills has nothing to serve.
  static constexpr double kLeastServed = 0.05;
  bool wears_for_nothing() const;
  // Share of the disk that needed tombstones occupy, 0 to 1.
  std::optional<double> tombstone_share() const;
  // At the rate since the counts began. None in their first hour: the load of a start would be
  // taken for that of a day.
  std::optional<double> written_bytes_per_day() const;
};

inline constexpr auto kDiskTierFigures = std::to_array<DiskFigure<DiskStat>>({
    {&DiskStat::demoted, "puts", DiskMetric::Evicted("written")},
    {&DiskStat::demoted_bytes,
     "put_bytes",
     {"kvcove_owner_disk_put_bytes_total", "bytes of evicted values that were written"}},
    {&DiskStat::kept, "kept", DiskMetric::Evicted("kept")},
    {&DiskStat::not_worth, "not_worth", DiskMetric::Evicted("not_worth")},
    {&DiskStat::over_rate, "over_rate", DiskMetric::Evicted("over_rate")},
    {&DiskStat::over_share, "over_share", DiskMetric::Evicted("over_share")},
    {&DiskStat::dropped_full, "dropped_full", DiskMetric::Evicted("queue_full")},
    {&DiskStat::table_full, "table_full", DiskMetric::Evicted("table_full")},
    {&DiskStat::dropped_other, "dropped_other", DiskMetric::Evicted("dropped")},
    {&DiskStat::promoted,
     "hits",
     {"kvcove_owner_disk_hits_total", "values that were promoted into memory"}},
    {&DiskStat::promoted_bytes,
     "hit_bytes",
     {"kvcove_owner_disk_hit_bytes_total", "bytes of values that were promoted into memory"}},
    {&DiskStat::load_misses, "misses"},
    {&DiskStat::load_timeouts, "timeouts", DiskMetric::Missed("disk timeout")},
    {&DiskStat::load_failed, "failed", DiskMetric::Missed("disk failed")},
    {&DiskStat::load_no_room, "no_room", DiskMetric::Missed("no room")},
    {&DiskStat::asides, "asides", DiskMetric::Failed("set_aside")},
    {&DiskStat::aside, "aside", {"kvcove_owner_disk_aside", "1 while the disk is set aside"}},
});

// A field without a row would be reported nowhere.
static_assert(sizeof(DiskSpace) == sizeof(std::uint64_t) * kDiskSpaceFigures.size());
static_assert(sizeof(DiskLogCounters) == sizeof(std::uint64_t) * kDiskLogFigures.size());
static_assert(sizeof(DiskStat) == sizeof(std::string) + sizeof(DiskSpace) +
                                      sizeof(DiskLogCounters) + sizeof(DiskStat::retry_ms) +
                                      sizeof(DiskStat::counted_ms) +
                                      sizeof(std::uint64_t) * kDiskTierFigures.size());

// Calls `each(row, value)` for every figure, in the order of the frame. `Stat`: DiskStat, const or
// not; `value` is a reference into it.
template <typename Stat, typename Each>
void ForEachFigure(Stat& disk, Each each) {
  for (const auto& figure : kDiskSpaceFigures) each(figure, disk.space.*figure.value);
  for (const auto& figure : kDiskLogFigures) each(figure, disk.log.*figure.value);
  for (const auto& figure : kDiskTierFigures) each(figure, disk.*figure.value);
}

}  // namespace kvcove
