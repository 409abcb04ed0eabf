// SPDX-License-Identifier: Apache-2.0
// Estimates, while an owner runs, what memory of other sizes would have found: takes from the core
// which objects are asked for, and replays them against policy::WhatIf without the core's lock.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/clock.h"
#include "kvcove/base/mutex.h"
#include "kvcove/model/stats.h"
#include "kvcove/owner/memory/memory.h"
#include "kvcove/policy/what_if.h"
#include "kvcove/policy/what_if_disk.h"

namespace kvcove::owner {

// Tells whether background work takes too much of a core. Pure; belongs to one thread.
class WorkBudget {
 public:
  static constexpr double kMostShare = 0.05;
  static constexpr std::int64_t kPeriodNs = 10 * kSecond;

  void Add(std::int64_t spent_ns) { spent_ns_ += spent_ns; }
  // Returns true, once for each period, if the work of the period that has ended was more than
  // kMostShare of it. Begins the next period then.
  bool Exceeded(std::int64_t now_ns);

 private:
  std::int64_t period_began_ns_ = 0;
  std::int64_t spent_ns_ = 0;
};

class ExpectedHits {
 public:
  // Call once, before any other function. Errors: kInvalid for an unknown policy.
  // `disk_bytes`: of all disks together; 0: there is none.
  Status Open(const std::string& policy, std::uint64_t payload_bytes, std::uint64_t disk_bytes)
      KVCOVE_EXCLUDES(mutex_);
  // Takes what was asked for since the last call, and estimates. Belongs to one thread. Samples
  // half as many objects, for good, each time that its WorkBudget is exceeded.
  void Update(Memory& memory, std::int64_t now_ns) KVCOVE_EXCLUDES(mutex_);
  // Sets the estimates as of the last Update.
  void Add(PoolStat& stat) KVCOVE_EXCLUDES(mutex_);

 private:
  // Of Update alone:
  std::vector<policy::Access> accesses_;  // kept for its capacity
  unsigned shift_ = 0;                    // as the core has it
  WorkBudget budget_;                     // of the thread's processor time

  Mutex mutex_;  // taken alone
  std::unique_ptr<policy::WhatIf> memory_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<policy::WhatIfDisk> disk_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::owner
