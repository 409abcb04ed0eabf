// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/expected_hits.h"

#include <time.h>

#include <algorithm>
#include <span>
#include <utility>

#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

// Of the processor, so that a busy host is not taken for much work.
std::int64_t ThreadTimeNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

constexpr std::size_t kAccessesAtOnce = 64;  // accesses: some 0.2 ms where each is sampled
constexpr std::int64_t kMostAtOnceNs = kMillisecond;
constexpr std::int64_t kRestForWork = 4;  // ns of rest for each of work

constexpr std::uint64_t kBytesASampledObject = 8 * kKiB;
constexpr std::size_t kLeastSampled = 1024;
constexpr std::size_t kMostSampled = 32'768;

}  // namespace

bool WorkBudget::Exceeded(std::int64_t now_ns) {
  const std::int64_t period_ns = now_ns - period_began_ns_;
  if (period_ns < kPeriodNs) return false;
  period_began_ns_ = now_ns;
  return static_cast<double>(std::exchange(spent_ns_, 0)) >
         kMostShare * static_cast<double>(period_ns);
}

std::size_t ExpectedHits::MostSampled(std::uint64_t payload_bytes) {
  return std::clamp<std::size_t>(payload_bytes / kBytesASampledObject, kLeastSampled, kMostSampled);
}

Status ExpectedHits::Open(const std::string& policy, std::uint64_t payload_bytes,
                          std::uint64_t disk_bytes) {
  const std::size_t most_sampled = MostSampled(payload_bytes);
  KVCOVE_ASSIGN(auto what_if, policy::WhatIf::Make({.policy = policy,
                                                    .capacity_bytes = payload_bytes,
                                                    .most_sampled = most_sampled}));
  const MutexLock lock(mutex_);
  memory_ = std::move(what_if);
  if (disk_bytes > 0) {
    disk_.emplace(
        policy::WhatIfDisk::Options{.capacity_bytes = disk_bytes, .most_sampled = most_sampled});
  }
  return {};
}

bool ExpectedHits::Update(Memory& memory, std::int64_t now_ns) {
  if (now_ns < rest_until_ns_) return true;
  bool too_much = budget_.Exceeded(now_ns);
  if (applied_ == accesses_.size()) {
    applied_ = 0;
    const MutexLock lock(memory.mutex);
    asked_ = memory.core_for_janitor().asks().Take(accesses_);
    too_much |= accesses_.size() >= Asks::kMostNoted;
  }
  if (asked_ == 0 && accesses_.empty()) return false;
  unsigned shift = 0;
  {
    const MutexLock lock(mutex_);
    const std::int64_t began_ns = ThreadTimeNs();
    std::int64_t spent_ns = 0;
    if (too_much) memory_->Thin();
    do {
      const std::span<const policy::Access> slice(
          accesses_.data() + applied_, std::min(kAccessesAtOnce, accesses_.size() - applied_));
      applied_ += slice.size();
      // With the last slice: before, the estimate would take what was not sampled yet for hits.
      const std::uint64_t asked = applied_ == accesses_.size() ? std::exchange(asked_, 0) : 0;
      memory_->Apply(slice, asked);
      shift = memory_->shift();
      if (disk_) disk_->Apply(slice, asked, shift);
      spent_ns = ThreadTimeNs() - began_ns;
    } while (applied_ < accesses_.size() && spent_ns < kMostAtOnceNs);
    budget_.Add(spent_ns);
    rest_until_ns_ = now_ns + (1 + kRestForWork) * spent_ns;
  }
  if (shift != std::exchange(shift_, shift)) {
    const MutexLock lock(memory.mutex);
    memory.core_for_janitor().asks().SetShift(shift);
  }
  return applied_ < accesses_.size();
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
  // What a size has is no first question. The count of different values is off by one or two
  // percent of them, and may have more since: memory of any size would find less than of this one.
  std::uint64_t hits = 0;
  for (const ExpectedSize& size : kExpectedSizes) {
    hits = std::max({hits, stat.*size.hits, stat.*size.hits_with_disk});
  }
  stat.distinct = std::min(stat.distinct, counts.asked - std::min(counts.asked, hits));
}

}  // namespace kvcove::owner
