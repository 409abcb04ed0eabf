// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/tier/demotion_rules.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

TEST(DemotionRulesTest, EveryWayAdmitsWhatItSays) {
  DemotionRules all({.admit = DiskAdmit::kAll, .disk_bytes = 100}, 0);
  DemotionRules never({.admit = DiskAdmit::kNever, .disk_bytes = 100}, 0);
  DemotionRules policy({.admit = DiskAdmit::kPolicy, .disk_bytes = 100'000}, 0);
  std::size_t dropped = 0;
  for (std::uint64_t key = 0; key < 3000; ++key) {
    EXPECT_TRUE(all.Judge(1, key).worth);
    EXPECT_FALSE(never.Judge(1, key).worth);
    // A chain of two: the first block is always asked for again, the last one never.
    policy.OnPut({.id = 1, .key = 1, .size_bytes = 1}, false);
    policy.OnPut({.id = 2, .key = key + 10, .size_bytes = 1, .parent = 1}, false);
    dropped += policy.Judge(2, key + 10).worth ? 0 : 1;
    EXPECT_TRUE(policy.Judge(1, 1).worth);
    policy.OnWritten(disklog::kNoShare, 10);
  }
  EXPECT_GT(dropped, 2000U);
}

// Where all is written, what would be refused is written apart.
TEST(DemotionRulesTest, TailsThatDoNotComeBackAreBrief) {
  DemotionRules all({.admit = DiskAdmit::kAll, .disk_bytes = 100'000}, 0);
  std::size_t brief = 0;
  for (std::uint64_t key = 0; key < 3000; ++key) {
    all.OnPut({.id = 1, .key = 1, .size_bytes = 1}, false);
    all.OnPut({.id = 2, .key = key + 10, .size_bytes = 1, .parent = 1}, false);
    const policy::Verdict tail = all.Judge(2, key + 10);
    EXPECT_TRUE(tail.worth);
    brief += tail.brief ? 1 : 0;
    EXPECT_FALSE(all.Judge(1, 1).brief);
    all.OnWritten(disklog::kNoShare, 10);
  }
  EXPECT_GT(brief, 2000U);
}

TEST(DemotionRulesTest, AShareBeyondItsRateTakesNothingFromTheOthers) {
  DemotionRules rules({.share_rates = {100, 0}, .disk_bytes = 100'000}, 0);
  ASSERT_TRUE(rules.WithinRate(0, 0));
  rules.OnWritten(0, 5000);
  EXPECT_FALSE(rules.WithinRate(0, kSecond));
  EXPECT_TRUE(rules.WithinRate(1, kSecond));
  EXPECT_TRUE(rules.WithinRate(disklog::kNoShare, kSecond));
  EXPECT_TRUE(rules.WithinRate(0, 41 * kSecond));
}

TEST(DemotionRulesTest, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(*ParseRate("--disk-write-rate", "2MiB/s"), 2U << 20);
  EXPECT_EQ(*ParseRate("--disk-write-rate", "2MiB"), 2U << 20);
  EXPECT_EQ(*ParseRate("--disk-write-rate", "0"), 0U);
  const auto rate = ParseRate("--disk-write-rate", "fast");
  ASSERT_FALSE(rate);
  EXPECT_NE(rate.error().detail.find("--disk-write-rate: 'fast'"), std::string::npos);
  EXPECT_NE(rate.error().detail.find("200MiB/s"), std::string::npos);
  const auto admit = ParseDiskAdmit("disk_admit", "some");
  ASSERT_FALSE(admit);
  EXPECT_NE(admit.error().detail.find("policy, all, keep and never"), std::string::npos);
}

}  // namespace
}  // namespace kvcove::owner
