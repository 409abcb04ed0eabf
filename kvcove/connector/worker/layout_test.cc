// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

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

// For each element of an object, in its order: which one of a block it is, as the index of each
// axis.
std::vector<std::vector<std::uint64_t>> ElementsOf(const LayerMemory& layer) {
  std::vector<Axis> axes;
  std::uint64_t tokens = 1;
  for (const Axis& axis : layer.axes) {
    if (axis.kind != kBlock) axes.push_back(axis);
    if (axis.kind == kToken) tokens *= axis.count;
  }
  std::ranges::sort(axes, std::greater<>(), &Axis::stride_bytes);
  std::vector<std::vector<std::uint64_t>> elements;
  const auto runs = RunsOf(layer, 0, kHeads);
  for (const connector::Run& run : runs->runs) {
    for (std::uint64_t at = run.offset; at < run.offset + run.bytes; at += layer.element_bytes) {
      std::map<AxisKind, std::uint64_t> place;
      std::uint64_t rest = at;
      for (const Axis& axis : axes) {
        // The second axis of tokens counts within a piece of the first one.
        place[axis.kind] = place[axis.kind] * axis.count + rest / axis.stride_bytes;
        rest %= axis.stride_bytes;
      }
      elements.push_back({place[kLayer], place[kKv], place[kHead], place[kToken], place[kElement]});
    }
  }
  EXPECT_EQ(tokens, kTokens);
  return elements;
}

// DEF-8: the order comes from named axes, nothing is guessed from sizes or strides.
TEST(LayoutTest, WhatMayShareHasItsElementsInOneOrder) {
  EXPECT_EQ(ElementsOf(kFlashAttention), ElementsOf(kFlashInfer));
  EXPECT_NE(ElementsOf(kFlashInfer), ElementsOf(kHeadMajor));
  EXPECT_NE(ElementsOf(kFlashInfer), ElementsOf(kPacked));
}

TEST(LayoutTest, PiecesThatAKernelSeesChangeNoOrder) {
  for (const LayerMemory& whole : {kFlashInfer, kHeadMajor, kPacked, kMla}) {
    // Two pieces in each block: what was outside of the tokens is inside of the pieces.
    LayerMemory pieces = whole;
    const std::uint64_t block = pieces.axes[0].stride_bytes;
    for (Axis& axis : pieces.axes) {
      if (axis.kind == kToken) {
        const std::uint64_t token = axis.stride_bytes;
        axis.count /= 2;
        for (Axis& outer : pieces.axes) {
          if (outer.kind != kBlock && outer.stride_bytes > token) outer.stride_bytes /= 2;
        }
        break;
      }
    }
    pieces.axes.insert(pieces.axes.begin() + 1,
                       {.kind = kToken, .count = 2, .stride_bytes = block / 2});
    EXPECT_EQ(ElementsOf(pieces), ElementsOf(whole));
  }
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
