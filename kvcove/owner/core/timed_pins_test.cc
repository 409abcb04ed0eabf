// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/core/timed_pins.h"

#include <gtest/gtest.h>

namespace kvcove::owner {
namespace {

TEST(TimedPinsTest, PinsEndInTheOrderOfTheirEnds) {
  TimedPins pins;
  pins.Extend(1, 100, 30);
  pins.Extend(2, 10, 20);
  pins.Extend(3, 1, 20);
  EXPECT_EQ(pins.bytes(), 111U);
  EXPECT_EQ(pins.TakeEnded(19), std::nullopt);
  EXPECT_EQ(pins.TakeEnded(20), 2U);
  EXPECT_EQ(pins.TakeEnded(20), 3U);
  EXPECT_EQ(pins.TakeEnded(29), std::nullopt);
  EXPECT_EQ(pins.bytes(), 100U);
  EXPECT_EQ(pins.TakeEnded(31), 1U);
  EXPECT_EQ(pins.bytes(), 0U);
}

TEST(TimedPinsTest, TheLaterEndHolds) {
  TimedPins pins;
  pins.Extend(1, 100, 20);
  pins.Extend(1, 100, 30);
  pins.Extend(1, 100, 25);
  EXPECT_EQ(pins.bytes(), 100U);
  EXPECT_EQ(pins.EndOf(1), 30);
  EXPECT_EQ(pins.TakeEnded(29), std::nullopt);
  EXPECT_EQ(pins.TakeEnded(30), 1U);
  EXPECT_EQ(pins.TakeEnded(30), std::nullopt);
}

TEST(TimedPinsTest, AnErasedPinDoesNotEnd) {
  TimedPins pins;
  pins.Extend(1, 100, 20);
  pins.Erase(1);
  pins.Erase(2);
  EXPECT_EQ(pins.bytes(), 0U);
  EXPECT_EQ(pins.EndOf(1), std::nullopt);
  EXPECT_EQ(pins.TakeEnded(20), std::nullopt);
}

}  // namespace
}  // namespace kvcove::owner
