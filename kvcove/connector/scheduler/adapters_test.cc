// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/adapters.h"

#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

class AdaptersTest : public testing::Test {
 protected:
  void SetUp() override { SetLogLevel(LogLevel::kOff); }
  void TearDown() override { SetLogLevel(LogLevel::kWarn); }
  Adapters::Change Take(std::uint32_t rank, std::uint64_t number,
                        const std::vector<AdapterPrint>& prints) {
    LinesAfterLock lines;
    Report report;
    report.rank = rank;
    report.adapters_number = number;
    report.adapters = prints;
    return adapters_.Take(report, lines);
  }
  // Both ranks have it.
  void Give(std::uint64_t number, const std::string& digest) {
    (void)Take(0, number, {{.id = 1, .digest = digest}});
    (void)Take(1, number, {{.id = 1, .digest = digest}});
  }
  Adapters adapters_{2, "e"};
};

TEST_F(AdaptersTest, AnAdapterIsThereOnceAllRanksHaveIt) {
  EXPECT_TRUE(adapters_.Seen().empty());
  EXPECT_EQ(adapters_.Find(1), nullptr);
  (void)Take(0, 1, {{.id = 1, .digest = "x"}});
  EXPECT_EQ(adapters_.Find(1), nullptr);
  EXPECT_EQ(adapters_.Seen(), (std::vector<std::uint64_t>{1, 0}));
  const auto change = Take(1, 1, {{.id = 1, .digest = "x"}});
  EXPECT_FALSE(change.other);
  EXPECT_TRUE(change.voided.empty());
  ASSERT_NE(adapters_.Find(1), nullptr);
  EXPECT_TRUE(adapters_.IsCurrent({.id = 1, .digest = adapters_.Find(1)->digest}));
  EXPECT_FALSE(adapters_.IsCurrent({.id = 1, .digest = "x"})) << "a rank's own is not the ranks'";
  EXPECT_TRUE(adapters_.IsCurrent({.id = 0, .digest = {}})) << "none";
  EXPECT_FALSE(adapters_.IsCurrent({.id = 2, .digest = {}}));
}

TEST_F(AdaptersTest, AnOlderReportSaysNothing) {
  (void)Take(0, 5, {{.id = 1, .digest = "x"}});
  (void)Take(1, 5, {{.id = 1, .digest = "x"}});
  EXPECT_TRUE(Take(0, 5, {}).voided.empty());
  EXPECT_TRUE(Take(0, 4, {}).voided.empty());
  EXPECT_NE(adapters_.Find(1), nullptr);
}

TEST_F(AdaptersTest, OneThatGoesAndComesBackIsTheSame) {
  Give(1, "x");
  const std::uint64_t tag = adapters_.Find(1)->tag;
  const std::string digest = adapters_.Find(1)->digest;
  EXPECT_EQ(Take(0, 2, {}).voided, (std::vector<AdapterId>{1}));
  EXPECT_EQ(adapters_.Find(1), nullptr);
  EXPECT_TRUE(adapters_.IsCurrent({.id = 1, .digest = digest})) << "what it computed is found yet";
  EXPECT_TRUE(Take(1, 2, {}).voided.empty()) << "once";
  Give(3, "x");
  ASSERT_NE(adapters_.Find(1), nullptr);
  EXPECT_EQ(adapters_.Find(1)->tag, tag);
}

TEST_F(AdaptersTest, ATagIsNeverUsedAgain) {
  Give(1, "x");
  const Adapters::Known before = *adapters_.Find(1);
  const auto change = Take(0, 2, {{.id = 1, .digest = "y"}});
  EXPECT_TRUE(change.other);
  EXPECT_EQ(change.voided, (std::vector<AdapterId>{1}));
  EXPECT_FALSE(adapters_.IsCurrent({.id = 1, .digest = before.digest}));
  Give(3, "x");
  EXPECT_EQ(adapters_.Find(1)->digest, before.digest);
  EXPECT_NE(adapters_.Find(1)->tag, before.tag);
}

TEST_F(AdaptersTest, RanksThatDifferHaveADigestOfAllTheirs) {
  (void)Take(0, 1, {{.id = 1, .digest = "x"}});
  (void)Take(1, 1, {{.id = 1, .digest = "y"}});
  const std::string mixed = adapters_.Find(1)->digest;
  Give(2, "x");
  EXPECT_NE(adapters_.Find(1)->digest, mixed);
}

}  // namespace
}  // namespace kvcove::connector
