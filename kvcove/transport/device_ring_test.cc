// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/device_ring.h"

#include <gtest/gtest.h>

#include <vector>

#include "kvcove/base/random.h"

namespace kvcove::transport {
namespace {

TEST(DeviceRingTest, PiecesNeverOverlapAndRoomComesBack) {
  std::vector<std::byte> memory(64 * DeviceRing::kAlign);
  Random random(3);
  DeviceRing ring(memory);
  std::vector<std::span<std::byte>> out;
  std::uint64_t taken = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    if (random.OneIn(2)) {
      const std::uint64_t bytes = 1 + random.Below(20 * DeviceRing::kAlign);
      const auto piece = ring.Take(bytes);
      if (!piece) continue;
      ++taken;
      ASSERT_EQ(piece->size(), bytes);
      ASSERT_GE(piece->data(), memory.data());
      ASSERT_LE(piece->data() + bytes, memory.data() + memory.size());
      for (const auto& other : out) {
        ASSERT_TRUE(other.data() + other.size() <= piece->data() ||
                    piece->data() + bytes <= other.data());
      }
      out.push_back(*piece);
    } else if (!out.empty()) {
      const std::size_t which = random.Below(out.size());
      ring.Give(out[which]);
      out.erase(out.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  EXPECT_GT(taken, 5000);
  for (const auto& piece : out) ring.Give(piece);
  EXPECT_EQ(ring.used(), 0);
  EXPECT_TRUE(ring.Take(memory.size()));
}

TEST(DeviceRingTest, WhatIsLargerThanTheRingIsRefused) {
  std::vector<std::byte> memory(1024);
  DeviceRing ring(memory);
  EXPECT_FALSE(ring.Take(1025));
  EXPECT_FALSE(ring.Take(0));
  const auto whole = ring.Take(1024);
  ASSERT_TRUE(whole);
  EXPECT_EQ(ring.used(), 1024);
  EXPECT_FALSE(ring.Take(1));
  ring.Give(*whole);
  EXPECT_TRUE(ring.Take(1));
}

}  // namespace
}  // namespace kvcove::transport
