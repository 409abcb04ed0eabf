// SPDX-License-Identifier: Apache-2.0
// A budget of bytes at a rate (a token bucket). Pure: the caller gives the time, and serialises the
// calls.
#pragma once

#include <cstdint>

namespace kvcove::owner {

// Holds as many bytes as the rate gives in `burst_seconds`, at most. While some are left, a caller
// may spend all that it needs; a negative budget is paid off later. So large values pass at any
// rate.
class RateBudget {
 public:
  // `bytes_per_second`: 0 is any rate.
  RateBudget(std::uint64_t bytes_per_second, std::int64_t burst_seconds, std::int64_t now_ns);
  // Adds the bytes earned since the last call. True: some are left.
  bool MaySpend(std::int64_t now_ns);
  // Takes bytes, also below 0.
  void Spend(std::uint64_t bytes);
  // Returns the bytes that are left. Negative: a burst is being paid off. Without a rate: 0.
  std::int64_t left_bytes() const { return unlimited() ? 0 : static_cast<std::int64_t>(left_); }

 private:
  bool unlimited() const { return rate_ == 0; }
  double rate_;
  double most_;
  double left_;
  std::int64_t filled_ns_;
};

}  // namespace kvcove::owner
