// SPDX-License-Identifier: Apache-2.0
// What a pool says of itself and of its objects. Plain values; sizes are bytes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/model/disk_stat.h"
#include "kvcove/model/hints.h"
#include "kvcove/model/ids.h"

namespace kvcove {

// One process's tie to an owner; never reused.
using SessionNumber = std::uint64_t;

enum class PinKind : std::uint8_t { kSoft = 1, kHard = 2 };

// The longest time to live of a hard pin: it outlives the process that asked for it.
inline constexpr std::chrono::hours kLongestHardPin{24};
// The longest duration of a soft pin; a longer one counts as this.
inline constexpr std::chrono::milliseconds kLongestSoftPin{1'000'000'000};

struct ObjectStat {
  std::uint64_t size_bytes = 0;
  std::uint32_t extents = 0;  // pieces of the payload that the value lies in
  bool hard_pinned = false;
  bool soft_pinned = false;
  bool held = false;
};

struct NamespaceStat {
  std::string name;
  std::uint64_t bytes = 0;             // that its objects occupy
  std::uint64_t maximum_bytes = 0;     // its quota; 0: none
  std::uint64_t guaranteed_bytes = 0;  // others cannot evict below this
  NamespacePriority priority = NamespacePriority::kUnsaid;
};

// What a namespace or tenant with a quota or a bandwidth of the disks has there.
struct DiskShareStat {
  std::string name;
  std::uint64_t bytes = 0;  // also in queues
  std::uint64_t maximum_bytes = ~0ULL;
  std::uint64_t guaranteed_bytes = 0;
  std::uint64_t read_bytes = 0;  // that were read for it
  std::uint64_t read_rate = 0;   // bytes a second; 0: any rate
  std::uint64_t write_rate = 0;
};

struct SessionStat {
  SessionNumber number = 0;
  std::int32_t pid = 0;
  std::uint64_t protected_objects = 0;  // being read right now
  std::uint64_t reserved_bytes = 0;
  std::uint64_t held_bytes = 0;
};

// What sessions count in their shared pages.
struct SessionCounters {
  std::uint64_t lookups = 0;  // keys
  std::uint64_t gets = 0;     // values
  std::uint64_t get_bytes = 0;
  std::array<std::uint64_t, kMissReasons> misses{};  // keys, by reason
};

struct PoolStat {
  // Memory now:
  std::uint64_t payload_bytes = 0;
  std::uint64_t populated_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t object_bytes = 0;     // that objects occupy, whole granules
  std::uint64_t reserved_bytes = 0;   // being written
  std::uint64_t withdrawn_bytes = 0;  // gone, but still being read
  std::uint64_t index_bytes = 0;      // of memory beside the payload, keys included
  std::uint64_t objects = 0;
  // Counted since the owner's start:
  std::uint64_t puts = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t evictions = 0;
  std::uint64_t removals = 0;
  std::uint64_t swept = 0;           // objects of an older generation whose memory came back
  std::uint64_t stale_puts = 0;      // refused, as a reset came first
  std::uint64_t expired_puts = 0;    // never finished by the session that began them
  std::uint64_t dropped_events = 0;  // hits that the policy was not told
  // The disk tier: sums of `disks`. Now:
  std::uint64_t disk_capacity_bytes = 0;
  std::uint64_t disk_bytes = 0;  // of records that can be found
  std::uint64_t disk_objects = 0;
  std::uint64_t disk_queued_bytes = 0;  // evicted, and not written yet
  std::uint64_t disk_aside = 0;         // disks that failed, and are tried again from time to time
  // Since the owner's start:
  std::uint64_t disk_puts = 0;           // evicted values that went to the disk
  std::uint64_t disk_put_bytes = 0;      // their bytes
  std::uint64_t disk_written_bytes = 0;  // that the device was given, whatever they were
  std::uint64_t disk_kept = 0;           // evicted values that were on the disk already
  std::uint64_t disk_dropped_full = 0;   // evicted while the disk's queue was full
  // Evicted, and too large, without a place in the shared table, removed meanwhile, or failed.
  std::uint64_t disk_dropped_other = 0;
  std::uint64_t disk_evictions = 0;   // values that went with their zone
  std::uint64_t disk_hits = 0;        // values that came back into memory
  std::uint64_t disk_hit_bytes = 0;   // their bytes
  std::uint64_t disk_misses = 0;      // reads that gave nothing, whatever the reason
  std::uint64_t disk_timeouts = 0;    // keys whose read was not waited for any longer
  std::uint64_t disk_damaged = 0;     // records that were not what was written
  std::uint64_t disk_errors = 0;      // of the device
  std::uint64_t disk_not_worth = 0;   // evicted, and refused by --disk-admit
  std::uint64_t disk_over_rate = 0;   // evicted beyond --disk-write-rate
  std::uint64_t disk_asides = 0;      // how often it was set aside
  std::uint64_t disk_reads = 0;       // of the device
  std::uint64_t disk_read_bytes = 0;  // their blocks
  std::uint64_t disk_failed = 0;      // keys that it could not read, or had while it was aside
  std::uint64_t disk_no_room = 0;     // keys that memory had no room to bring up
  std::uint64_t disk_over_share = 0;  // evicted beyond a namespace's or tenant's --disk-quota
  // Of this host's own sessions; not in the message, for the owner's process only.
  SessionCounters local;
  std::vector<NamespaceStat> namespaces;
  std::vector<SessionStat> sessions;
  std::vector<DiskStat> disks;             // as they were named; add one with AddDisk
  std::vector<DiskShareStat> disk_shares;  // of all disks together
  // Of memory, since the owner's start:
  std::uint64_t resets = 0;        // generations that a reset or a prune replaced
  std::uint64_t voided = 0;        // objects whose generation ended, by a reset or otherwise
  std::uint64_t voided_bytes = 0;  // that they occupied, whole granules
  std::uint64_t refused_pins = 0;  // hard pins beyond half of the memory
  std::uint64_t ended_pins = 0;    // hard pins whose time to live was over
  std::uint64_t hit_bytes = 0;     // of `hits`
  // Of memory now:
  std::uint64_t pinned_bytes = 0;     // of hard-pinned values, whole granules
  std::uint64_t timed_pin_bytes = 0;  // of those whose pin has a time to live
  // Estimates since the process's start (policy/what_if.h). Of values that were asked for in
  // memory, those that were stored for want of them too, how many memory of another size would have
  // had.
  std::uint64_t asked = 0;
  std::uint64_t half_hits = 0;
  std::uint64_t same_hits = 0;
  std::uint64_t double_hits = 0;
  std::uint64_t quadruple_hits = 0;
  // The same of this memory with a disk of another size.
  std::uint64_t half_disk_hits = 0;
  std::uint64_t same_disk_hits = 0;
  std::uint64_t double_disk_hits = 0;
  std::uint64_t quadruple_disk_hits = 0;
  std::uint64_t distinct = 0;  // different values that were asked for

  // Adds a disk to `disks` and to the sums.
  void AddDisk(DiskStat disk);
  // Returns the part of `asked` that `hits` are, or that memory of any size would have had. None:
  // nothing was asked for.
  std::optional<double> expected_ratio(std::uint64_t PoolStat::* expected_hits) const;
  std::optional<double> most_ratio() const;
};

// The sizes whose hits are estimated.
struct ExpectedSize {
  std::uint64_t PoolStat::* hits;            // of memory of this size
  std::uint64_t PoolStat::* hits_with_disk;  // of this memory with a disk of this size
  std::string_view name;                     // in /metrics and JSON
  std::string_view text;
};
inline constexpr auto kExpectedSizes = std::to_array<ExpectedSize>({
    {&PoolStat::half_hits, &PoolStat::half_disk_hits, "half", "half as large"},
    {&PoolStat::same_hits, &PoolStat::same_disk_hits, "same", "as it is"},
    {&PoolStat::double_hits, &PoolStat::double_disk_hits, "double", "twice as large"},
    {&PoolStat::quadruple_hits, &PoolStat::quadruple_disk_hits, "quadruple", "four times"},
});

// A figure of an owner's memory. The frame between an owner and its host's processes, the sum over
// several owners, /metrics and /v1/stat are made of the rows. A metric whose name ends in _total is
// a counter, any other one a gauge. docs/metrics.md lists the metrics.
struct PoolFigure {
  std::uint64_t PoolStat::* value;
  std::string_view metric;
  std::string_view help;
  std::string_view tier = "memory";
  // Of one of several series of the metric: the value of its label `size`, and its name in
  // /v1/stat.
  std::string_view size = {};
  std::string_view name = {};
  // Returns the name in /v1/stat.
  constexpr std::string_view key() const {
    return name.empty() ? metric.substr(sizeof("kvcove_owner_") - 1) : name;
  }
};

inline constexpr auto kPoolFigures = std::to_array<PoolFigure>({
    {&PoolStat::payload_bytes, "kvcove_owner_capacity_bytes",
     "memory that this host gives to the pool"},
    {&PoolStat::populated_bytes, "kvcove_owner_populated_bytes",
     "payload memory whose pages are populated"},
    {&PoolStat::free_bytes, "kvcove_owner_free_bytes", "payload memory that is free"},
    {&PoolStat::object_bytes, "kvcove_owner_object_bytes", "payload memory of stored values"},
    {&PoolStat::reserved_bytes, "kvcove_owner_reserved_bytes",
     "payload memory of values that are being written"},
    {&PoolStat::withdrawn_bytes, "kvcove_owner_withdrawn_bytes",
     "payload memory of values that are gone, but still being read"},
    {&PoolStat::index_bytes, "kvcove_owner_index_bytes",
     "memory for the index and keys, beside the payload"},
    {&PoolStat::objects, "kvcove_owner_objects", "values that are stored"},
    {&PoolStat::puts, "kvcove_owner_puts_total", "values stored"},
    {&PoolStat::put_bytes, "kvcove_owner_put_bytes_total", "bytes of values stored"},
    {&PoolStat::hits, "kvcove_owner_hits_total", "values read"},
    {&PoolStat::evictions, "kvcove_owner_evictions_total", "values evicted to make room"},
    {&PoolStat::removals, "kvcove_owner_removals_total", "values removed"},
    {&PoolStat::resets, "kvcove_owner_resets_total",
     "generations that a reset or a prune replaced"},
    {&PoolStat::voided, "kvcove_owner_voided_total",
     "values whose generation ended, by a reset or with a version that is given up"},
    {&PoolStat::voided_bytes, "kvcove_owner_voided_bytes_total",
     "memory of values whose generation ended"},
    {&PoolStat::swept, "kvcove_owner_swept_total",
     "values of dead generations whose space came back"},
    {&PoolStat::stale_puts, "kvcove_owner_stale_puts_total",
     "puts rejected because they were begun before a reset or removal"},
    {&PoolStat::expired_puts, "kvcove_owner_expired_puts_total",
     "puts that took so long that others got their key"},
    {&PoolStat::dropped_events, "kvcove_owner_dropped_events_total", "hits that a full ring lost"},
    {&PoolStat::pinned_bytes, "kvcove_owner_pinned_bytes",
     "payload memory of values with a hard pin"},
    {&PoolStat::timed_pin_bytes, "kvcove_owner_timed_pin_bytes",
     "payload memory of values with a hard pin that has a time to live"},
    {&PoolStat::refused_pins, "kvcove_owner_refused_pins_total",
     "hard pins refused, as they have at most half of the memory"},
    {&PoolStat::ended_pins, "kvcove_owner_ended_pins_total",
     "hard pins whose time to live was over"},
    {&PoolStat::hit_bytes, "kvcove_owner_hit_bytes_total", "bytes of values read"},
    {&PoolStat::asked, "kvcove_owner_expected_asked_total",
     "values that were read from memory, or stored because nobody had them: the divisor of "
     "kvcove_owner_expected_hits_total"},
    {&PoolStat::distinct, "kvcove_owner_distinct_values",
     "different values that were asked for since the start, as estimated: memory of any size had "
     "missed each once"},
    {&PoolStat::half_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "memory", "half", "expected_half_hits"},
    {&PoolStat::same_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "memory", "same", "expected_same_hits"},
    {&PoolStat::double_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "memory", "double", "expected_double_hits"},
    {&PoolStat::quadruple_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "memory", "quadruple", "expected_quadruple_hits"},
    {&PoolStat::half_disk_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "disk", "half", "expected_half_disk_hits"},
    {&PoolStat::same_disk_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "disk", "same", "expected_same_disk_hits"},
    {&PoolStat::double_disk_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "disk", "double", "expected_double_disk_hits"},
    {&PoolStat::quadruple_disk_hits, "kvcove_owner_expected_hits_total",
     "values that memory, or memory with the disk, of this size would have had, as estimated from "
     "a sample",
     "disk", "quadruple", "expected_quadruple_disk_hits"},
});

}  // namespace kvcove
