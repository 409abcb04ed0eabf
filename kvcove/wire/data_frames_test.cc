// SPDX-License-Identifier: Apache-2.0
// The bytes of the frames that carry payload, as version 2 of the protocol has them. Another
// version of kvcove sends the same: a change here needs a new protocol version.
#include <gtest/gtest.h>

#include <string>

#include "kvcove/wire/cluster.h"
#include "kvcove/wire/frame.h"
#include "kvcove/wire/probe.h"

namespace kvcove::wire {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(byte) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(byte) & 15]);
  }
  return text;
}
std::string Hex(const std::string& bytes) { return Hex(std::as_bytes(std::span(bytes))); }

const Token kToken{.incarnation = {0x1122334455667788, 0x99aabbccddeeff00},
                   .generation = 0x0102030405060708,
                   .slot = 9};

TEST(DataFramesTest, AFramesHeader) {
  const auto header = EncodeFrameHeader({.method = static_cast<std::uint16_t>(Method::kDataGet),
                                         .body_bytes = 0x01020304,
                                         .call = 7});
  EXPECT_EQ(Hex(header), "6b7663660200330004030201000000000700000000000000");
  const auto reply =
      EncodeFrameHeader({.method = static_cast<std::uint16_t>(
                             static_cast<std::uint16_t>(Method::kDataPut) | kReplyBit),
                         .body_bytes = 5,
                         .code = Code::kNoSpace,
                         .call = 8});
  EXPECT_EQ(Hex(reply), "6b7663660200348005000000060000000800000000000000");
}

TEST(DataFramesTest, AGetAndItsReply) {
  const DataGet get{.token = kToken, .keys = {"alpha", "b"}, .room = {4096, 17}};
  EXPECT_EQ(Hex(Encode(get)),
            "140000000000000000000a003000040028002c000a000000887766554433221100ffeeddccbbaa99"
            "08070605040302010900000000000000000000001c00000004000000020000000010000000000000"
            "1100000000000000020000001000000004000000010000006200000005000000616c706861000000");
  const DataValue values[] = {
      {.code = Code::kOk, .size_bytes = 4000, .checksum = 0xa1b2c3d4e5f60718},
      {.code = Code::kMiss, .reason = MissReason::kEvicted}};
  EXPECT_EQ(Hex(Encode(std::span<const DataValue>(values))),
            "180000000000000000000e001800040008000c00100014000e00000038000000280000001c000000"
            "100000000400000002000000010100000200000000020000020000000001000002000000a00f0000"
            "00000000020000001807f6e5d4c3b2a10000000000000000");
}

TEST(DataFramesTest, APutAndItsReply) {
  const DataPut put{.token = kToken,
                    .items = {{.key = "alpha",
                               .after = "before",
                               .size_bytes = 4000,
                               .checksum = 0xa1b2c3d4e5f60718,
                               .group = 3}},
                    .budget_ms = 900,
                    .copies = 2,
                    .no_evict = true,
                    .copied_at = 0x0000000500000006};
  EXPECT_EQ(Hex(Encode(put)),
            "2000000000001a004c00080028002c0030003400380000003c000600070040001a00000000000201"
            "887766554433221100ffeeddccbbaa99080706050403020109000000000000004800000038000000"
            "2c000000200000001400000084030000060000000500000000000000010000002800000001000000"
            "0300000001000000a00f0000010000001807f6e5d4c3b2a10100000010000000060000006265666f"
            "7265000005000000616c706861000000");
  // What an older requester sends, and this one without hints.
  const std::string bytes = Encode(put);
  EXPECT_EQ(DecodeDataPut(std::as_bytes(std::span(bytes)))->items[0].hints, Hints{});
  const Code codes[] = {Code::kOk, Code::kNotListed, Code::kNoSpace};
  EXPECT_EQ(Hex(Encode(std::span<const Code>(codes))),
            "0c000000000006000800040006000000040000000300000000120600");
}

TEST(DataFramesTest, APutWithHints) {
  const Hints hints{.output_tokens = 0x01020304,
                    .ephemeral = true,
                    .request_goes_on = true,
                    .priority = NamespacePriority::kHigh};
  const DataPut put{.token = kToken,
                    .items = {{.key = "a", .after = "", .size_bytes = 1, .hints = hints},
                              {.key = "b", .after = "a", .size_bytes = 1}}};
  const std::string bytes = Encode(put);
  const auto decoded = DecodeDataPut(std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->items[0].hints, hints);
  EXPECT_EQ(decoded->items[1].hints, Hints{});
  EXPECT_EQ(Hex(bytes),
            "280000000000000000001e004400080028002c00300034003800000000000700000000003c004000"
            "1e00000000000001887766554433221100ffeeddccbbaa9908070605040302010900000000000000"
            "6c000000500000004000000030000000200000001400000004000000020000000403020100000000"
            "020000001d0000000200000054000000400000000200000000000000000000000200000001000000"
            "0100000002000000000000000000000000000000000000000000000002000000200000000c000000"
            "0100000061000000010000006200000000000000000000000100000061000000");
}

TEST(DataFramesTest, AMeasurement) {
  EXPECT_EQ(Hex(Encode(Probe{.payload_bytes = 0x0102, .wanted_bytes = 0x0304})),
            "0c0000000800140004000c000800000002010000000000000403000000000000");
}

}  // namespace
}  // namespace kvcove::wire
