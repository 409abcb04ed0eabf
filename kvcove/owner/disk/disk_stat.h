// SPDX-License-Identifier: Apache-2.0
// What a disk tier has done, of one disk or of all of an owner's.
#pragma once

#include "kvcove/base/metrics.h"
#include "kvcove/disklog/log.h"

namespace kvcove::owner {

struct TierStat {
  disklog::Space space;
  disklog::Counters log;
  std::uint64_t demoted = 0;        // handed to the log
  std::uint64_t demoted_bytes = 0;  // values
  std::uint64_t kept = 0;           // evicted, and on the disk already
  std::uint64_t not_worth = 0;      // evicted, and refused by the rule of admission
  std::uint64_t over_rate = 0;      // evicted beyond the write rate
  std::uint64_t over_share = 0;     // evicted beyond the maximum of the namespace or tenant
  std::uint64_t dropped_full = 0;   // evicted while the queue was full
  std::uint64_t dropped_other = 0;  // too large, fenced, failed, or the disk is set aside
  std::uint64_t promoted = 0;
  std::uint64_t promoted_bytes = 0;
  std::uint64_t load_misses = 0;  // reads that gave nothing, whatever the reason
  std::uint64_t load_timeouts = 0;
  std::uint64_t load_failed = 0;   // not read: an error of the device, or it is set aside
  std::uint64_t load_no_room = 0;  // in memory
  std::int64_t budget_bytes = 0;   // of the write rate; negative: it is being paid off
  bool aside = false;              // of several disks: one of them
  std::uint64_t asides = 0;
  std::int64_t retry_at_ns = 0;  // of one disk, while it is aside: not before; 0: never

  // Of another disk.
  TierStat& operator+=(const TierStat& more);
};

// How long the disk took.
struct TierTimes {
  Histogram reads;   // of a record
  Histogram writes;  // from a value's way into the log until it is on the device
};

}  // namespace kvcove::owner
