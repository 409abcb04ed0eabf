// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/layout.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace kvcove::connector {
namespace {

constexpr std::uint64_t kLayoutBlocks = 5;
constexpr std::uint64_t kTokens = 4;
constexpr std::uint64_t kHeads = 4;
constexpr std::uint64_t kDim = 8;

// A dense tensor whose axes lie in the order given, the slowest first; elements of 2 bytes.
LayerMemory Dense(const std::vector<AxisKind>& order, std::uint64_t heads = kHeads) {
  static const std::map<AxisKind, std::uint64_t> kCounts = {
      {AxisKind::kBlock, kLayoutBlocks}, {AxisKind::kLayer, 3},       {AxisKind::kKv, 2},
      {AxisKind::kHead, kHeads},         {AxisKind::kToken, kTokens}, {AxisKind::kElement, kDim}};
  LayerMemory layer{.name = "l", .base = 4096, .element_bytes = 2};
  std::uint64_t stride = 2;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const std::uint64_t count = *at == AxisKind::kHead ? heads : kCounts.at(*at);
    layer.axes.insert(layer.axes.begin(), {.kind = *at, .count = count, .stride_bytes = stride});
    stride *= count;
  }
  return layer;
}

using enum AxisKind;
const LayerMemory kFlashAttention = Dense({kKv, kBlock, kToken, kHead, kElement});
const LayerMemory kFlashInfer = Dense({kBlock, kKv, kToken, kHead, kElement});
const LayerMemory kHeadMajor = Dense({kBlock, kKv, kHead, kToken, kElement});
const LayerMemory kPacked = Dense({kBlock, kLayer, kKv, kToken, kHead, kElement});
const LayerMemory kMla = Dense({kBlock, kToken, kElement});

TEST(LayoutTest, ABlockIsAllOfItsBytesOnce) {
  for (const LayerMemory& layer : {kFlashAttention, kFlashInfer, kHeadMajor, kPacked, kMla}) {
    std::uint32_t heads = 1;
    std::uint64_t total = layer.element_bytes;
    for (const Axis& axis : layer.axes) {
      if (axis.kind == kHead) heads = static_cast<std::uint32_t>(axis.count);
      total *= axis.count;
    }
    const auto runs = RunsOf(layer, 0, heads);
    ASSERT_TRUE(runs);
    EXPECT_EQ(runs->bytes * runs->blocks, total);
    std::map<std::uint64_t, int> seen;
    for (std::uint64_t block = 0; block < runs->blocks; ++block) {
      for (const connector::Run& run : runs->runs) {
        for (std::uint64_t i = 0; i < run.bytes; ++i) {
          ++seen[block * runs->block_stride + run.offset + i];
        }
      }
    }
    EXPECT_EQ(seen.size(), total);
    for (const auto& [offset, times] : seen) ASSERT_EQ(times, 1) << offset;
  }
}

TEST(LayoutTest, WhatLiesTogetherIsOneRun) {
  EXPECT_EQ(RunsOf(kFlashInfer, 0, kHeads)->runs.size(), 1U);
  EXPECT_EQ(RunsOf(kFlashAttention, 0, kHeads)->runs.size(), 2U);  // K and V
  EXPECT_EQ(RunsOf(kMla, 0, 1)->runs.size(), 1U);
  EXPECT_EQ(RunsOf(kPacked, 0, kHeads)->runs.size(), 1U);
  // A share of the heads: two runs where heads are outside of tokens, one a token where not.
  EXPECT_EQ(RunsOf(kHeadMajor, 1, 2)->runs.size(), 2U);
  EXPECT_EQ(RunsOf(kFlashInfer, 1, 2)->runs.size(), 2 * kTokens);
}

// DEF-8: the order comes from named axes, nothing is guessed from sizes or strides.
TEST(LayoutTest, TheOrderOfBytesSaysWhatMayShare) {
  EXPECT_EQ(OrderOf(kFlashAttention), OrderOf(kFlashInfer));
  EXPECT_NE(OrderOf(kFlashInfer), OrderOf(kHeadMajor));
  EXPECT_NE(OrderOf(kFlashInfer), OrderOf(kPacked));
  // Ranks with other numbers of heads still share.
  EXPECT_EQ(OrderOf(Dense({kBlock, kKv, kHead, kToken, kElement}, 1)), OrderOf(kHeadMajor));
}

// Two ranks' parts of the heads are the bytes of one rank that has both.
TEST(LayoutTest, PartsOfHeadsAreWhatAnotherSizeHas) {
  const LayerMemory half = Dense({kBlock, kKv, kHead, kToken, kElement}, kHeads / 2);
  const auto part = RunsOf(kHeadMajor, 2, 2);
  const auto whole = RunsOf(half, 0, 2);
  ASSERT_TRUE(part && whole);
  EXPECT_EQ(part->bytes, whole->bytes);
}

TEST(LayoutTest, WrongAxesAreRefusedWithTheLayersName) {
  LayerMemory layer = kFlashInfer;
  layer.axes.erase(layer.axes.begin());
  EXPECT_FALSE(RunsOf(layer, 0, kHeads));
  layer = kFlashInfer;
  layer.axes[1].stride_bytes = layer.axes[2].stride_bytes;  // they overlap
  const auto overlapping = RunsOf(layer, 0, kHeads);
  ASSERT_FALSE(overlapping);
  EXPECT_NE(overlapping.error().detail.find("'l'"), std::string::npos);
  EXPECT_FALSE(RunsOf(kFlashInfer, 3, 2));
  EXPECT_FALSE(RunsOf(kMla, 1, 1));
  layer = kMla;
  layer.base = 0;
  EXPECT_FALSE(RunsOf(layer, 0, 1));
}

}  // namespace
}  // namespace kvcove::connector
