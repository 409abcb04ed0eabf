// SPDX-License-Identifier: Apache-2.0
#include "kvcove/policy/id_list.h"

#include <gtest/gtest.h>

namespace kvcove::policy {
namespace {

struct ListNode {
  Link link;
};
using ListNodes = ChunkedArray<ListNode>;

std::vector<ObjectId> All(const ListNodes& nodes, const IdList<ListNodes>& list) {
  std::vector<ObjectId> all;
  for (ObjectId id = list.front(); id != kNoObject; id = nodes[id].link.next) all.push_back(id);
  return all;
}
using Ids = std::vector<ObjectId>;

TEST(IdListTest, AppendMovesAllInTheirOrder) {
  ListNodes nodes;
  nodes.Reach(9);
  IdList<ListNodes> a;
  IdList<ListNodes> b;
  a.Append(nodes, b);
  EXPECT_TRUE(a.empty());
  for (const ObjectId id : {1, 2}) a.PushBack(nodes, id);
  for (const ObjectId id : {3, 4, 5}) b.PushBack(nodes, id);
  a.Append(nodes, b);
  EXPECT_EQ(All(nodes, a), (Ids{1, 2, 3, 4, 5}));
  EXPECT_TRUE(b.empty());
  a.Erase(nodes, 3);
  a.Erase(nodes, 5);
  a.PushBack(nodes, 6);
  EXPECT_EQ(All(nodes, a), (Ids{1, 2, 4, 6}));
  b.Append(nodes, a);
  EXPECT_EQ(All(nodes, b), (Ids{1, 2, 4, 6}));
  EXPECT_EQ(b.back(), 6U);
}

TEST(ChunkedArrayTest, WhatIsReachedIsThereAndNothingBefore) {
  ChunkedArray<int> array;
  EXPECT_FALSE(array.Has(0));
  array.Reach(100'000);
  EXPECT_TRUE(array.Has(100'000));
  EXPECT_FALSE(array.Has(0));
  array[100'000] = 7;
  array.Reach(0);
  EXPECT_EQ(array[0], 0);
  EXPECT_EQ(array[100'000], 7);
}

}  // namespace
}  // namespace kvcove::policy
