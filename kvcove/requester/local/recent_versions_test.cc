// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/recent_versions.h"

#include <gtest/gtest.h>

namespace kvcove::requester {
namespace {

TEST(RecentVersionsTest, TheOneThatWasUsedLongestAgoMakesPlace) {
  RecentVersions<int> known(3);
  known.Set("c", 1);
  known.Set("a", 2);
  known.Set("b", 3);
  ASSERT_NE(known.Find("c"), nullptr);  // a use
  ASSERT_NE(known.Peek("a"), nullptr);  // no use
  known.Set("d", 4);
  EXPECT_EQ(known.Peek("a"), nullptr);
  EXPECT_EQ(*known.Peek("c"), 1);
  EXPECT_EQ(*known.Peek("b"), 3);
  EXPECT_EQ(*known.Peek("d"), 4);
}

TEST(RecentVersionsTest, TheEntryWithoutAVersionStaysAndTakesNoRoom) {
  RecentVersions<int> known(2);
  known.Set("", 0);
  for (int i = 1; i <= 1000; ++i) known.Set(std::to_string(i), i);
  EXPECT_EQ(known.size(), 3U);
  EXPECT_EQ(*known.Peek(""), 0);
  EXPECT_EQ(*known.Peek("999"), 999);
  EXPECT_EQ(*known.Peek("1000"), 1000);
}

TEST(RecentVersionsTest, AKnownVersionIsReplacedWithoutMakingPlace) {
  RecentVersions<int> known(2);
  known.Set("a", 1);
  known.Set("b", 2);
  known.Set("a", 3);
  EXPECT_EQ(*known.Peek("a"), 3);
  EXPECT_EQ(*known.Peek("b"), 2);
}

TEST(RecentVersionsTest, TheLastOneInTheOrderOfUseWasUsedLast) {
  RecentVersions<int> known(4);
  for (const int value : {2, 1, 3}) known.Set(std::to_string(value), value);
  EXPECT_NE(known.Find("2"), nullptr);
  std::vector<int> order;
  for (const int* value : known.InOrderOfUse()) order.push_back(*value);
  EXPECT_EQ(order, (std::vector<int>{1, 3, 2}));
}

TEST(RecentVersionsTest, EraseIfDropsByVersion) {
  RecentVersions<int> known(4);
  known.Set("", 1);
  known.Set("a", 2);
  known.Set("b", 3);
  known.EraseIf([](const std::string& version) { return version == "a"; });
  int sum = 0;
  known.ForEach([&](int value) { sum += value; });
  EXPECT_EQ(sum, 4);
}

}  // namespace
}  // namespace kvcove::requester
