// SPDX-License-Identifier: Apache-2.0
// The last hour of a pool, for the page of its admin endpoint: one point for each 10 s, 360 of
// them, in a ring of a fixed size (85 KiB). A point has what was counted since the one
// before, so that a process which starts anew, and counts from zero, makes no point wrong.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/master/server/admin_pool.h"

namespace kvcove::master {

// Returns the time in microseconds that a part of the calls did not exceed, `part` between 0 and 1,
// interpolated within a bucket; 0: there were no calls.
std::uint32_t QuantileUs(const Histogram::Counts& calls, double part);

// Thread-safe.
class PageHistory {
 public:
  static constexpr std::size_t kPoints = 360;
  static constexpr std::int64_t kIntervalNs = 10 * kSecond;
  static constexpr std::size_t kCalls = 9;  // those that AdminPool::Counts has beyond are left out

  struct Call {
    std::uint32_t count = 0;
    std::uint32_t p50_us = 0;
    std::uint32_t p99_us = 0;
  };
  struct Point {
    std::int64_t time_s = 0;  // its end, by the clock of the samples
    double seconds = 0;       // that it covers
    std::uint64_t hits = 0;   // values read
    std::uint64_t disk_hits = 0;
    std::uint64_t down_bytes = 0;  // read from owners' memory
    std::uint64_t up_bytes = 0;    // stored there
    std::uint32_t resets_not_proven = 0;
    std::array<std::uint32_t, kMissReasons> misses{};  // keys
    std::array<Call, kCalls> calls{};

    std::uint64_t missed() const;
    // Returns the share of hits among what was asked for; below 0: nothing was.
    double HitRatio() const;
  };

  // Returns whether the last sample is old enough for another one.
  bool Due(std::int64_t now_ns) const;
  // Takes a sample. The first one makes no point.
  void Add(const std::vector<wire::OwnerStat>& owners, const AdminPool::Counts& counts,
           std::int64_t now_ns);

  struct Points {
    std::uint64_t first = 0;  // the number of the first one; points are numbered from 0
    std::vector<Point> points;
  };
  // Returns the points with this number and later ones, the oldest first. All that there are for a
  // number that is too low, or, as after a restart, too high.
  Points Since(std::uint64_t number) const;

 private:
  struct OwnerCounts {
    std::uint32_t epoch = 0;
    std::uint64_t hits = 0;
    std::uint64_t disk_hits = 0;
    std::uint64_t down_bytes = 0;
    std::uint64_t up_bytes = 0;
  };

  mutable Mutex mutex_;
  std::vector<Point> ring_ KVCOVE_GUARDED_BY(mutex_) = std::vector<Point>(kPoints);
  std::uint64_t added_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::int64_t last_ns_ KVCOVE_GUARDED_BY(mutex_) = 0;  // 0: there was no sample
  // Of the last sample. An owner's counters are compared one by one: a sum would decrease with
  // each owner that ends.
  std::map<wire::OwnerNumber, OwnerCounts> owners_ KVCOVE_GUARDED_BY(mutex_);
  AdminPool::Counts counts_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::master
