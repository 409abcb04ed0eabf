// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/device_ring.h"

#include <algorithm>

namespace kvcove::transport {

std::optional<std::span<std::byte>> DeviceRing::Take(std::uint64_t bytes) {
  std::erase_if(pieces_, [](const Piece& piece) { return !piece.out; });
  if (pieces_.empty()) next_ = 0;
  const std::uint64_t whole = Rounded(bytes);
  if (whole == 0 || whole > size()) return std::nullopt;
  // The free room that begins at `at`. A piece is one extent, so room ends with the ring.
  const auto room = [this](std::uint64_t at) {
    std::uint64_t end = size();
    for (const Piece& piece : pieces_) {
      if (piece.offset >= at) end = std::min(end, piece.offset);
    }
    return end - at;
  };
  // Behind the newest piece, where pieces that return in the order of their loans leave the most
  // room. Else the next room on the way round: a piece that an RDMA device does not let go must not
  // stop those that come and go.
  std::uint64_t best = next_;
  if (room(next_) < whole) {
    std::optional<std::uint64_t> nearest;
    const auto look = [&](std::uint64_t at) {
      const std::uint64_t way = at >= next_ ? at - next_ : size() - next_ + at;
      if (room(at) < whole || (nearest && *nearest <= way)) return;
      nearest = way;
      best = at;
    };
    look(0);
    for (const Piece& piece : pieces_) look(piece.offset + piece.bytes);
    if (!nearest) return std::nullopt;
  }
  pieces_.push_back({.offset = best, .bytes = whole});
  next_ = best + whole;
  used_ += whole;
  return memory_.subspan(best, bytes);
}

// Only marks the piece; the next Take() removes all that are marked in one pass.
void DeviceRing::Give(std::span<std::byte> piece) {
  const auto offset = static_cast<std::uint64_t>(piece.data() - memory_.data());
  for (Piece& each : pieces_) {
    if (each.offset != offset || !each.out) continue;
    each.out = false;
    used_ -= each.bytes;
    return;
  }
}

}  // namespace kvcove::transport
