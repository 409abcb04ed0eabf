// SPDX-License-Identifier: Apache-2.0
// Payload that moves by memcpy, in slices: from some pieces of memory to some others, in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kvcove/transport/endpoint.h"

namespace kvcove::sim {

// Belongs to one thread.
class Copy {
 public:
  Copy() = default;
  Copy(std::vector<transport::ConstPiece> from, std::vector<transport::Piece> to)
      : from_(std::move(from)), to_(std::move(to)) {}
  // Copies up to `most` bytes more, and says how many. 0: either side has no more.
  std::uint64_t Advance(std::uint64_t most);
  // Bytes in all so far.
  std::uint64_t copied() const { return copied_; }

 private:
  std::vector<transport::ConstPiece> from_;
  std::vector<transport::Piece> to_;
  std::size_t from_at_ = 0;
  std::size_t to_at_ = 0;
  std::uint64_t from_within_ = 0;
  std::uint64_t to_within_ = 0;
  std::uint64_t copied_ = 0;
};

inline std::uint64_t Copy::Advance(std::uint64_t most) {
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
