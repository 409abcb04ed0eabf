// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/expected_hits.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace kvcove::owner {
namespace {

// Of the processor, so that a busy host is not taken for much work.
std::int64_t ThreadTimeNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

}  // namespace

bool WorkBudget::Exceeded(std::int64_t now_ns) {
  const std::int64_t period_ns = now_ns - period_began_ns_;
  if (period_ns < kPeriodNs) return false;
  period_began_ns_ = now_ns;
  return static_cast<double>(std::exchange(spent_ns_, 0)) >
         kMostShare * static_cast<double>(period_ns);
}

Status ExpectedHits::Open(const std::string& policy, std::uint64_t payload_bytes,
                          std::uint64_t disk_bytes) {
  KVCOVE_ASSIGN(auto what_if,
                policy::WhatIf::Make({.policy = policy, .capacity_bytes = payload_bytes}));
  const MutexLock lock(mutex_);
  memory_ = std::move(what_if);
  if (disk_bytes > 0) disk_.emplace(policy::WhatIfDisk::Options{.capacity_bytes = disk_bytes});
  return {};
}

void ExpectedHits::Update(Memory& memory, std::int64_t now_ns) {
  const bool too_much = budget_.Exceeded(now_ns);
  std::uint64_t asked = 0;
  {
    const MutexLock lock(memory.mutex);
    asked = memory.core().asks().Take(accesses_);
  }
  if (asked == 0 && accesses_.empty()) return;
  unsigned shift = 0;
  {
    const MutexLock lock(mutex_);
    const std::int64_t began_ns = ThreadTimeNs();
    if (too_much) memory_->Thin();
    memory_->Apply(accesses_, asked);
    shift = memory_->shift();
    if (disk_) disk_->Apply(accesses_, asked, shift);
    budget_.Add(ThreadTimeNs() - began_ns);
  }
  if (shift == std::exchange(shift_, shift)) return;
  const MutexLock lock(memory.mutex);
  memory.core().asks().SetShift(shift);
}

void ExpectedHits::Add(PoolStat& stat) {
  const MutexLock lock(mutex_);
  const policy::WhatIfCounts counts = memory_->Read();
  stat.asked = counts.asked;
  static_assert(kExpectedSizes.size() == policy::kWhatIfSizes.size());
  for (std::size_t i = 0; i < counts.hits.size(); ++i) {
    stat.*kExpectedSizes[i].hits = counts.hits[i];
  }
  if (disk_) {
    const policy::WhatIfCounts together = disk_->Read();
    for (std::size_t i = 0; i < together.hits.size(); ++i) {
      stat.*kExpectedSizes[i].hits_with_disk = together.hits[i];
    }
  }
  // The core may have counted more since.
  stat.distinct = std::min(stat.distinct, counts.asked);
}

}  // namespace kvcove::owner
