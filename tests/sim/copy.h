// SPDX-License-Identifier: Apache-2.0
// Payload that moves by memcpy, in slices: from some pieces of memory to some others, in order.
#pragma once

#include <cstdint>
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

}  // namespace kvcove::sim
