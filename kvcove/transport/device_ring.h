// SPDX-License-Identifier: Apache-2.0
// Pinned memory that is lent in pieces, the oldest first, as a ring: what the host's processor
// copies and a device moves meet there. Without I/O. Belongs to its user's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

namespace kvcove::transport {

class DeviceRing {
 public:
  static constexpr std::uint64_t kAlign = 256;  // so that a kernel moves whole words

  static constexpr std::uint64_t Rounded(std::uint64_t bytes) {
    return (bytes + kAlign - 1) / kAlign * kAlign;
  }

  DeviceRing() = default;
  explicit DeviceRing(std::span<std::byte> memory) : memory_(memory) {}

  // None: nothing is free now, or `bytes` is more than there is. Pieces may come back in any order;
  // room is found again behind the oldest one that is out.
  std::optional<std::span<std::byte>> Take(std::uint64_t bytes);
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
  std::deque<Piece> pieces_;  // in the order in which they were taken
  std::uint64_t next_ = 0;    // where the next piece may begin
  std::uint64_t used_ = 0;
};

}  // namespace kvcove::transport
