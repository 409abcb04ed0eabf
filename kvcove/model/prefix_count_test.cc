// SPDX-License-Identifier: Apache-2.0
#include "kvcove/model/prefix_count.h"

#include <gtest/gtest.h>

namespace kvcove {
namespace {

using Holders = std::vector<PrefixCount::Holder>;
constexpr Tier kMemory = Tier::kMemory;
constexpr Tier kDisk = Tier::kDisk;

TEST(PrefixCountTest, EachOwnersPrefixEndsAtItsFirstGap) {
  PrefixCount count;
  count.Add(Holders{{7, kMemory}, {2, kMemory}});
  count.Add(Holders{{7, kMemory}});
  count.Add(Holders{{2, kMemory}, {7, kMemory}});  // 2 lacks the key before
  count.Add(Holders{{9, kMemory}});                // begins in the middle
  count.End(MissReason::kEvicted);
  const PrefixShares shares = count.Shares();
  EXPECT_EQ(shares.keys, 4U);
  EXPECT_EQ(shares.reason, MissReason::kEvicted);
  const std::vector<PrefixShare> wanted = {
      {.owner = 7, .prefix = 3, .memory_prefix = 3, .memory = 3, .disk = 0},
      {.owner = 2, .prefix = 1, .memory_prefix = 1, .memory = 2, .disk = 0},
      {.owner = 9, .prefix = 0, .memory_prefix = 0, .memory = 1, .disk = 0}};
  EXPECT_EQ(shares.owners, wanted);
}

TEST(PrefixCountTest, AKeyOnADiskEndsThePrefixInMemoryOnly) {
  PrefixCount count;
  count.Add(Holders{{1, kMemory}, {3, kDisk}});
  count.Add(Holders{{1, kDisk}, {3, kMemory}});
  count.Add(Holders{{1, kMemory}});
  const PrefixShares shares = count.Shares();
  EXPECT_EQ(shares.reason, MissReason::kNone) << "each key has an owner";
  const std::vector<PrefixShare> wanted = {
      {.owner = 1, .prefix = 3, .memory_prefix = 1, .memory = 2, .disk = 1},
      {.owner = 3, .prefix = 2, .memory_prefix = 0, .memory = 1, .disk = 1}};
  EXPECT_EQ(shares.owners, wanted);
}

TEST(PrefixCountTest, OwnersWithEqualPrefixesAreOrderedByTheirMemory) {
  PrefixCount count;
  count.Add(Holders{{1, kDisk}, {2, kMemory}, {3, kMemory}});
  count.Add(Holders{{1, kMemory}, {2, kDisk}, {3, kMemory}});
  std::vector<std::uint16_t> order;
  for (const PrefixShare& share : count.Shares().owners) order.push_back(share.owner);
  EXPECT_EQ(order, (std::vector<std::uint16_t>{3, 2, 1}));
}

TEST(PrefixCountTest, AnEndAlwaysHasAReason) {
  PrefixCount count;
  count.Add(Holders{{1, kMemory}});
  count.End(MissReason::kNone);
  EXPECT_EQ(count.Shares().reason, MissReason::kOwnerGone);
}

TEST(PrefixCountTest, APrefixWithoutItsFirstKeyHasNoOwners) {
  PrefixCount count;
  EXPECT_FALSE(count.ended());
  count.End(MissReason::kNeverPut);
  EXPECT_TRUE(count.ended());
  EXPECT_EQ(count.Shares(), (PrefixShares{.reason = MissReason::kNeverPut, .owners = {}}));
}

}  // namespace
}  // namespace kvcove
