// SPDX-License-Identifier: Apache-2.0
// What all disks of an owner have in common: the table of what they hold, which look-ups read, and
// the rules of what goes down.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/disklog/shares.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/disk/demotion_rules.h"
#include "kvcove/owner/disk/disk_shares.h"
#include "kvcove/segment/tier_table.h"

namespace kvcove::owner {

// The table as the disks' threads write it, and the owner under its lock. Thread-safe; it holds its
// lock for a moment.
class TierTags {
 public:
  explicit TierTags(const segment::TierTable& table) : table_(table), switch_(table) {}
  // Once, before anything else but SetOff: it is empty. `seed`: of all disks' hashes.
  void Begin(std::uint64_t seed) {
    const MutexLock lock(mutex_);
    table_.Begin(seed);
    seed_ = seed;
  }
  std::uint64_t seed() const { return seed_; }
  bool Add(std::uint64_t tag) {
    const MutexLock lock(mutex_);
    return table_.Add(tag);
  }
  void Remove(std::uint64_t tag) {
    const MutexLock lock(mutex_);
    table_.Remove(tag);
  }
  void Clear(std::uint64_t shares) {
    for (std::optional<std::uint64_t> at = 0; at;) {
      const MutexLock lock(mutex_);
      at = table_.Clear(shares, *at);
    }
  }
  void SetOn(std::uint64_t shares) { switch_.SetOn(shares); }
  void SetOff(std::uint64_t shares) { switch_.SetOff(shares); }

 private:
  mutable Mutex mutex_;
  segment::TierTableWriter table_ KVCOVE_GUARDED_BY(mutex_);
  segment::TierTableWriter switch_;  // of the same table; for the one word that is atomic
  std::atomic<std::uint64_t> seed_{0};
};

class TierLoads;

// Keys that a disk's log removes under one hold of its lock.
inline constexpr std::size_t kRemovedAtOnce = 256;

struct DiskShared {
  DiskShared(const segment::TierTable& table, const DemotionOptions& demotions,
             const DiskQuotas& quotas, std::int64_t now_ns);
  TierTags tags;
  // What namespaces may have of all disks together, by share, and their names.
  const NamedQuotas quotas;
  disklog::ShareNumber ShareOf(std::string_view name) const;
  DemotionRules rules;                        // under the owner's lock
  std::atomic<std::int64_t> budget_bytes{0};  // of the write rate; negative: it is being paid off
  // Of all disks: a value that is promoted from one evicts to any of them. Filled before any thread
  // uses them.
  std::vector<TierLoads*> loads;
  Mutex promotion_mutex;  // before those of the disks
};

}  // namespace kvcove::owner
