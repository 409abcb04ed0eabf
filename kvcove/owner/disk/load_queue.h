// SPDX-License-Identifier: Apache-2.0
// Keys that wait to be read from a disk, in the order in which they were asked for, by share: a
// namespace or tenant with a quota of the disk is one, and all others together are one.
//
//   which share comes next:  of those that wait and are within their rate, the one that has read
//                            least since it began to wait
//
// So a share that asks for thousands of keys delays another one by one read, not by thousands. Time
// in which a share asks for nothing earns it nothing. Pure: the caller gives the time, and
// serialises the calls. A call looks at each share once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/disklog/shares.h"
#include "kvcove/owner/disk/rate_budget.h"

namespace kvcove::owner {

struct Load;

class LoadQueue {
 public:
  // `bytes_per_second`: by share; 0 is any rate.
  LoadQueue(std::span<const std::uint64_t> bytes_per_second, std::int64_t now_ns);
  void SetRates(std::span<const std::uint64_t> bytes_per_second, std::int64_t now_ns);

  void Push(std::shared_ptr<Load> load);
  // The next one, or null: none waits, or those that wait are beyond their rates. It stays until
  // Take.
  std::shared_ptr<Load> Next(std::int64_t now_ns);
  // It waits no more, and `bytes` are read for it. Nothing if it is not the first of its share.
  void Take(const Load& load, std::uint64_t bytes);
  void clear();

  bool empty() const;
  // Some wait for nothing but their rate.
  bool paced(std::int64_t now_ns);
  std::size_t waiting(disklog::ShareNumber share) const { return Of(share).loads.size(); }
  std::uint64_t read_bytes(disklog::ShareNumber share) const { return Of(share).read_bytes; }
  // With the one of all others, which is the last one.
  std::size_t shares() const { return shares_.size(); }
  // The first one of a share, or null, whether or not it is within its rate.
  std::shared_ptr<Load> First(std::size_t share) const {
    return shares_[share].loads.empty() ? nullptr : shares_[share].loads.front();
  }

 private:
  static constexpr std::int64_t kBurstSeconds = 1;

  struct Share {
    RateBudget budget;
    std::deque<std::shared_ptr<Load>> loads;
    std::uint64_t turn = 0;  // what it has read, and what it has let pass by asking for nothing
    std::uint64_t read_bytes = 0;
  };
  std::size_t IndexOf(disklog::ShareNumber share) const {
    return share == disklog::kNoShare ? shares_.size() - 1 : share;
  }
  const Share& Of(disklog::ShareNumber share) const { return shares_[IndexOf(share)]; }

  std::vector<Share> shares_;  // the last one: of all others
  std::uint64_t turn_ = 0;     // of the share that came last
};

}  // namespace kvcove::owner
