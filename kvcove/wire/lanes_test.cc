// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/lanes.h"

#include <gtest/gtest.h>

#include "kvcove/wire/frame.h"

namespace kvcove::wire {
namespace {

TEST(LanesTest, AnEndIsReadAsItWasWritten) {
  LaneEnd end{.lid = 1, .number = 2, .first_packet = 3, .mtu = 4, .reads = 5};
  for (std::uint8_t i = 0; i < 16; ++i) end.gid[i] = i;
  const auto read = DecodeLaneEnd(AsBytes(Encode(end)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->gid, end.gid);
  EXPECT_EQ(read->lid, 1);
  EXPECT_EQ(read->number, 2U);
  EXPECT_EQ(read->first_packet, 3U);
  EXPECT_EQ(read->mtu, 4);
  EXPECT_EQ(read->reads, 5);
}

TEST(LanesTest, AnEndOfAnotherVersionIsIncompatible) {
  const auto read = DecodeLaneEnd(AsBytes(Encode(LaneEnd{.version = 2})));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kIncompatible);
}

TEST(LanesTest, PiecesAreReadAsTheyWereWritten) {
  const LanePieces pieces{.exchange = 9,
                          .pieces = {{.address = 1ULL << 40, .size_bytes = 1ULL << 33, .key = 7},
                                     {.address = 5, .size_bytes = 6, .key = 8}}};
  const auto read = DecodeLanePieces(AsBytes(Encode(pieces)));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->exchange, 9U);
  ASSERT_EQ(read->pieces.size(), 2U);
  EXPECT_EQ(read->pieces[0].address, 1ULL << 40);
  EXPECT_EQ(read->pieces[0].size_bytes, 1ULL << 33);
  EXPECT_EQ(read->pieces[1].key, 8U);
  EXPECT_TRUE(DecodeLanePieces(AsBytes(Encode(LanePieces{})))->pieces.empty());
}

TEST(LanesTest, PiecesOfNoMemoryAreCorrupt) {
  for (const LanePiece piece : {LanePiece{.address = 1, .size_bytes = 0, .key = 1},
                                LanePiece{.address = ~0ULL, .size_bytes = 2, .key = 1}}) {
    const auto read = DecodeLanePieces(AsBytes(Encode(LanePieces{.pieces = {piece}})));
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, Code::kCorrupt);
  }
  const std::vector<LanePiece> many(kMaxLanePieces + 1, {.address = 1, .size_bytes = 1, .key = 1});
  EXPECT_FALSE(DecodeLanePieces(AsBytes(Encode(LanePieces{.pieces = many}))));
}

TEST(LanesTest, WhatIsCutShortIsCorrupt) {
  const std::string end = Encode(LaneEnd{});
  const std::string pieces =
      Encode(LanePieces{.pieces = {{.address = 1, .size_bytes = 1, .key = 1}}});
  for (std::size_t size = 0; size < end.size(); ++size) {
    (void)DecodeLaneEnd(AsBytes(std::string_view(end).substr(0, size)));
  }
  for (std::size_t size = 0; size + 8 < pieces.size(); ++size) {
    EXPECT_FALSE(DecodeLanePieces(AsBytes(std::string_view(pieces).substr(0, size)))) << size;
  }
}

}  // namespace
}  // namespace kvcove::wire
