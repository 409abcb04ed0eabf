// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/owner_facts.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "kvcove/base/log.h"

namespace kvcove::owner {
namespace {

const OwnerFacts kFacts{.identity = {.high = 1, .low = 2},
                        .pool = {.high = 3, .low = 4},
                        .incarnation = {.high = 5, .low = 6},
                        .seen = {.term = 7, .tag = ~0ULL, .revision = 9}};

TEST(OwnerFactsTest, WhatIsWrittenIsRead) {
  EXPECT_EQ(DecodeOwnerFacts(Encode(kFacts)), kFacts);
  std::string name = testing::TempDir() + "/kvcove-facts-XXXXXX";
  const std::string directory = mkdtemp(name.data());
  EXPECT_FALSE(ReadOwnerFacts(directory)->has_value()) << "there is none yet";
  ASSERT_TRUE(WriteOwnerFacts(directory, {.identity = {.high = 8, .low = 8}}));
  ASSERT_TRUE(WriteOwnerFacts(directory, kFacts));
  EXPECT_EQ(*ReadOwnerFacts(directory), kFacts);
  EXPECT_FALSE(WriteOwnerFacts(directory + "/none", kFacts));
  std::filesystem::remove_all(directory);
}

TEST(OwnerFactsTest, OpeningsAreReadAndMayBeMissing) {
  EXPECT_EQ(Encode(kFacts).find("opening"), std::string::npos) << "as earlier versions read it";
  OwnerFacts facts = kFacts;
  facts.opening = {.high = 10, .low = 11};
  EXPECT_EQ(DecodeOwnerFacts(Encode(facts)), facts);
  facts.opening_before = {.high = 12, .low = 13};
  EXPECT_EQ(DecodeOwnerFacts(Encode(facts)), facts);
}

TEST(OwnerFactsTest, DamageIsNeverTakenForAnIdentity) {
  SetLogLevel(LogLevel::kOff);
  OwnerFacts facts = kFacts;
  facts.opening = {.high = 10, .low = 11};
  const std::string sound = Encode(facts);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    for (const int bit : {0, 3, 6}) {
      std::string damaged = sound;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_FALSE(DecodeOwnerFacts(damaged)) << "byte " << at << " bit " << bit;
    }
    EXPECT_FALSE(DecodeOwnerFacts(sound.substr(0, at))) << at;
  }
  EXPECT_FALSE(DecodeOwnerFacts(Encode({}))) << "no identity";
}

// Other builds read the file.
TEST(OwnerFactsTest, TheFilesTextIsThis) {
  EXPECT_EQ(Encode(kFacts),
            "kvcove owner 1\nidentity 00000000000000010000000000000002\n"
            "pool 00000000000000030000000000000004\nincarnation 00000000000000050000000000000006\n"
            "term 7\ntag 18446744073709551615\nrevision 9\nsum 89e3caa8f28c5cdd\n");
  OwnerFacts facts = kFacts;
  facts.opening = {.high = 10, .low = 11};
  facts.opening_before = {.high = 12, .low = 13};
  EXPECT_EQ(Encode(facts),
            "kvcove owner 1\nidentity 00000000000000010000000000000002\n"
            "pool 00000000000000030000000000000004\nincarnation 00000000000000050000000000000006\n"
            "term 7\ntag 18446744073709551615\nrevision 9\n"
            "opening 000000000000000a000000000000000b\nbefore 000000000000000c000000000000000d\n"
            "sum be6b10f5f595a91a\n");
}

}  // namespace
}  // namespace kvcove::owner
