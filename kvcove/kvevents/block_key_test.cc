// SPDX-License-Identifier: Apache-2.0
#include "kvcove/kvevents/block_key.h"

#include <gtest/gtest.h>

#include <string>

namespace kvcove::kvevents {
namespace {

TEST(BlockKey, AKeyOfOnePartIsAWholeBlock) {
  const auto part = ParseBlockKey("g0.h0of1@00112233445566778899aabbccddeeff");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->block.group, 0U);
  EXPECT_EQ(part->part, 0U);
  EXPECT_EQ(part->parts, 1U);
  EXPECT_EQ(part->block.hash.size, 16);
  EXPECT_EQ(part->block.hash.bytes[1], std::byte{0x11});
  // As int.from_bytes(hash, "big") & (1 << 64) - 1, which vLLM sends.
  EXPECT_EQ(part->block.hash.AsNumber(), 0x8899AABBCCDDEEFFULL);
  EXPECT_TRUE(part->adapter.empty());
}

TEST(BlockKey, ShardsOfAllRanksAreDifferentPartsOfOneBlock) {
  std::uint64_t seen = 0;
  for (int p = 0; p < 2; ++p) {
    for (int c = 0; c < 2; ++c) {
      for (int h = 0; h < 4; ++h) {
        const std::string key = "g3.h" + std::to_string(h) + "of4.p" + std::to_string(p) + "of2.c" +
                                std::to_string(c) + "of2.d1of2@ff+a1b2";
        const auto part = ParseBlockKey(key);
        ASSERT_TRUE(part) << key;
        EXPECT_EQ(part->block.group, 3U);
        EXPECT_EQ(part->parts, 16U);
        EXPECT_EQ(part->adapter, "a1b2");
        EXPECT_EQ(seen >> part->part & 1, 0U) << key;
        seen |= std::uint64_t{1} << part->part;
      }
    }
  }
  EXPECT_EQ(seen, 0xFFFFU);
}

TEST(BlockKey, AShortHashIsANumberOfItsOwnSize) {
  const auto part = ParseBlockKey("g0.h0of1@0102");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->block.hash.AsNumber(), 0x102U);
}

TEST(BlockKey, OtherKeysNameNoBlock) {
  for (const char* const key : {"",
                                "@",
                                "g",
                                "g@ff",
                                "g0@ff",
                                "g0.h0of1",
                                "g0.h0of1@",
                                "g0.h0of1@f",
                                "g0.h0of1@FF",
                                "g0.h0of1@xx",
                                "x0.h0of1@ff",
                                "g0.h1of1@ff",
                                "g0.h0of0@ff",
                                "g0.h0of65@ff",
                                "g0.p0of1@ff",
                                "g0.h0of8.p0of9@ff",
                                "g0.z0of1@ff",
                                "g0..h0of1@ff",
                                "g0.h0of1.@ff",
                                "g-1.h0of1@ff",
                                "tiny-llama@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@05a2",
                                "key-1"}) {
    EXPECT_FALSE(ParseBlockKey(key)) << key;
  }
  EXPECT_FALSE(ParseBlockKey("g0.h0of1@" + std::string(66, 'a')));
  EXPECT_TRUE(ParseBlockKey("g0.h0of1@" + std::string(64, 'a')));
  EXPECT_TRUE(ParseBlockKey("g0.h0of8.p0of8@ff"));
}

}  // namespace
}  // namespace kvcove::kvevents
