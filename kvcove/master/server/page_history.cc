// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/page_history.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvcove::master {
namespace {

// Returns 0 for a counter that has begun anew.
std::uint64_t Increase(std::uint64_t now, std::uint64_t before) {
  return now >= before ? now - before : 0;
}

std::uint32_t Narrow(std::uint64_t value) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::uint32_t>::max()));
}

PageHistory::Call CallBetween(const Histogram::Counts& now, const Histogram::Counts& before) {
  Histogram::Counts since{};
  for (std::size_t i = 0; i < since.size(); ++i) since[i] = Increase(now[i], before[i]);
  return {.count = Narrow(std::accumulate(since.begin(), since.end(), std::uint64_t{0})),
          .p50_us = QuantileUs(since, 0.5),
          .p99_us = QuantileUs(since, 0.99)};
}

}  // namespace

std::uint32_t QuantileUs(const Histogram::Counts& calls, double part) {
  const auto all = static_cast<double>(std::accumulate(calls.begin(), calls.end(), 0ULL));
  double below = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto here = static_cast<double>(calls[i]);
    const double lower = i == 0 ? 0 : static_cast<double>(1ULL << (i - 1));
    if (here > 0 && below + here >= part * all) {
      if (i + 1 == calls.size()) return static_cast<std::uint32_t>(lower);  // it has no upper bound
      const double upper = static_cast<double>(1ULL << i);
      return static_cast<std::uint32_t>(lower + (upper - lower) * (part * all - below) / here);
    }
    below += here;
  }
  return 0;
}

std::uint64_t PageHistory::Point::missed() const {
  return std::accumulate(misses.begin(), misses.end(), std::uint64_t{0});
}

double PageHistory::Point::HitRatio() const {
  const auto asked = static_cast<double>(hits + missed());
  return asked == 0 ? -1 : static_cast<double>(hits) / asked;
}

bool PageHistory::Due(std::int64_t now_ns) const {
  const MutexLock lock(mutex_);
  return last_ns_ == 0 || now_ns - last_ns_ >= kIntervalNs;
}

void PageHistory::Add(const std::vector<wire::OwnerStat>& owners, const AdminPool::Counts& counts,
                      std::int64_t now_ns) {
  const MutexLock lock(mutex_);
  std::map<wire::OwnerNumber, OwnerCounts> sample;
  for (const wire::OwnerStat& owner : owners) {
    if (!owner.live) {
      // One that has joined has reported nothing until its lease begins: with zeros in its place,
      // all that it has counted would be in the next point.
      const auto before = owners_.find(owner.number);
      if (before != owners_.end()) sample.insert(*before);
      continue;
    }
    sample[owner.number] = {.epoch = owner.epoch,
                            .hits = owner.hits,
                            .disk_hits = owner.disk_hits,
                            .down_bytes = owner.hit_bytes,
                            .up_bytes = owner.put_bytes};
  }
  if (last_ns_ != 0) {
    Point point{.time_s = now_ns / kSecond,
                .seconds = static_cast<double>(now_ns - last_ns_) * 1e-9};
    for (const auto& [number, now] : sample) {
      const auto before = owners_.find(number);
      if (before == owners_.end() || before->second.epoch != now.epoch) continue;
      point.hits += Increase(now.hits, before->second.hits);
      point.disk_hits += Increase(now.disk_hits, before->second.disk_hits);
      point.down_bytes += Increase(now.down_bytes, before->second.down_bytes);
      point.up_bytes += Increase(now.up_bytes, before->second.up_bytes);
    }
    point.resets_not_proven = Narrow(Increase(counts.resets_not_proven, counts_.resets_not_proven));
    for (std::size_t i = 0; i < kMissReasons; ++i) {
      point.misses[i] = Narrow(Increase(counts.misses[i], counts_.misses[i]));
    }
    for (std::size_t i = 0; i < std::min({counts.calls.size(), counts_.calls.size(), kCalls});
         ++i) {
      point.calls[i] = CallBetween(counts.calls[i].second, counts_.calls[i].second);
    }
    ring_[added_++ % kPoints] = point;
  }
  last_ns_ = now_ns;
  owners_ = std::move(sample);
  counts_ = counts;
}

PageHistory::Points PageHistory::Since(std::uint64_t number) const {
  const MutexLock lock(mutex_);
  const std::uint64_t oldest = added_ - std::min<std::uint64_t>(added_, kPoints);
  Points answer{.first = number < oldest || number > added_ ? oldest : number, .points = {}};
  for (std::uint64_t i = answer.first; i < added_; ++i) {
    answer.points.push_back(ring_[i % kPoints]);
  }
  return answer;
}

}  // namespace kvcove::master
