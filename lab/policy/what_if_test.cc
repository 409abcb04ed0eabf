// SPDX-License-Identifier: Apache-2.0
// tests/integration/what_if_test.cc compares the estimates with the simulators.
#include "kvcove/policy/what_if.h"

#include <gtest/gtest.h>

#include "kvcove/policy/what_if_disk.h"
#include "lab/policy/what_if_fixture.h"

namespace kvcove::lab {
namespace {

using policy::Access;
using policy::kWhatIfSizes;
using policy::WhatIf;
using policy::WhatIfCounts;
using policy::WhatIfDisk;

// ---- memory

TEST(WhatIfTest, ASampleHasABound) {
  const auto what_if =
      *WhatIf::Make({.policy = "lru", .capacity_bytes = 50'000, .most_sampled = 4096});
  EXPECT_GT(Estimate(*what_if, ConversationTrace()).asked, 0U);
  EXPECT_GT(what_if->shift(), 3U);
  EXPECT_LE(what_if->sampled(), 4096U);
}

TEST(WhatIfTest, AThinnerSampleKeepsThePartOfItsKeys) {
  const auto what_if = *WhatIf::Make({.policy = "lru", .capacity_bytes = 1000});
  std::vector<Access> accesses;
  for (std::uint32_t key = 1; key <= 64; ++key) accesses.push_back({.key = key, .bytes = 1});
  what_if->Apply(accesses, accesses.size());
  for (unsigned shift = 1; shift <= 3; ++shift) {
    what_if->Thin();
    EXPECT_EQ(what_if->shift(), shift);
    EXPECT_EQ(what_if->sampled(), 64U >> shift);
  }
  what_if->Apply(accesses, accesses.size());
  EXPECT_EQ(what_if->Read().asked, 128U);
  EXPECT_EQ(what_if->Read().hits[1], 64U) << "8 of them stand for all";
  for (unsigned i = 0; i < 20; ++i) what_if->Thin();
  EXPECT_EQ(what_if->shift(), WhatIf::kMostShift);
}

TEST(WhatIfTest, NoCountEverDecreases) {
  const auto what_if =
      *WhatIf::Make({.policy = "lru", .capacity_bytes = 20'000, .most_sampled = 1024});
  WhatIfCounts before;
  for (std::size_t i = 0; i + 50 < ConversationTrace().size(); i += 50) {
    const WhatIfCounts counts = Estimate(*what_if, std::span(ConversationTrace()).subspan(i, 50));
    ASSERT_GE(counts.asked, before.asked);
    for (std::size_t size = 0; size < kWhatIfSizes.size(); ++size) {
      ASSERT_GE(counts.hits[size], before.hits[size]);
      ASSERT_LE(counts.hits[size], counts.asked);
    }
    before = counts;
  }
}

TEST(WhatIfTest, NobodyFindsWhatWasRemovedOrVoided) {
  const auto what_if = *WhatIf::Make({.policy = "default", .capacity_bytes = 100});
  const auto asked = [](std::uint32_t key, std::uint16_t slot) {
    return Access{.key = key, .bytes = 1, .slot = slot};
  };
  const std::vector<Access> first = {asked(1, 1), asked(2, 1), asked(3, 2), asked(4, 2)};
  what_if->Apply(first, first.size());
  const std::vector<Access> then = {{.key = 1, .kind = Access::Kind::kRemoved},
                                    {.slot = 2, .kind = Access::Kind::kVoided}};
  what_if->Apply(then, 0);
  EXPECT_EQ(what_if->sampled(), 1U);
  what_if->Apply(first, first.size());
  const WhatIfCounts counts = what_if->Read();
  EXPECT_EQ(counts.asked, 8U);
  for (const std::uint64_t hits : counts.hits) EXPECT_EQ(hits, 1U) << "key 2 alone";
}

TEST(WhatIfTest, SlotsThatAreVoidedTogetherAreTakenTogether) {
  const auto voided = [](std::uint16_t slot) {
    return Access{.slot = slot, .kind = Access::Kind::kVoided};
  };
  const std::vector<Access> accesses = {voided(7), voided(3), voided(5), {.key = 1}, voided(4)};
  std::span<const Access> rest = accesses;
  EXPECT_EQ(policy::TakeVoided(rest), (std::vector<std::uint16_t>{3, 5, 7}));
  EXPECT_EQ(rest.size(), 2U);
  EXPECT_TRUE(policy::TakeVoided(rest).empty());
  EXPECT_EQ(rest.size(), 2U);
}

TEST(WhatIfTest, AnObjectThatNoSizeHasRoomForIsForgotten) {
  const auto what_if = *WhatIf::Make({.policy = "lru", .capacity_bytes = 10});
  const std::vector<Access> accesses(2, Access{.key = 1, .bytes = 25});
  what_if->Apply(accesses, 2);
  const WhatIfCounts counts = what_if->Read();
  EXPECT_EQ(counts.hits[2], 0U) << "20 bytes";
  EXPECT_EQ(counts.hits[3], 1U) << "40 bytes";
  const std::vector<Access> larger(2, Access{.key = 2, .bytes = 41});
  what_if->Apply(larger, 2);
  EXPECT_EQ(what_if->Read().hits[3], 1U);
  EXPECT_EQ(what_if->sampled(), 1U);
}

TEST(WhatIfTest, RefusesAPolicyThatIsNone) {
  EXPECT_FALSE(WhatIf::Make({.policy = "arc", .capacity_bytes = 1}));
}

// ---- disks

TEST(WhatIfDiskTest, ASampleHasABound) {
  WhatIfDisk what_if({.capacity_bytes = 50'000, .most_sampled = 2048});
  (void)EstimateDisk(what_if, ConversationTrace(), 1000);
  EXPECT_GT(what_if.shift(), 3U);
}

// The thinnest sample of 2 TiB in values of 64 KiB has more objects than `most_sampled`. A write
// that looked at all of them each time would take the janitor's whole core.
TEST(WhatIfDiskTest, ADiskThatIsTooLargeForTheThinnestSampleIsSweptSeldom) {
  constexpr std::uint32_t kWrites = 20'000;
  WhatIfDisk what_if({.capacity_bytes = std::uint64_t{1} << 50, .most_sampled = 1024});
  for (std::uint32_t i = 1; i <= kWrites; ++i) {
    const Access down{
        .key = i << WhatIf::kMostShift, .bytes = 4096, .kind = Access::Kind::kWentDown};
    what_if.Apply({&down, 1}, 0, 0);
  }
  EXPECT_EQ(what_if.shift(), WhatIf::kMostShift);
  EXPECT_EQ(what_if.sampled(), kWrites);
  EXPECT_LT(what_if.swept(), 5 * kWrites);
}

TEST(WhatIfDiskTest, NobodyFindsWhatWasRemovedOrVoided) {
  WhatIfDisk what_if({.capacity_bytes = 100});
  std::vector<Access> down;
  for (const std::uint32_t key : {1, 2, 3}) {
    down.push_back({.key = key,
                    .bytes = 1,
                    .slot = static_cast<std::uint16_t>(key),
                    .kind = Access::Kind::kWentDown});
  }
  what_if.Apply(down, 0, 0);
  const std::vector<Access> then = {{.key = 1, .kind = Access::Kind::kRemoved},
                                    {.slot = 2, .kind = Access::Kind::kVoided}};
  what_if.Apply(then, 0, 0);
  std::vector<Access> asked;
  for (const std::uint32_t key : {1, 2, 3}) {
    asked.push_back({.key = key, .bytes = 1, .kind = Access::Kind::kStored});
  }
  what_if.Apply(asked, 3, 0);
  EXPECT_EQ(what_if.Read().hits[1], 1U);
}

}  // namespace
}  // namespace kvcove::lab
