// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/put_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace kvcove::requester {
namespace {

using testing::ElementsAre;

// Three owners of 1000 bytes, on nodes 0, 1 and 1.
std::vector<PutCandidate> Three(std::vector<std::uint64_t> free, std::size_t predecessor = 9) {
  std::vector<PutCandidate> all;
  for (std::size_t i = 0; i < 3; ++i) {
    all.push_back({.owner = i,
                   .node = i == 0 ? 0 : 1,
                   .capacity_bytes = 1000,
                   .free_bytes = free[i],
                   .has_predecessor = i == predecessor});
  }
  return all;
}

TEST(PutOrderTest, TheNearOneComesFirst) {
  EXPECT_EQ(OrderForPut(Three({500, 500, 500}), {.node = 0, .bytes = 10})[0], 0U);
  EXPECT_NE(OrderForPut(Three({500, 500, 500}), {.node = 1, .bytes = 10})[0], 0U);
}

TEST(PutOrderTest, OneWithRoomComesBeforeANearOneThatMustEvict) {
  EXPECT_EQ(OrderForPut(Three({100, 100, 900}), {.node = 0, .bytes = 200})[0], 2U);
  // A little beyond the put must be free, too: others put at the same time.
  EXPECT_EQ(OrderForPut(Three({205, 100, 900}), {.node = 0, .bytes = 200})[0], 2U);
  EXPECT_EQ(OrderForPut(Three({230, 100, 900}), {.node = 0, .bytes = 200})[0], 0U);
}

TEST(PutOrderTest, WhereAllAreFullTheNearOneEvicts) {
  EXPECT_EQ(OrderForPut(Three({0, 0, 0}), {.node = 0, .bytes = 10})[0], 0U);
}

TEST(PutOrderTest, AChainStaysTogetherAmongEquals) {
  for (std::uint64_t turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(OrderForPut(Three({0, 0, 0}, 2), {.node = 1, .bytes = 10, .turn = turn})[0], 2U);
  }
  EXPECT_EQ(OrderForPut(Three({0, 0, 0}, 2), {.node = 0, .bytes = 10})[0], 0U)
      << "the near node goes first";
}

TEST(PutOrderTest, EqualOnesTakeTurns) {
  std::set<std::size_t> first;
  for (std::uint64_t turn = 0; turn < 3; ++turn) {
    const auto order = OrderForPut(Three({500, 500, 500}), {.bytes = 10, .turn = turn});
    EXPECT_EQ(order.size(), 3U);
    first.insert(order[0]);
  }
  EXPECT_THAT(first, ElementsAre(0, 1, 2)) << "no node is known to be near";
}

}  // namespace
}  // namespace kvcove::requester
