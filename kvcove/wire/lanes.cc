// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/lanes.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/wire/cluster_flat.h"

namespace kvcove::wire {

std::string Encode(const LaneEnd& message) {
  Builder builder;
  const auto gid = builder.CreateVector(message.gid.data(), message.gid.size());
  return Done(builder, fb::CreateLaneEnd(builder, message.version, gid, message.lid, message.number,
                                         message.first_packet, message.mtu, message.reads));
}

Result<LaneEnd> DecodeLaneEnd(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::LaneEnd>(body));
  if (root->version() != kLaneVersion) {
    return Fail(Code::kIncompatible, fmt::format("lanes of version {}; this build has version {}",
                                                 root->version(), kLaneVersion));
  }
  LaneEnd end{.lid = root->lid(),
              .number = root->number(),
              .first_packet = root->first_packet(),
              .mtu = root->mtu(),
              .reads = root->reads()};
  if (SizeOf(root->gid()) != end.gid.size()) return Fail(Code::kCorrupt, "a GID has 16 bytes");
  std::ranges::copy(*root->gid(), end.gid.begin());
  return end;
}

std::string Encode(const LanePieces& message) {
  Builder builder(message.pieces.size() * 20 + 256);
  std::vector<std::uint64_t> addresses;
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint32_t> keys;
  for (const LanePiece& piece : message.pieces) {
    addresses.push_back(piece.address);
    sizes.push_back(piece.size_bytes);
    keys.push_back(piece.key);
  }
  const auto address_list = builder.CreateVector(addresses);
  const auto size_list = builder.CreateVector(sizes);
  const auto key_list = builder.CreateVector(keys);
  return Done(builder,
              fb::CreateLanePieces(builder, message.exchange, address_list, size_list, key_list));
}

Result<LanePieces> DecodeLanePieces(std::span<const std::byte> body) {
  KVCOVE_ASSIGN(const auto* root, Root<fb::LanePieces>(body));
  const std::size_t count = SizeOf(root->addresses());
  if (SizeOf(root->sizes()) != count || SizeOf(root->keys()) != count) return WrongCount();
  if (!Aligned(root->addresses()) || !Aligned(root->sizes()) || !Aligned(root->keys(), 4)) {
    return Misaligned();
  }
  if (count > kMaxLanePieces) return Fail(Code::kCorrupt, "too many pieces");
  LanePieces message{.exchange = root->exchange(), .pieces = {}};
  message.pieces.reserve(count);
  for (unsigned i = 0; i < count; ++i) {
    const LanePiece piece{.address = root->addresses()->Get(i),
                          .size_bytes = root->sizes()->Get(i),
                          .key = root->keys()->Get(i)};
    if (piece.size_bytes == 0 || piece.address + piece.size_bytes < piece.address) {
      return Fail(Code::kCorrupt, "a piece of no memory");
    }
    message.pieces.push_back(piece);
  }
  return message;
}

}  // namespace kvcove::wire
