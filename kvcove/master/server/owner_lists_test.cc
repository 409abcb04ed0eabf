// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/server/owner_lists.h"

#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

class OwnerListsTest : public testing::Test {
 protected:
  // What this reader gets, where a list takes so long to make.
  std::string Get(const std::string& reader, std::int64_t takes_ns = kMillisecond) {
    return *lists_.Get(reader, [&] {
      clock_.AdvanceNs(takes_ns);
      return std::to_string(++made_);
    });
  }

  FakeClock clock_;
  OwnerLists lists_{clock_};
  int made_ = 0;
};

TEST_F(OwnerListsTest, AListIsGivenOutForNineTimesItsCost) {
  EXPECT_EQ(Get("reader"), "1");
  clock_.AdvanceNs(9 * kMillisecond - 1);
  EXPECT_EQ(Get("reader"), "1");
  clock_.AdvanceNs(1);
  EXPECT_EQ(Get("reader"), "2");
}

TEST_F(OwnerListsTest, AListThatCostsNothingIsMadeForEach) {
  EXPECT_EQ(Get("reader", 0), "1");
  EXPECT_EQ(Get("reader", 0), "2");
}

TEST_F(OwnerListsTest, ASlowOneIsNotGivenOutForLonger) {
  EXPECT_EQ(Get("reader", kSecond), "1");
  clock_.AdvanceNs(OwnerLists::kMostNs - 1);
  EXPECT_EQ(Get("reader"), "1");
  clock_.AdvanceNs(1);
  EXPECT_EQ(Get("reader"), "2");
}

TEST_F(OwnerListsTest, EachReaderHasItsOwnAndThousandsOfThemAreNotKept) {
  EXPECT_EQ(Get("a", kMillisecond), "1");
  EXPECT_EQ(Get("b", kMillisecond), "2");
  EXPECT_EQ(Get("a"), "1");
  for (int i = 0; i < 1000; ++i) (void)Get(std::to_string(i), 1);
  EXPECT_EQ(Get("a"), "1003") << "it was kept beside a thousand others";
}

}  // namespace
}  // namespace kvcove::master
