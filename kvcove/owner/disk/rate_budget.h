// SPDX-License-Identifier: Apache-2.0
// Bytes that may be moved at a rate. Pure: the caller gives the time, and serialises the calls.
#pragma once

#include <cstdint>

namespace kvcove::owner {

// As many bytes as `burst_seconds` give at most. One that may spend anything may spend all that it
// needs, and pays the rest off later, so that large values pass at any rate.
class RateBudget {
 public:
  // `bytes_per_second`: 0 is any rate.
  RateBudget(std::uint64_t bytes_per_second, std::int64_t burst_seconds, std::int64_t now_ns);
  bool MaySpend(std::int64_t now_ns);
  void Spend(std::uint64_t bytes);
  // Negative: it is being paid off. Of any rate: 0.
  std::int64_t left_bytes() const { return unlimited() ? 0 : static_cast<std::int64_t>(left_); }

 private:
  bool unlimited() const { return rate_ == 0; }
  double rate_;
  double most_;
  double left_;
  std::int64_t filled_ns_;
};

}  // namespace kvcove::owner
