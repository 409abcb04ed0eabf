// SPDX-License-Identifier: Apache-2.0
#include "kvcove/disklog/staging.h"

#include <gtest/gtest.h>

#include <vector>

#include "kvcove/base/random.h"

namespace kvcove::disklog {
namespace {

bool Inside(std::span<std::byte> memory, std::span<std::byte> buffer) {
  return buffer.data() >= memory.data() &&
         buffer.data() + buffer.size() <= memory.data() + memory.size();
}

TEST(StagingTest, BuffersAreWholeBlocksThatDoNotOverlap) {
  constexpr std::uint64_t kBytes = 4 << 20;
  Staging staging(kBytes);
  ASSERT_EQ(staging.memory().size(), kBytes);
  struct Taken {
    Staging::Buffer buffer;
    std::byte mark;
  };
  std::vector<Taken> taken;
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    if (taken.size() < 40 && random.OneIn(2)) {
      const std::uint64_t bytes = 1 + random.Below(300 << 10);
      Staging::Buffer buffer = staging.Take(bytes);
      ASSERT_GE(buffer.span().size(), bytes);
      ASSERT_EQ(buffer.span().size() % kBlockBytes, 0U);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(buffer.span().data()) % kBlockBytes, 0U);
      const auto mark = static_cast<std::byte>(i);
      buffer.span().front() = buffer.span().back() = mark;
      taken.push_back({.buffer = std::move(buffer), .mark = mark});
    } else if (!taken.empty()) {
      std::swap(taken[random.Below(taken.size())], taken.back());
      const std::span<std::byte> span = taken.back().buffer.span();
      ASSERT_EQ(span.front(), taken.back().mark);
      ASSERT_EQ(span.back(), taken.back().mark);
      taken.pop_back();
    }
  }
  taken.clear();
  EXPECT_TRUE(Inside(staging.memory(), staging.Take(kBytes).span())) << "it is one run again";
}

TEST(StagingTest, WhatFindsNoRoomLiesBeside) {
  Staging staging(2 << 20);
  const Staging::Buffer first = staging.Take(1 << 20);
  EXPECT_TRUE(Inside(staging.memory(), first.span()));
  const Staging::Buffer second = staging.Take((1 << 20) + 1);
  EXPECT_FALSE(Inside(staging.memory(), second.span()));
  second.span().back() = std::byte{1};
  EXPECT_TRUE(Inside(staging.memory(), staging.Take(1 << 20).span()));
}

}  // namespace
}  // namespace kvcove::disklog
