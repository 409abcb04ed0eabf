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

// An RDMA device may keep a piece for as long as the process lives.
TEST(DeviceRingTest, PiecesThatAreLentForLongDelayNoOther) {
  constexpr std::uint64_t kUnit = DeviceRing::kAlign;
  std::vector<std::byte> memory(16 * kUnit);
  DeviceRing ring(memory);
  const auto first = ring.Take(2 * kUnit);
  const auto before = ring.Take(3 * kUnit);
  const auto middle = ring.Take(kUnit);
  ASSERT_TRUE(first && before && middle);
  ring.Give(*before);
  for (int turn = 0; turn < 100; ++turn) {
    const auto one = ring.Take(3 * kUnit);
    const auto other = ring.Take(4 * kUnit);
    ASSERT_TRUE(one && other) << turn;
    // In another order than that of their loans.
    ring.Give(*one);
    ring.Give(*other);
  }
  EXPECT_EQ(ring.used(), 3 * kUnit);
  EXPECT_TRUE(ring.Take(10 * kUnit)) << "all that is behind the piece in the middle";
  EXPECT_FALSE(ring.Take(4 * kUnit)) << "a piece is one extent";
  EXPECT_TRUE(ring.Take(3 * kUnit)) << "between both";
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
