// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/device_ring.h"

namespace kvcove::transport {

std::optional<std::span<std::byte>> DeviceRing::Take(std::uint64_t bytes) {
  const std::uint64_t whole = Rounded(bytes);
  if (whole == 0 || whole > size()) return std::nullopt;
  if (pieces_.empty()) next_ = 0;
  const std::uint64_t oldest = pieces_.empty() ? size() : pieces_.front().offset;
  // `next_ == oldest` with pieces lent means full, not empty: an empty ring begins at 0 above.
  const bool wrapped = !pieces_.empty() && next_ <= oldest;
  std::uint64_t at = next_;
  if (wrapped) {
    // Free room is between the newest piece and the oldest one.
    if (at + whole > oldest) return std::nullopt;
  } else if (at + whole > size()) {
    // A piece is one extent, so the end of the ring remains unused until the ring wraps again.
    if (pieces_.empty() || whole > oldest) return std::nullopt;
    at = 0;
  }
  pieces_.push_back({.offset = at, .bytes = whole});
  next_ = at + whole;
  used_ += whole;
  return memory_.subspan(at, bytes);
}

void DeviceRing::Give(std::span<std::byte> piece) {
  const auto offset = static_cast<std::uint64_t>(piece.data() - memory_.data());
  for (Piece& each : pieces_) {
    if (each.offset != offset || !each.out) continue;
    each.out = false;
    used_ -= each.bytes;
    break;
  }
  while (!pieces_.empty() && !pieces_.front().out) pieces_.pop_front();
}

}  // namespace kvcove::transport
