// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/model/ids.h"

namespace kvcove::connector {
namespace {

using testing::ElementsAre;

class ShardsTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kLayerBytes = 8;

  ShardsTest() {
    shape_ = {.model = "m", .hash_tokens = 4};
    shape_.groups = {{.chunk_tokens = 4}};
  }
  // A layer of `blocks` blocks; those of one block lie one behind the other.
  static LayerMemory Layer(const std::string& name, std::uintptr_t base, std::uint64_t blocks,
                           std::uint32_t group = 0, std::uint64_t bytes = kLayerBytes) {
    return {.name = name,
            .group = group,
            .base = base,
            .element_bytes = bytes,
            .axes = {{.kind = AxisKind::kBlock, .count = blocks, .stride_bytes = 4 * bytes}}};
  }
  Shards Make(std::size_t layers, std::uint32_t parts = 1) const {
    return Shards(shape_, Keys(shape_), {}, layers, parts);
  }
  static void Add(Shards& shards, const LayerMemory& layer, bool device = false) {
    const auto runs = shards.RunsIn(layer);
    ASSERT_TRUE(runs);
    shards.Add(layer, *runs, device);
  }
  EngineShape shape_;
};

TEST_F(ShardsTest, LayersThatTouchAreOneRun) {
  Shards shards = Make(3);
  Add(shards, Layer("a", 4096, 16));
  Add(shards, Layer("b", 4096 + kLayerBytes, 9));
  Add(shards, Layer("c", 65536, 16));
  ASSERT_EQ(shards.At(0).size(), 1U);
  const Shard& shard = shards.At(0).front();
  ASSERT_EQ(shard.runs.size(), 2U);
  EXPECT_EQ(shard.runs[0].bytes, 2 * kLayerBytes);
  EXPECT_EQ(shard.runs[0].block_stride, 4 * kLayerBytes);
  EXPECT_EQ(shard.runs[1].base, 65536U);
  EXPECT_EQ(shard.blocks, 9U) << "that all layers have";
  EXPECT_THAT(shards.ChunkBytes(), ElementsAre(3 * kLayerBytes));
  EXPECT_TRUE(shards.Check());
}

TEST_F(ShardsTest, PartsCutTheLayersInOrder) {
  Shards shards = Make(4, /*parts=*/2);
  for (int layer = 0; layer < 4; ++layer) {
    Add(shards, Layer(std::to_string(layer), 4096 + layer * kLayerBytes, 16));
  }
  ASSERT_EQ(shards.At(0).front().runs.size(), 2U) << "no run is of two parts";
  EXPECT_EQ(shards.At(0).front().runs[1].part, 1U);
  ASSERT_NE(shards.PartOf("1"), nullptr);
  EXPECT_EQ(*shards.PartOf("1"), 0U);
  EXPECT_EQ(*shards.PartOf("2"), 1U);
  EXPECT_EQ(shards.PartOf("4"), nullptr);
}

TEST_F(ShardsTest, ALayerOfNoGroupIsRefused) {
  const auto runs = Make(1).RunsIn(Layer("a", 4096, 16, /*group=*/1));
  ASSERT_FALSE(runs);
  EXPECT_EQ(runs.error().code, Code::kInvalid);
  EXPECT_THAT(runs.error().detail, testing::HasSubstr("'a'"));
}

TEST_F(ShardsTest, ALayerWithoutBlocksIsRefused) {
  LayerMemory layer = Layer("a", 4096, 16);
  layer.axes.clear();
  EXPECT_FALSE(Make(1).RunsIn(layer));
}

TEST_F(ShardsTest, AnObjectThatThePoolDoesNotTakeIsRefused) {
  Shards shards = Make(1);
  Add(shards, Layer("a", 4096, 2, 0, std::uint64_t{1} << 40));
  EXPECT_FALSE(shards.Check());
}

TEST_F(ShardsTest, HeadsOfARankAreShardsOfTheirOwn) {
  shape_.store_tp = 2;
  shape_.groups[0].heads = 2;
  LayerMemory layer = Layer("a", 4096, 16);
  layer.element_bytes = 4;
  layer.axes.push_back({.kind = AxisKind::kHead, .count = 2, .stride_bytes = 4});
  Shards shards = Make(1);
  Add(shards, layer, /*device=*/true);
  ASSERT_EQ(shards.At(0).size(), 2U);
  EXPECT_NE(shards.At(0)[0].part.tag, shards.At(0)[1].part.tag);
  EXPECT_EQ(shards.At(0)[0].bytes, 4U);
  EXPECT_EQ(shards.At(0)[1].runs[0].base, 4100U);
  EXPECT_TRUE(shards.device());
}

TEST_F(ShardsTest, ALayerThatTheCutWouldLeaveHeadsOfIsRefused) {
  shape_.store_tp = 2;
  shape_.groups[0].heads = 2;
  LayerMemory layer = Layer("a", 4096, 16);
  layer.element_bytes = 4;
  // Keys and values apart, or more heads than the first layer of its group.
  layer.axes.push_back({.kind = AxisKind::kHead, .count = 4, .stride_bytes = 4});
  const auto runs = Make(1).RunsIn(layer);
  ASSERT_FALSE(runs);
  EXPECT_EQ(runs.error().code, Code::kInvalid);
  EXPECT_THAT(runs.error().detail, testing::HasSubstr("leave store_tp out"));
  shape_.store_tp = 0;
  EXPECT_TRUE(Make(1).RunsIn(layer)) << "uncut, it is whole";
}

TEST_F(ShardsTest, WithoutLayersThereIsNothing) {
  const Shards shards = Make(0);
  EXPECT_FALSE(shards.device());
  EXPECT_THAT(shards.ChunkBytes(), ElementsAre(0U));
}

}  // namespace
}  // namespace kvcove::connector
