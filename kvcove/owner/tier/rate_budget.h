// SPDX-License-Identifier: Apache-2.0
// Bytes that may be moved at a rate. The caller gives the time. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvcove/base/clock.h"

namespace kvcove::owner {

// Saves up at most the bytes of `burst_seconds`. A caller that may spend anything may spend all
// that it needs; the debt is paid off later, so that large values pass at any rate.
class RateBudget {
 public:
  // `bytes_per_second`: 0 is any rate.
  RateBudget(std::uint64_t bytes_per_second, std::int64_t burst_seconds, std::int64_t now_ns)
      : rate_(static_cast<double>(bytes_per_second)),
        most_(rate_ * static_cast<double>(burst_seconds)),
        left_(most_),
        filled_ns_(now_ns) {}
  // True if anything is left, after what the time since the last call gives.
  bool MaySpend(std::int64_t now_ns) {
    if (unlimited()) return true;
    const auto passed =
        static_cast<double>(std::max<std::int64_t>(now_ns - filled_ns_, 0)) / kSecond;
    filled_ns_ = std::max(filled_ns_, now_ns);
    left_ = std::min(left_ + (passed * rate_), most_);
    return left_ > 0;
  }
  void Spend(std::uint64_t bytes) {
    if (!unlimited()) left_ -= static_cast<double>(bytes);
  }
  // Returns the bytes that are left; negative: a debt is being paid off; 0 without a rate.
  std::int64_t left_bytes() const { return unlimited() ? 0 : static_cast<std::int64_t>(left_); }

 private:
  bool unlimited() const { return rate_ == 0; }
  double rate_;
  double most_;
  double left_;
  std::int64_t filled_ns_;
};

}  // namespace kvcove::owner
