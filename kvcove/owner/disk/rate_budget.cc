// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/rate_budget.h"

#include <algorithm>

#include "kvcove/base/clock.h"

namespace kvcove::owner {

RateBudget::RateBudget(std::uint64_t bytes_per_second, std::int64_t burst_seconds,
                       std::int64_t now_ns)
    : rate_(static_cast<double>(bytes_per_second)),
      most_(rate_ * static_cast<double>(burst_seconds)),
      left_(most_),
      filled_ns_(now_ns) {}

bool RateBudget::MaySpend(std::int64_t now_ns) {
  if (unlimited()) return true;
  const auto passed = static_cast<double>(std::max<std::int64_t>(now_ns - filled_ns_, 0)) / kSecond;
  filled_ns_ = std::max(filled_ns_, now_ns);
  left_ = std::min(left_ + (passed * rate_), most_);
  return left_ > 0;
}

void RateBudget::Spend(std::uint64_t bytes) {
  if (!unlimited()) left_ -= static_cast<double>(bytes);
}

}  // namespace kvcove::owner
