// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/distinct_count.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace kvcove::policy {
namespace {

// Ertl's sigma: x + the sum over k >= 1 of x^(2^k) 2^(k - 1).
double Sigma(double x) {
  if (x == 1) return std::numeric_limits<double>::infinity();
  double sum = x;
  double factor = 1;
  for (double before = -1; sum != before; factor += factor) {
    before = sum;
    x *= x;
    sum += x * factor;
  }
  return sum;
}

// Ertl's tau: (1 - x - the sum over k >= 1 of (1 - x^(2^-k))^2 2^-k) / 3.
double Tau(double x) {
  if (x == 0 || x == 1) return 0;
  double sum = 1 - x;
  double factor = 1;
  for (double before = -1; sum != before;) {
    before = sum;
    x = std::sqrt(x);
    factor /= 2;
    sum -= (1 - x) * (1 - x) * factor;
  }
  return sum / 3;
}

}  // namespace

std::uint64_t DistinctCount::Estimate() const {
  const auto places = static_cast<double>(most_.size());
  std::array<double, kMostRank + 1> with_rank{};
  for (const std::uint8_t rank : most_) ++with_rank[rank];
  double sum = places * Tau(1 - with_rank[kMostRank] / places);
  for (int rank = kMostRank - 1; rank >= 1; --rank) {
    sum = (sum + with_rank[static_cast<std::size_t>(rank)]) / 2;
  }
  sum += places * Sigma(with_rank[0] / places);
  return static_cast<std::uint64_t>(std::lround(places * places / (2 * std::numbers::ln2 * sum)));
}

}  // namespace kvcove::policy
