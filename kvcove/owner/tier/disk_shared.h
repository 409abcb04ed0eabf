// SPDX-License-Identifier: Apache-2.0
// The state that all disks of an owner share: the table of their keys, which look-ups read, and the
// rules of demotion.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/disklog/shares.h"
#include "kvcove/owner/core/core_types.h"
#include "kvcove/owner/tier/demotion_rules.h"
#include "kvcove/owner/tier/disk_shares.h"
#include "kvcove/segment/tier_table.h"

namespace kvcove::owner {

// The shared table, as the disks' threads write it, and the owner under its lock. Thread-safe; a
// call holds the lock for a moment.
class TierTags {
 public:
  explicit TierTags(const segment::TierTable& table) : table_(table), switch_(table) {}
  // Begins with an empty table, once, before any call but SetOff. `seed`: of the hashes of all
  // disks.
  void Begin(std::uint64_t seed) {
    const MutexLock lock(mutex_);
    table_.Begin(seed);
    seed_ = seed;
  }
  std::uint64_t seed() const { return seed_; }

  // ---- for KV events
  struct Changes {
    std::vector<std::uint64_t> removed;
    // More tags were removed than are kept, or a disk is used from now on, or not any more.
    bool others = false;
  };
  // Keeps the tags that are removed, up to `at_most`, for TakeChanges. Call once, before any other
  // thread uses this.
  void Watch(std::size_t at_most) {
    const MutexLock lock(mutex_);
    kept_ = at_most;
  }
  // Returns the changes since the last call.
  Changes TakeChanges() {
    const MutexLock lock(mutex_);
    Changes changes{.removed = std::exchange(removed_, {}), .others = false};
    changes.others = others_.exchange(false);
    return changes;
  }

  bool Add(std::uint64_t tag) {
    const MutexLock lock(mutex_);
    return table_.Add(tag);
  }
  void Remove(std::uint64_t tag) {
    const MutexLock lock(mutex_);
    table_.Remove(tag);
    if (kept_ == 0) return;
    if (removed_.size() < kept_) {
      removed_.push_back(tag);
    } else {
      others_ = true;
    }
  }
  // Removes the tags of these shares, in steps, so that other disks get the lock in between.
  void Clear(std::uint64_t shares) {
    for (std::optional<std::uint64_t> at = 0; at;) {
      const MutexLock lock(mutex_);
      at = table_.Clear(shares, *at);
    }
  }
  void SetOn(std::uint64_t shares) {
    switch_.SetOn(shares);
    others_ = true;
  }
  void SetOff(std::uint64_t shares) {
    switch_.SetOff(shares);
    others_ = true;
  }

 private:
  mutable Mutex mutex_;
  segment::TierTableWriter table_ KVCOVE_GUARDED_BY(mutex_);
  segment::TierTableWriter switch_;     // of the same table; its one atomic word needs no lock
  std::atomic<std::uint64_t> seed_{0};  // set once; read without the lock
  std::size_t kept_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<std::uint64_t> removed_ KVCOVE_GUARDED_BY(mutex_);
  // Set after the disks have changed (sequentially consistent): a thread that reads true sees them
  // as they are.
  std::atomic<bool> others_{false};
};

class TierLoads;

// Most keys that one call removes from a disk's log.
inline constexpr std::size_t kRemovedAtOnce = 256;

struct DiskShared {
  DiskShared(const segment::TierTable& table, const DemotionOptions& demotions,
             const DiskQuotas& quotas, std::int64_t now_ns);
  TierTags tags;
  // The quotas of namespaces and tenants, of all disks together, by share.
  const NamedQuotas quotas;
  // Returns the share of a namespace; kNoShare: no quota applies.
  disklog::ShareNumber ShareOf(std::string_view name) const;
  DemotionRules rules;                        // under the owner's lock
  std::atomic<std::int64_t> budget_bytes{0};  // of the write rate; negative: it is being paid off
  // By disk: a value that is promoted from one disk may evict values to any. Filled before any
  // thread uses them.
  std::vector<TierLoads*> loads;
  // Called by a disk's thread, without a lock, after it has proven removals. Set before any thread
  // uses the disks; may be empty.
  std::function<void()> on_proven;
  Mutex promotion_mutex;  // before those of the disks
};

}  // namespace kvcove::owner
