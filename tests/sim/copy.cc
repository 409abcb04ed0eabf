// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/copy.h"

#include <algorithm>
#include <cstring>

namespace kvcove::sim {

std::uint64_t Copy::Advance(std::uint64_t most) {
  std::uint64_t moved = 0;
  while (moved < most && from_at_ < from_.size() && to_at_ < to_.size()) {
    const transport::ConstPiece& from = from_[from_at_];
    const transport::Piece& to = to_[to_at_];
    const std::uint64_t bytes =
        std::min({from.size - from_within_, to.size - to_within_, most - moved});
    if (to.data != nullptr && bytes > 0) {
      std::memcpy(to.data + to_within_, from.data + from_within_, bytes);
    }
    moved += bytes;
    from_within_ += bytes;
    to_within_ += bytes;
    if (from_within_ == from.size) {
      ++from_at_;
      from_within_ = 0;
    }
    if (to_within_ == to.size) {
      ++to_at_;
      to_within_ = 0;
    }
  }
  copied_ += moved;
  return moved;
}

}  // namespace kvcove::sim
