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
  // Returns how many objects an estimate for memory of this size follows: that of an owner with
  // little memory takes less, at the cost of its accuracy.
  static std::size_t MostSampled(std::uint64_t payload_bytes);

  // Call once, before any other function. Errors: kInvalid for an unknown policy.
  // `disk_bytes`: of all disks together; 0: there is none.
  Status Open(const std::string& policy, std::uint64_t payload_bytes, std::uint64_t disk_bytes)
      KVCOVE_EXCLUDES(mutex_);
  // Takes what was asked for since the last call, and estimates. Belongs to one thread, which has
  // other work: returns after a millisecond of it, and goes on in a later call, so that it never
  // takes more than a fifth of the thread's time. Samples half as many objects, for good, each time
  // that its WorkBudget is exceeded, or that the core's list was full. Returns whether a later call
  // has work even if nothing is asked for until then, or may have.
  bool Update(Memory& memory, std::int64_t now_ns) KVCOVE_EXCLUDES(mutex_);
  // Sets the estimates as of the last Update.
  void Add(PoolStat& stat) KVCOVE_EXCLUDES(mutex_);

 private:
  // Of Update alone:
  std::vector<policy::Access> accesses_;  // kept for its capacity
  std::size_t applied_ = 0;               // of them
  std::uint64_t asked_ = 0;               // together with them, as long as it is not applied
  std::int64_t rest_until_ns_ = 0;
  unsigned shift_ = 0;  // as the core has it
  WorkBudget budget_;   // of the thread's processor time

  Mutex mutex_;  // taken alone
  std::unique_ptr<policy::WhatIf> memory_ KVCOVE_GUARDED_BY(mutex_);
  std::optional<policy::WhatIfDisk> disk_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::owner
