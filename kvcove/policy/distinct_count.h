// SPDX-License-Identifier: Apache-2.0
// Estimates how many different keys there were: HyperLogLog (Flajolet et al. 2007) with the
// estimator of Ertl (2017), which needs no correction for small or large counts. The standard error
// is 1.6 %. 4 KiB; an addition reads and writes one byte.
//
// One caller at a time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace kvcove::policy {

class DistinctCount {
 public:
  // `hash`: all of its bits are random.
  void Add(std::uint64_t hash) {
    std::uint8_t& most = most_[hash >> (64 - kIndexBits)];
    const std::uint64_t rest = (hash << kIndexBits) | (std::uint64_t{1} << (kIndexBits - 1));
    const auto rank = static_cast<std::uint8_t>(std::countl_zero(rest) + 1);
    if (rank > most) most = rank;
  }
  // Never decreases from one call to the next.
  std::uint64_t Estimate() const;

 private:
  static constexpr int kIndexBits = 12;
  static constexpr int kMostRank = 64 - kIndexBits + 1;
  std::array<std::uint8_t, std::size_t{1} << kIndexBits> most_{};  // the highest rank seen
};

}  // namespace kvcove::policy
