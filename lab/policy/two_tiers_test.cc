// SPDX-License-Identifier: Apache-2.0
#include "lab/policy/two_tiers.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kvcove/policy/retention.h"
#include "lab/policy/workload.h"
#include "lab/policy/zone_log.h"

namespace kvcove::lab {
namespace {

constexpr Descent kDescents[] = {Descent::kApart, Descent::kVictims,  Descent::kUsed,
                                 Descent::kWorth, Descent::kAdmitted, Descent::kStored};

TwoTierCount Count(std::span<const Chain> requests, TwoTierOptions options) {
  return *SimulateTwoTiers(options, requests);
}

std::vector<Chain> Sessions() {
  auto requests = *MakeWorkload("sessions", {}, 5);
  requests.resize(2500);
  return requests;
}

TEST(TwoTiersTest, WhatMemoryGivesUpIsFoundOnTheDisk) {
  const std::vector<Chain> requests = {{0, 1, 2, 3}, {4, 5, 6, 7}, {0, 1, 2, 3}};
  const TwoTierCount count = Count(requests, {.memory_policy = "lru",
                                              .disk_policy = "lru",
                                              .descent = Descent::kVictims,
                                              .memory_blocks = 4,
                                              .disk_blocks = 8});
  EXPECT_EQ(count.together.hit_blocks, 4U);
  EXPECT_EQ(count.memory_hits, 0U);
  EXPECT_EQ(count.written, 8U) << "the first request, then the second one";
}

// What was read from the disk is still there when memory gives it up again.
TEST(TwoTiersTest, NothingIsWrittenTwiceWhileItIsOnTheDisk) {
  std::vector<Chain> requests;
  for (int round = 0; round < 5; ++round) {
    requests.push_back({0, 1, 2, 3});
    requests.push_back({4, 5, 6, 7});
  }
  for (const Descent descent : {Descent::kApart, Descent::kVictims, Descent::kStored}) {
    const TwoTierCount count = Count(requests, {.memory_policy = "lru",
                                                .disk_policy = "lru",
                                                .descent = descent,
                                                .memory_blocks = 4,
                                                .disk_blocks = 8});
    EXPECT_EQ(count.together.hit_blocks, 32U) << static_cast<int>(descent);
    EXPECT_EQ(count.written, 8U) << static_cast<int>(descent);
  }
}

// With room for all on the disk, each way that writes all finds all that was ever asked for.
TEST(TwoTiersTest, ADiskForAllFindsAll) {
  const std::vector<Chain> requests = Sessions();
  const HitCount all = *Simulate("lru", requests, 1'000'000);
  for (const Descent descent : {Descent::kVictims, Descent::kWorth, Descent::kStored}) {
    const TwoTierCount count =
        Count(requests, {.descent = descent, .memory_blocks = 500, .disk_blocks = 1'000'000});
    EXPECT_EQ(count.together.hit_blocks, all.hit_blocks) << static_cast<int>(descent);
  }
}

TEST(TwoTiersTest, TheBoundsHoldForEachWay) {
  const std::vector<Chain> requests = Sessions();
  const HitCount sum = *Simulate("default", requests, 3000);
  const HitCount alone = *Simulate("default", requests, 1000);
  for (const Descent descent : kDescents) {
    SCOPED_TRACE(static_cast<int>(descent));
    const TwoTierOptions options{.descent = descent, .memory_blocks = 1000, .disk_blocks = 2000};
    const TwoTierCount count = Count(requests, options);
    EXPECT_EQ(count.together.hit_blocks, Count(requests, options).together.hit_blocks)
        << "the same requests, the same hits";
    EXPECT_GE(count.together.hit_blocks, count.memory_hits);
    EXPECT_GE(count.together.hit_blocks, alone.hit_blocks) << "a disk takes nothing away";
    EXPECT_LT(count.together.ratio(), sum.ratio() + .01);
    EXPECT_LE(count.written, count.together.blocks);
  }
}

// The disk's policy that hears of requests finds more than one that hears of arrivals, and what
// was asked for once only is what most writes are for.
TEST(TwoTiersTest, RequestsTellTheDiskMoreThanArrivals) {
  const std::vector<Chain> requests = Sessions();
  const auto count = [&](Descent descent) {
    return Count(requests, {.descent = descent, .memory_blocks = 1000, .disk_blocks = 2000});
  };
  EXPECT_GT(count(Descent::kVictims).together.hit_blocks,
            count(Descent::kApart).together.hit_blocks);
  EXPECT_LT(count(Descent::kUsed).written, count(Descent::kVictims).written / 2);
  EXPECT_LE(count(Descent::kWorth).written, count(Descent::kVictims).written);
}

// WriteFilter writes much less where much is asked for once, and loses little or nothing.
TEST(TwoTiersTest, AdmissionSavesWritesForFewHits) {
  const auto count = [](std::string_view workload, Descent descent, bool zones) {
    auto requests = *MakeWorkload(workload, {}, 3);
    requests.resize(std::min<std::size_t>(requests.size(), 2500));
    return Count(requests,
                 {.descent = descent, .zones = zones, .memory_blocks = 1000, .disk_blocks = 9000});
  };
  for (const bool zones : {false, true}) {
    SCOPED_TRACE(zones);
    const TwoTierCount all = count("zipf", Descent::kVictims, zones);
    const TwoTierCount some = count("zipf", Descent::kAdmitted, zones);
    EXPECT_LT(some.written, all.written / 2);
    EXPECT_GT(some.together.ratio(), all.together.ratio() - .01);
    // Where all comes back, all is written.
    const TwoTierCount agents = count("agents", Descent::kVictims, zones);
    const TwoTierCount chosen = count("agents", Descent::kAdmitted, zones);
    EXPECT_GT(chosen.together.ratio(), agents.together.ratio() - .005);
  }
}

// What was read moves while the others go, at no more than the bound of write amplification.
TEST(TwoTiersTest, MovesKeepWhatWasRead) {
  const auto count = [](std::string_view workload, bool moves) {
    auto requests = *MakeWorkload(workload, {}, 3);
    requests.resize(std::min<std::size_t>(requests.size(), 2500));
    return Count(requests, {.descent = Descent::kVictims,
                            .zones = true,
                            .moves = moves,
                            .memory_blocks = 500,
                            .disk_blocks = 4000});
  };
  for (const std::string_view workload : {"zipf", "sessions", "agents"}) {
    SCOPED_TRACE(workload);
    const TwoTierCount without = count(workload, false);
    const TwoTierCount with = count(workload, true);
    EXPECT_EQ(without.moved, 0U);
    EXPECT_GE(with.together.hit_blocks, without.together.hit_blocks);
    EXPECT_LE(with.write_amplification(), 1.15);
  }
}

TEST(ZoneLogTest, WhatIsBriefGoesBeforeWhatIsOlder) {
  ZoneLog log({.blocks = 640, .moves = true});  // zones of ten
  const auto nobody = [](std::uint32_t) { return false; };
  for (std::uint32_t i = 0; i < 100; ++i) log.Write(i, false);
  for (std::uint32_t i = 1000; i < 1010; ++i) log.Write(i, true);
  for (std::uint32_t i = 100; i < 500; ++i) log.Write(i, false);
  EXPECT_EQ(log.FreeZone(nobody).front(), 1000U) << "four times its age";
  EXPECT_EQ(log.FreeZone(nobody).front(), 0U);
  log.Read(10);
  log.Read(11);
  const std::vector<std::uint32_t> gone =
      log.FreeZone([](std::uint32_t block) { return block == 11; });
  EXPECT_EQ(gone.size(), 9U) << "block 10 has moved, and memory has block 11";
  EXPECT_EQ(log.moved(), 1U);
}

TEST(ZoneLogTest, WithLittleBudgetOnlyLateReadsCount) {
  EXPECT_FALSE(policy::WorthMoving(std::nullopt, 1));
  EXPECT_TRUE(policy::WorthMoving(1.5, 1));
  EXPECT_FALSE(policy::WorthMoving(1.5, .5));
  EXPECT_TRUE(policy::WorthMoving(.5, .5));
  EXPECT_FALSE(policy::WorthMoving(.5, 0));
}

// Without a policy, what was written first goes first, a zone at a time.
TEST(TwoTiersTest, ZonesForgetWhatIsOldest) {
  const std::vector<Chain> requests = {{0}, {1}, {2}, {3}, {4}, {0}, {2}};
  const TwoTierCount count = Count(requests, {.memory_policy = "lru",
                                              .disk_policy = "lru",
                                              .descent = Descent::kVictims,
                                              .zones = true,
                                              .memory_blocks = 1,
                                              .disk_blocks = 3});
  EXPECT_EQ(count.together.hit_blocks, 1U) << "0 made room for 3, 2 is still there";
  EXPECT_EQ(count.evicted, 6U);
}

TEST(TwoTiersTest, RefusesATierWithoutBlocks) {
  EXPECT_FALSE(SimulateTwoTiers({.memory_blocks = 0, .disk_blocks = 9}, {}));
  EXPECT_FALSE(SimulateTwoTiers({.memory_blocks = 9, .disk_blocks = 0}, {}));
  const auto made =
      SimulateTwoTiers({.disk_policy = "best", .memory_blocks = 9, .disk_blocks = 9}, {});
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().detail.find("s3fifo"), std::string::npos);
}

}  // namespace
}  // namespace kvcove::lab
