// SPDX-License-Identifier: Apache-2.0
// RDMA beside a connection to an owner's data server: both ends of a lane, and where the payload of
// an exchange is in the requester's memory. docs/rdma.md has the order of these messages.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::wire {

// The version of the messages, and of what they mean.
inline constexpr std::uint32_t kLaneVersion = 1;
inline constexpr std::size_t kMaxLanePieces = 65'536;

// One end of a lane. Both directions of kLane carry one.
struct LaneEnd {
  std::uint32_t version = kLaneVersion;
  std::array<std::uint8_t, 16> gid{};
  std::uint16_t lid = 0;
  std::uint32_t number = 0;        // of the queue pair
  std::uint32_t first_packet = 0;  // number of the first packet that this end sends
  std::uint8_t mtu = 0;            // InfiniBand's number of it
  std::uint8_t reads = 0;          // reads that this end answers at once
};

// Memory of the requester, as its device permits the owner to reach it.
struct LanePiece {
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t key = 0;
};

// kLanePieces. Before a request: the payload behind it is in these pieces; without any, the
// requester asks the owner to hold the reply's payload. After such a reply: the pieces that it is
// written into; without any, it is sent behind the connection's last frame after all.
struct LanePieces {
  std::uint64_t exchange = 0;  // its number on this connection
  std::vector<LanePiece> pieces;
};

std::string Encode(const LaneEnd& message);
std::string Encode(const LanePieces& message);

// Errors: kCorrupt; kIncompatible for a version that this build does not know.
Result<LaneEnd> DecodeLaneEnd(std::span<const std::byte> body);
Result<LanePieces> DecodeLanePieces(std::span<const std::byte> body);

}  // namespace kvcove::wire
