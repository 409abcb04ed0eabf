// SPDX-License-Identifier: Apache-2.0
// Keys that wait to be read from a disk, by share: a namespace or tenant with a quota of the disk
// is one, and all others together are one. Within a share they wait in the order of the calls.
//
//   which share is next:  of those that wait and are within their rate, the one that has read least
//                         since it began to wait
//
// So a share that asks for thousands of keys delays another one by one read, not by thousands. A
// share earns nothing while it asks for nothing. Pure: the caller gives the time, and serialises
// the calls. A call looks at each share once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "kvcove/disklog/shares.h"
#include "kvcove/owner/tier/rate_budget.h"

namespace kvcove::owner {

struct Load;

class LoadQueue {
 public:
  // `bytes_per_second`: by share; 0 is any rate.
  LoadQueue(std::span<const std::uint64_t> bytes_per_second, std::int64_t now_ns);
  void SetRates(std::span<const std::uint64_t> bytes_per_second, std::int64_t now_ns);

  void Push(std::shared_ptr<Load> load);
  // Returns the next load, or null: none waits, or those that wait are beyond their rates. The load
  // stays in the queue until Take.
  std::shared_ptr<Load> Next(std::int64_t now_ns);
  // Removes the load from the queue and charges its share for `bytes`. Does nothing if the load is
  // not the first of its share.
  void Take(const Load& load, std::uint64_t bytes);
  void clear();

  bool empty() const;
  // Returns true if some loads wait for nothing but their rate.
  bool paced(std::int64_t now_ns);
  std::size_t waiting(disklog::ShareNumber share) const { return Of(share).loads.size(); }
  std::uint64_t read_bytes(disklog::ShareNumber share) const { return Of(share).read_bytes; }
  // Returns the number of shares. The last one is that of all others.
  std::size_t shares() const { return shares_.size(); }
  // Returns the first load of a share, also beyond its rate, or null.
  std::shared_ptr<Load> First(std::size_t share) const {
    return shares_[share].loads.empty() ? nullptr : shares_[share].loads.front();
  }

 private:
  static constexpr std::int64_t kBurstSeconds = 1;

  struct Share {
    RateBudget budget;
    std::deque<std::shared_ptr<Load>> loads;
    std::uint64_t turn = 0;  // bytes read, and bytes that it let pass while it asked for nothing
    std::uint64_t read_bytes = 0;
  };
  std::size_t IndexOf(disklog::ShareNumber share) const {
    return share == disklog::kNoShare ? shares_.size() - 1 : share;
  }
  const Share& Of(disklog::ShareNumber share) const { return shares_[IndexOf(share)]; }

  std::vector<Share> shares_;  // the last one is that of all others
  std::uint64_t turn_ = 0;     // of the share that was served last
};

}  // namespace kvcove::owner
