// SPDX-License-Identifier: Apache-2.0
// What a step's plan costs the threads that code it: nothing is allocated for a block.
#include "kvcove/connector/plan.h"

#include <gtest/gtest.h>

#include "kvcove/base/thread_sanitizer.h"
#include "kvcove/connector/counted_allocations.h"

namespace kvcove::connector {
namespace {

Plan PlanOf(std::uint32_t chunks) {
  Plan plan;
  LoadOrder& load = plan.loads.emplace_back(LoadOrder{.job = 1, .request = "r", .version = "w"});
  for (std::uint32_t c = 0; c < chunks; ++c) {
    load.chunks.push_back({.chunk = c, .block = c + 1, .hash = std::string(32, 'h')});
  }
  return plan;
}

std::uint64_t AllocationsToCode(std::uint32_t chunks) {
  const Plan plan = PlanOf(chunks);
  const std::uint64_t before = allocations;
  const Result<Plan> decoded = DecodePlan(Encode(plan));
  const std::uint64_t made = allocations - before;
  EXPECT_EQ(*decoded, plan);
  return made;
}

TEST(PlanTest, NothingIsAllocatedForABlock) {
  if (KVCOVE_THREAD_SANITIZER) GTEST_SKIP() << "nothing counts the allocations in this build";
  EXPECT_EQ(AllocationsToCode(512), AllocationsToCode(4));
  EXPECT_LE(AllocationsToCode(512), 8U);
}

TEST(PlanTest, HashesOfUpTo64BytesAreKept) {
  for (const std::size_t size : {0U, 16U, 32U, 64U}) {
    EXPECT_EQ(std::string_view(BlockHash(std::string(size, 'x'))), std::string(size, 'x'));
  }
  EXPECT_EQ(std::string_view(BlockHash(std::string(65, 'x'))).size(), 64U);
  // A longer one on the wire is no plan.
  std::string bytes = Encode(PlanOf(1));
  const std::size_t at = bytes.find(std::string(32, 'h'));
  bytes.insert(at, std::string(40, 'h'));
  bytes[at - 4] = 72;
  EXPECT_FALSE(DecodePlan(bytes));
}

}  // namespace
}  // namespace kvcove::connector
