// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/worker/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::connector {
namespace {

using testing::ElementsAre;

class JobTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kLayerBytes = 8;
  static constexpr std::uint64_t kJobBlocks = 16;

  JobTest() {
    shape_ = {.model = "m", .hash_tokens = 4};
    shape_.groups = {{.chunk_tokens = 4}};
  }
  // Two layers, far from each other, in two parts.
  std::shared_ptr<const Shards> Memory() const {
    auto shards = std::make_shared<Shards>(shape_, Keys(shape_), Rank{}, 2, /*parts=*/2);
    for (const std::uintptr_t base : {std::uintptr_t{4096}, std::uintptr_t{65536}}) {
      const LayerMemory layer{
          .name = std::to_string(base),
          .base = base,
          .element_bytes = kLayerBytes,
          .axes = {
              {.kind = AxisKind::kBlock, .count = kJobBlocks, .stride_bytes = 4 * kLayerBytes}}};
      shards->Add(layer, *shards->RunsIn(layer), /*device=*/true);
    }
    return shards;
  }
  static ChunkPlace Chunk(std::uint64_t chunk, BlockId block, const char* hash) {
    return {.chunk = chunk, .block = block, .hash = hash};
  }
  std::shared_ptr<Job> Load(std::vector<ChunkPlace> chunks, bool sync = false) const {
    LoadOrder order{.job = 1, .request = "r", .sync = sync, .chunks = std::move(chunks)};
    auto job = Job::Of(order, Memory());
    Prepare(*job);
    return job;
  }
  std::shared_ptr<Job> Save(std::vector<ChunkPlace> chunks, bool goes_on = false,
                            const RequestHints& hints = {}) const {
    SaveOrder order{.job = 1, .chunks = std::move(chunks), .hints = hints, .goes_on = goes_on};
    auto job = Job::Of(order, Memory());
    Prepare(*job);
    return job;
  }
  void Prepare(Job& job) const {
    job.Prepare(shape_, Keys(shape_), {}, NamespacePriority::kUnsaid);
  }
  std::string KeyOf(const char* hash) const {
    std::string key;
    AppendKey(Keys(shape_).Tags(0).front(), hash, key);
    return key;
  }
  EngineShape shape_;
};

TEST_F(JobTest, ALoadHasAnItemAChunk) {
  const auto job = Load({Chunk(0, 3, "ab"), Chunk(1, 4, "cd")});
  ASSERT_EQ(job->items.size(), 2U);
  EXPECT_EQ(job->items[0].key, KeyOf("ab"));
  EXPECT_EQ(job->items[1].key, KeyOf("cd"));
  EXPECT_EQ(job->items[0].bytes, 2 * kLayerBytes);
  EXPECT_EQ(job->objects(), 2U);
  EXPECT_TRUE(job->bad.empty());
}

TEST_F(JobTest, ABlockThatNotAllLayersHaveFails) {
  const auto job = Load({Chunk(0, 3, "ab"), Chunk(1, kJobBlocks, "cd")});
  EXPECT_THAT(job->bad, ElementsAre(1U));
  EXPECT_TRUE(job->Hopeless(shape_));
  job->Place(0, 2);
  EXPECT_EQ(job->items[0].pieces.size(), 2U);
  EXPECT_TRUE(job->items[1].pieces.empty()) << "nothing is written there";
}

TEST_F(JobTest, ASaveSaysWhatEachValueFollows) {
  // The first place only says what the next one follows.
  const auto job = Save({Chunk(0, kNullBlock, "ab"), Chunk(1, 4, "cd"), Chunk(2, 5, "ef")});
  ASSERT_EQ(job->items.size(), 2U);
  EXPECT_EQ(job->items[0].place, 1U);
  EXPECT_EQ(job->items[0].after, KeyOf("ab"));
  EXPECT_EQ(job->items[1].after, KeyOf("cd"));
  EXPECT_TRUE(job->items[0].hints.request_goes_on);
  EXPECT_FALSE(job->items[1].hints.request_goes_on) << "the last of its request";
  EXPECT_TRUE(Save({Chunk(0, 4, "cd")}, /*goes_on=*/true)->items[0].hints.request_goes_on);
}

TEST_F(JobTest, HintsAreOfTheChunksTokens) {
  const auto job = Save({Chunk(0, 3, "ab"), Chunk(1, 4, "cd")}, false, {.ephemeral_from = 4});
  EXPECT_FALSE(job->items[0].hints.ephemeral);
  EXPECT_TRUE(job->items[1].hints.ephemeral);
}

TEST_F(JobTest, ABatchHasAtLeastOneItem) {
  const auto job = Load({Chunk(0, 3, "ab"), Chunk(1, 4, "cd"), Chunk(2, 5, "ef")});
  EXPECT_EQ(job->BatchEnd(1), 1U);
  EXPECT_EQ(job->BatchEnd(4 * kLayerBytes), 2U);
  EXPECT_EQ(job->BatchEnd(1 << 20), 3U);
  job->next = 2;
  EXPECT_EQ(job->BatchEnd(1), 3U);
}

TEST_F(JobTest, OverlappingTimeCountsOnce) {
  Job job;
  job.AddBusy(10, 20);
  job.AddBusy(15, 30);
  job.AddBusy(12, 18);
  job.AddBusy(40, 45);
  EXPECT_EQ(job.busy_ns, 25);
}

TEST_F(JobTest, WhatWasNotMovedFails) {
  const auto job = Load({Chunk(0, 3, "ab"), Chunk(1, 4, "cd"), Chunk(2, 5, "ef")});
  job->next = 1;
  job->FailRest();
  EXPECT_THAT(job->bad, ElementsAre(1U, 2U));
  LoadOrder order{.chunks = {Chunk(0, 3, "ab")}};
  const auto unprepared = Job::Of(order, Memory());
  unprepared->FailRest();
  EXPECT_THAT(unprepared->bad, ElementsAre(0U));
}

TEST_F(JobTest, CopiesAreCutByPartForTheStreamAlone) {
  std::vector<std::byte> bytes(2 * kLayerBytes);
  for (const bool sync : {false, true}) {
    Batch batch;
    batch.job = Load({Chunk(0, 3, "ab")}, sync);
    batch.values = {{.item = 0, .host = {bytes}}};
    batch.PlanCopies(/*layer_parts=*/2);
    ASSERT_EQ(batch.copies.size(), sync ? 2U : 1U);
    const transport::DeviceCopy& last = batch.copies.back().back();
    EXPECT_EQ(last.host, bytes.data() + kLayerBytes);
    EXPECT_EQ(last.device, 65536 + 3 * 4 * kLayerBytes);
    EXPECT_EQ(last.bytes, kLayerBytes);
  }
}

}  // namespace
}  // namespace kvcove::connector
