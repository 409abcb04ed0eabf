// SPDX-License-Identifier: Apache-2.0
// The number of bytes that the cleaner may move, so that all writes together stay within the bound
// of write amplification. Puts earn, and writes of any kind spend. Unspent bytes are kept, but no
// more than a disk's size of puts earns: otherwise moves of one hour could use up all that was
// earned since the start. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kvcove/disklog/state.h"

namespace kvcove::disklog {

class MoveBudget {
 public:
  // `write_amplification`: bytes written for each byte put. `disk_bytes` bounds what is kept.
  MoveBudget(double write_amplification, std::uint64_t disk_bytes)
      : bound_(write_amplification),
        most_((write_amplification - 1) * static_cast<double>(disk_bytes)) {}

  // Takes the counters' changes since the last call. `queued`: bytes in the write queue, which will
  // be spent, and must not be promised twice.
  void Update(const Counters& counters, std::uint64_t queued) {
    left_ += (bound_ * static_cast<double>(counters.put_bytes - put_)) -
             static_cast<double>(counters.written_bytes - written_);
    left_ = std::min(left_, most_);
    put_ = counters.put_bytes;
    written_ = counters.written_bytes;
    queued_ = static_cast<double>(queued);
  }
  bool Allows(std::uint64_t bytes) const { return left() >= static_cast<double>(bytes); }
  // Returns what is left as a fraction of the most that is kept, 0 to 1.
  double share() const { return most_ <= 0 ? 0 : std::max(left() / most_, 0.0); }

 private:
  double left() const { return left_ - queued_; }

  const double bound_;
  const double most_;
  double left_ = 0;
  double queued_ = 0;
  std::uint64_t put_ = 0;
  std::uint64_t written_ = 0;
};

}  // namespace kvcove::disklog
