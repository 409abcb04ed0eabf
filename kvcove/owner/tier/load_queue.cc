// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/load_queue.h"

#include <algorithm>
#include <utility>

#include "kvcove/owner/tier/disk_loads.h"

namespace kvcove::owner {

LoadQueue::LoadQueue(std::span<const std::uint64_t> bytes_per_second, std::int64_t now_ns) {
  for (const std::uint64_t rate : bytes_per_second) {
    shares_.push_back({.budget = RateBudget(rate, kBurstSeconds, now_ns), .loads = {}});
  }
  shares_.push_back({.budget = RateBudget(0, kBurstSeconds, now_ns), .loads = {}});
}

// The last share, of all others, has no rate.
void LoadQueue::SetRates(std::span<const std::uint64_t> bytes_per_second, std::int64_t now_ns) {
  for (std::size_t i = 0; i < bytes_per_second.size(); ++i) {
    shares_[i].budget = RateBudget(bytes_per_second[i], kBurstSeconds, now_ns);
  }
}

void LoadQueue::Push(std::shared_ptr<Load> load) {
  Share& share = shares_[IndexOf(load->share)];
  // A share that begins to wait starts level with the one served last: idle time earns it no lead.
  if (share.loads.empty()) share.turn = std::max(share.turn, turn_);
  share.loads.push_back(std::move(load));
}

std::shared_ptr<Load> LoadQueue::Next(std::int64_t now_ns) {
  Share* next = nullptr;
  for (Share& share : shares_) {
    if (share.loads.empty() || !share.budget.MaySpend(now_ns)) continue;
    if (next == nullptr || share.turn < next->turn) next = &share;
  }
  return next == nullptr ? nullptr : next->loads.front();
}

void LoadQueue::Take(const Load& load, std::uint64_t bytes) {
  Share& share = shares_[IndexOf(load.share)];
  if (share.loads.empty() || share.loads.front().get() != &load) return;
  share.loads.pop_front();
  // A load that ended without a read costs its share nothing.
  if (bytes == 0) return;
  share.budget.Spend(bytes);
  turn_ = share.turn;
  share.turn += bytes;
  share.read_bytes += bytes;
}

void LoadQueue::clear() {
  for (Share& share : shares_) share.loads.clear();
}

bool LoadQueue::empty() const {
  return std::ranges::all_of(shares_, [](const Share& share) { return share.loads.empty(); });
}

bool LoadQueue::paced(std::int64_t now_ns) {
  return std::ranges::any_of(shares_, [&](Share& share) {
    return !share.loads.empty() && !share.budget.MaySpend(now_ns);
  });
}

}  // namespace kvcove::owner
