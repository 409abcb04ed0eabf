// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/owner.h"

#include <gtest/gtest.h>

#include "kvcove/base/size.h"

namespace kvcove::owner {
namespace {

// The master places objects by it: an owner that said "no room" at first got none for a renewal.
TEST(OwnerTest, ReportsItsRoomBeforeAnyThreadRuns) {
  const auto owner = Owner::Open({.memory_bytes = 16 * kMiB}, SystemClock::Instance());
  ASSERT_TRUE(owner) << owner.error().ToString();
  EXPECT_EQ((*owner)->Report().free_bytes, 16 * kMiB);
}

}  // namespace
}  // namespace kvcove::owner
