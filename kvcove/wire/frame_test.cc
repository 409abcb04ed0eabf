// SPDX-License-Identifier: Apache-2.0
#include "kvcove/wire/frame.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::wire {
namespace {

using HeaderBytes = std::array<std::byte, kFrameHeaderBytes>;

HeaderBytes BytesOf(std::array<std::uint8_t, kFrameHeaderBytes> numbers) {
  HeaderBytes bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte{numbers[i]};
  return bytes;
}

// Other builds read these bytes: they change with the protocol's version only.
TEST(FrameTest, AHeaderHasTheseBytes) {
  const FrameHeader header{.method = static_cast<std::uint16_t>(Method::kPut) | kReplyBit,
                           .body_bytes = 0x00010203,
                           .code = Code::kStale,
                           .budget_ms = 0x0a0b,
                           .call = 0x1122334455667788};
  const HeaderBytes golden = BytesOf({
      'k',  'v',  'c',  'f',                           // magic
      2,    0,                                         // protocol version
      8,    0x80,                                      // put, a reply
      0x03, 0x02, 0x01, 0x00,                          // body bytes
      4,    0,                                         // stale
      0x0b, 0x0a,                                      // budget
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // call
  });
  EXPECT_EQ(EncodeFrameHeader(header), golden);
  const auto decoded = DecodeFrameHeader(golden, kMaxFrameBytes);
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(decoded->method, header.method);
  EXPECT_EQ(decoded->body_bytes, header.body_bytes);
  EXPECT_EQ(decoded->code, header.code);
  EXPECT_EQ(decoded->budget_ms, header.budget_ms);
  EXPECT_EQ(decoded->call, header.call);
}

TEST(FrameTest, AHeaderOfABuildBeforeTheBudgetHasNone) {
  const HeaderBytes old =
      BytesOf({'k', 'v', 'c', 'f', 2, 0, 4, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0});
  const auto decoded = DecodeFrameHeader(old, kMaxFrameBytes);
  ASSERT_TRUE(decoded) << decoded.error().ToString();
  EXPECT_EQ(decoded->budget_ms, 0);
  EXPECT_EQ(DeadlineOf(*decoded, 77 * kSecond), 0) << "it does not say";
}

TEST(FrameTest, ABudgetIsAtLeastAMillisecondAndAtMostWhatFits) {
  EXPECT_EQ(BudgetMs(-kSecond), 1);
  EXPECT_EQ(BudgetMs(1), 1);
  EXPECT_EQ(BudgetMs(250 * kMillisecond), 250);
  EXPECT_EQ(BudgetMs(3600 * kSecond), 65535);
  EXPECT_EQ(DeadlineOf({.budget_ms = 250}, kSecond), kSecond + 250 * kMillisecond);
  EXPECT_EQ(DeadlineOf({.budget_ms = 65535}, 0), kMaxFrameBudgetNs);
}

TEST(FrameTest, WhatIsNoFrameIsCorruptAndAnotherVersionSaysBothNumbers) {
  const HeaderBytes good = EncodeFrameHeader({.method = 4, .body_bytes = 100});
  EXPECT_EQ(DecodeFrameHeader(good, 99).error().code, Code::kCorrupt) << "too long";
  struct Case {
    std::size_t at;
    int value;
    Code code;
  };
  for (const auto& [at, value, code] : std::initializer_list<Case>{
           {0, 'x', Code::kCorrupt},
           {6, 0, Code::kCorrupt},
           {6, kMaxMethod + 1, Code::kCorrupt},
           {12, kMaxCode + 1, Code::kCorrupt},
           {4, 9, Code::kIncompatible},
       }) {
    HeaderBytes bad = good;
    bad[at] = static_cast<std::byte>(value);
    const auto decoded = DecodeFrameHeader(bad, kMaxFrameBytes);
    ASSERT_FALSE(decoded) << "byte " << at;
    EXPECT_EQ(decoded.error().code, code) << "byte " << at;
    if (code == Code::kIncompatible) {
      EXPECT_NE(decoded.error().detail.find("version 9"), std::string::npos);
      EXPECT_NE(decoded.error().detail.find('2'), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvcove::wire
