// SPDX-License-Identifier: Apache-2.0
// A ring of pinned memory that is lent in pieces, for bytes on their way between any host memory
// and a device. Does no I/O. Needs its user's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace kvcove::transport {

class DeviceRing {
 public:
  static constexpr std::uint64_t kAlign = 256;  // lets a kernel move whole words

  static constexpr std::uint64_t Rounded(std::uint64_t bytes) {
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }

  DeviceRing() = default;
  explicit DeviceRing(std::span<std::byte> memory) : memory_(memory) {}

  // Lends a piece. None: no room now, or `bytes` is 0 or more than the ring has. Passes over pieces
  // that are lent for long: they take their own room, and delay no other piece.
  std::optional<std::span<std::byte>> Take(std::uint64_t bytes);
  // Takes a piece back, in any order. Its room is free at once.
  void Give(std::span<std::byte> piece);

  std::uint64_t size() const { return memory_.size(); }
  std::uint64_t used() const { return used_; }

 private:
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    bool out = true;
  };
  std::span<std::byte> memory_;
  std::deque<Piece> pieces_;  // that are lent, or were until the last Give()
  std::uint64_t next_ = 0;    // where the next piece may begin
  std::uint64_t used_ = 0;
};

}  // namespace kvcove::transport
