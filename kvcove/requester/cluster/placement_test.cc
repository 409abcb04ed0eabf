// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/cluster/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace kvcove::requester {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

wire::OwnerStat Owner(wire::OwnerNumber number, const char* host, std::uint64_t free) {
  return {.number = number,
          .address = "10.0.0." + std::to_string(number) + ":7401",
          .host = host,
          .capacity_bytes = 100,
          .free_bytes = free,
          .live = true};
}

class PlacementTest : public testing::Test {
 protected:
  std::vector<wire::OwnerNumber> Order(const PlacementRequest& request) {
    return OrderOwners(request, owners_, random_);
  }
  std::vector<wire::OwnerStat> owners_ = {Owner(0, "a", 10), Owner(1, "b", 90), Owner(2, "b", 80),
                                          Owner(3, "c", 50)};
  Random random_{1};
};

TEST_F(PlacementTest, ExplicitBeforeLocalBeforeTheRest) {
  EXPECT_EQ(Order({.preferred = {"10.0.0.3:7401"}, .host = "a"})[0], 3);
  EXPECT_EQ(Order({.preferred = {"10.0.0.3:7401"}, .host = "a"})[1], 0);
  EXPECT_EQ(Order({.preferred = {"10.0.0.9:7401"}, .host = "a"})[0], 0);
  // In their order, also where two of them are of one host.
  const auto both = Order({.preferred = {"10.0.0.9:7401", "10.0.0.2:7401", "10.0.0.1:7401"}});
  EXPECT_EQ(std::vector(both.begin(), both.begin() + 2), (std::vector<wire::OwnerNumber>{2, 1}));
  // Whatever the strategy.
  EXPECT_EQ(Order({.strategy = Placement::kRandom, .preferred = {"10.0.0.2:7401"}})[0], 2);
}

TEST_F(PlacementTest, FreeRatioFirst) {
  EXPECT_THAT(Order({.strategy = Placement::kFreeRatioFirst, .host = "a"}),
              ElementsAre(1, 3, 0, 2));
}

TEST_F(PlacementTest, DifferentHostsFirst) {
  const auto order = Order({.strategy = Placement::kRandom});
  const std::vector<wire::OwnerNumber> first(order.begin(), order.begin() + 3);
  EXPECT_TRUE(std::ranges::count(first, 1) + std::ranges::count(first, 2) == 1);
  EXPECT_THAT(order, UnorderedElementsAre(0, 1, 2, 3));
}

TEST_F(PlacementTest, RandomIsEvenAndLocalFirstGoesByWhatIsFree) {
  std::map<wire::OwnerNumber, int> random;
  std::map<wire::OwnerNumber, int> free;
  for (int i = 0; i < 10'000; ++i) {
    ++random[Order({.strategy = Placement::kRandom})[0]];
    ++free[Order({.host = "elsewhere"})[0]];
  }
  for (const auto& [owner, count] : random) EXPECT_NEAR(count, 2500, 200) << owner;
  EXPECT_NEAR(free[0], 10'000 * 10 / 230, 150);
  EXPECT_NEAR(free[1], 10'000 * 90 / 230, 250);
}

TEST_F(PlacementTest, GoneAndDrainingOwnersGetNothing) {
  owners_[1].draining = true;
  owners_[3].live = false;
  EXPECT_THAT(Order({.preferred = {owners_[1].address}}), UnorderedElementsAre(0, 2));
}

TEST_F(PlacementTest, NamesAreStrict) {
  EXPECT_EQ(*ParsePlacement("random"), Placement::kRandom);
  const auto wrong = ParsePlacement("local_first");
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().detail, testing::HasSubstr("local-first"));
}

}  // namespace
}  // namespace kvcove::requester
