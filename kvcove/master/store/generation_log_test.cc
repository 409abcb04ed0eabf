// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/store/generation_log.h"

#include <gtest/gtest.h>

#include "kvcove/base/clock.h"

namespace kvcove::master {
namespace {

constexpr std::size_t kHeaderBytes = 48;

std::string SomeLog() {
  std::string bytes = EncodeHeader({.high = 5, .low = 6}, kSecond);
  for (Generation g = 1; g <= 5; ++g) {
    bytes += EncodeRecord({.kind = OldRecord::Kind::kSlot,
                           .slot = static_cast<SlotId>(g),
                           .generation = g,
                           .name = "name",
                           .version = "v" + std::to_string(g)});
  }
  return bytes;
}

TEST(GenerationLogTest, WhatWasWrittenIsRead) {
  const auto parsed = ParseLog(SomeLog());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->incarnation, (Id128{.high = 5, .low = 6}));
  EXPECT_EQ(parsed->running_lease_ns, kSecond);
  ASSERT_EQ(parsed->records.size(), 5U);
  EXPECT_EQ(parsed->records[4].version, "v5");
}

TEST(GenerationLogTest, ACleanEndSaysThatNoLeaseIsRunning) {
  EXPECT_EQ(ParseLog(SomeLog() + EncodeCleanEnd())->running_lease_ns, 0);
}

TEST(GenerationLogTest, ACutAtEveryByteLosesOnlyWhatWasNotWhole) {
  const std::string whole = SomeLog();
  const std::size_t record = (whole.size() - kHeaderBytes) / 5;
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    const auto parsed = ParseLog(std::string_view(whole).substr(0, cut));
    if (cut < kHeaderBytes) {
      EXPECT_FALSE(parsed) << cut;
    } else {
      ASSERT_TRUE(parsed) << cut;
      EXPECT_EQ(parsed->records.size(), (cut - kHeaderBytes) / record) << cut;
    }
  }
}

TEST(GenerationLogTest, ADamagedLastRecordIsDamageAndNotACut) {
  const std::string whole = SomeLog();
  const std::size_t record = (whole.size() - kHeaderBytes) / 5;
  const std::size_t last = whole.size() - record;
  for (std::size_t at = last + 4; at < whole.size(); ++at) {  // its checksum and its fields
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto parsed = ParseLog(damaged);
      ASSERT_FALSE(parsed) << "bit " << bit << " of byte " << at;
      EXPECT_EQ(parsed.error().code, Code::kCorrupt);
    }
  }
}

TEST(GenerationLogTest, DamageInTheMiddleIsSeen) {
  const std::string whole = SomeLog();
  for (std::size_t at = 0; at < whole.size() - 60; ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto parsed = ParseLog(damaged);
    // Either it is refused, or a length now reaches past the end, and a prefix of the truth is
    // read.
    if (parsed) {
      EXPECT_LT(parsed->records.size(), 5U) << at;
    }
  }
}

TEST(GenerationLogTest, BytesAreWhatTheDocumentSays) {
  const std::string header = EncodeHeader({.high = 0x0102030405060708, .low = 9}, 1000);
  ASSERT_EQ(header.size(), kHeaderBytes);
  EXPECT_EQ(header.substr(0, 8), "kvcovegn");
  EXPECT_EQ(header[8], 1);
  EXPECT_EQ(header[16], 8) << "little-endian";
  const std::string record = EncodeRecord({.kind = OldRecord::Kind::kRaise,
                                           .slot = 0x0201,
                                           .generation = 7,
                                           .reset_id = {.high = 1, .low = 2},
                                           .name = {},
                                           .version = {}});
  ASSERT_EQ(record.size(), 8U + 31U);
  EXPECT_EQ(record[0], 31);
  EXPECT_EQ(record[8], 2);
  EXPECT_EQ(record[9], 1);
  EXPECT_EQ(record[10], 2);
  EXPECT_EQ(record[11], 7);
}

TEST(GenerationLogTest, AnotherVersionIsNamed) {
  std::string bytes = SomeLog();
  bytes[8] = 9;
  const auto parsed = ParseLog(bytes);
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().code, Code::kIncompatible);
  EXPECT_NE(parsed.error().detail.find('9'), std::string::npos);
}

TEST(GenerationLogTest, AFileOfAnythingElseIsIncompatible) {
  EXPECT_EQ(ParseLog("").error().code, Code::kIncompatible);
  EXPECT_EQ(ParseLog(std::string(100, 'x')).error().code, Code::kIncompatible);
}

}  // namespace
}  // namespace kvcove::master
