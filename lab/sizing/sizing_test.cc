// SPDX-License-Identifier: Apache-2.0
#include "lab/sizing/sizing.h"

#include <gtest/gtest.h>

#include "kvcove/base/size.h"
#include "lab/policy/two_tiers.h"

namespace kvcove::lab {
namespace {

// Llama 3 8B: 128 KiB a token.
ModelKv EightHeads() {
  return {.type = "llama",
          .dtype = "bfloat16",
          .groups = {{.layers = 32, .heads = 8, .token_bytes = 128 * kKiB}}};
}
std::string RefusalOf(const SizingOptions& options, const ModelKv& model = EightHeads()) {
  const auto sizing = SizeOf(model, options);
  return sizing ? "" : sizing.error().detail;
}
void ExpectPart(std::string_view part, const std::string& text) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(SizingTest, MemoryHoldsWholeChunks) {
  const auto sizing = SizeOf(EightHeads(), {.hosts = 4, .memory_bytes = 64 * kGiB});
  ASSERT_TRUE(sizing) << sizing.error().detail;
  EXPECT_EQ(sizing->objects_per_chunk, 1U);
  EXPECT_EQ(sizing->largest_object_bytes, 2 * kMiB);
  EXPECT_EQ(sizing->memory.objects, 4U * 32768);
  EXPECT_EQ(sizing->memory.tokens, 4U * 32768 * 16);
  EXPECT_EQ(sizing->memory.bytes, 256 * kGiB);
  EXPECT_EQ(sizing->disk.objects, 0U);
  EXPECT_EQ(sizing->directory_bytes, 4U * 32768 * 96);
  // "g0@" and 64 digits are the key.
  EXPECT_GE(sizing->memory_index_bytes, 32768U * (128 + 64));
  EXPECT_LE(sizing->memory_index_bytes, 32768U * (128 + 96));
  EXPECT_EQ(sizing->disk_index_bytes, 0U);
}

TEST(SizingTest, RanksHaveObjectsOfTheirOwn) {
  const auto sizing = SizeOf(EightHeads(), {.memory_bytes = 64 * kGiB, .tp = 4, .pp = 2});
  ASSERT_TRUE(sizing);
  EXPECT_EQ(sizing->objects_per_chunk, 8U);
  EXPECT_EQ(sizing->largest_object_bytes, 256 * kKiB);
  EXPECT_EQ(sizing->memory.tokens, 32768U * 16) << "the same bytes";
  const auto copies = SizeOf(EightHeads(), {.memory_bytes = 64 * kGiB, .tp = 16});
  EXPECT_EQ(copies->objects_per_chunk, 8U) << "two ranks have the same head";
  ModelKv latent = EightHeads();
  latent.groups[0].heads = 1;
  EXPECT_EQ(SizeOf(latent, {.memory_bytes = 64 * kGiB, .tp = 8})->objects_per_chunk, 1U);
}

TEST(SizingTest, AValueTakesWholeGranules) {
  ModelKv model = EightHeads();
  model.groups[0].token_bytes = 65;
  // 16 TiB have granules of 4 KiB.
  const auto sizing = SizeOf(model, {.memory_bytes = 16 * 1024 * kGiB, .chunk_tokens = 64});
  ASSERT_TRUE(sizing);
  EXPECT_EQ(sizing->largest_object_bytes, 64U * 65);
  EXPECT_EQ(sizing->memory.objects, 1ULL << 27) << "--max-objects at most, unless it is given";
  const auto few = SizeOf(model, {.memory_bytes = 16 * 1024 * kGiB, .chunk_tokens = 8193});
  EXPECT_EQ(few->memory.objects, (16ULL << 40) / (131 * 4096)) << "8,193 x 65 B are 131 granules";
}

TEST(SizingTest, ADiskKeepsZonesFreeAndWholeRecordsInEach) {
  const auto sizing =
      SizeOf(EightHeads(), {.hosts = 2, .memory_bytes = kGiB, .disk_bytes = 1024 * kGiB});
  ASSERT_TRUE(sizing);
  // Zones of 64 MiB: 31 records of 2 MiB and a head.
  EXPECT_EQ(sizing->disk.objects, 2U * (16383 - 4) * 31);
  EXPECT_EQ(sizing->disk_index_bytes, sizing->disk.objects / 2 * 60);
  EXPECT_EQ(sizing->directory_bytes, (sizing->memory.objects + sizing->disk.objects) * 96);
}

TEST(SizingTest, WrongOptionsAreNamed) {
  ExpectPart("--hosts 0", RefusalOf({.hosts = 0, .memory_bytes = kGiB}));
  ExpectPart("--hosts 5000", RefusalOf({.hosts = 5000, .memory_bytes = kGiB}));
  ExpectPart("--memory: 1MiB hold no chunk of 16 tokens, which takes 2MiB",
             RefusalOf({.memory_bytes = kMiB}));
  ExpectPart("--memory: an owner gives at most 16TiB", RefusalOf({.memory_bytes = 17ULL << 40}));
  ExpectPart("--disk: 64MiB hold no chunk",
             RefusalOf({.memory_bytes = kGiB, .disk_bytes = 64 * kMiB}));
  ExpectPart("--disk: give at most", RefusalOf({.memory_bytes = kGiB, .disk_bytes = 1ULL << 60}));
  ExpectPart("--chunk-tokens 0", RefusalOf({.memory_bytes = kGiB, .chunk_tokens = 0}));
  ExpectPart("--chunk-tokens 4096", RefusalOf({.memory_bytes = kGiB, .chunk_tokens = 4096}));
  ExpectPart("8 KV heads do not spread over TP 3", RefusalOf({.memory_bytes = kGiB, .tp = 3}));
  ExpectPart("--tp 0 --pp 1: each is at least 1", RefusalOf({.memory_bytes = kGiB, .tp = 0}));
  ExpectPart("at most 4096 ranks", RefusalOf({.memory_bytes = kGiB, .tp = ~0U, .pp = 2}));
  ExpectPart("--pp 64: the model has 32 layers", RefusalOf({.memory_bytes = kGiB, .pp = 64}));
  ModelKv absurd = EightHeads();
  absurd.groups[0].token_bytes = 1ULL << 50;
  ExpectPart("is it right?", RefusalOf({.memory_bytes = kGiB}, absurd));
}

std::vector<Request> Conversations() {
  return *ReadTrace(std::string(KVCOVE_SOURCE_DIR) + "/traces/conversation_trace.jsonl", 1200);
}

TEST(SizingTest, HitsAreThoseOfTheSimulators) {
  const std::vector<Request> requests = Conversations();
  const std::vector<Chain> chains = ChainsOf(requests);
  const auto memory = ExpectHits(requests, TraceFormat::kMooncake, 1000 * 512 + 511, 0);
  ASSERT_TRUE(memory) << memory.error().detail;
  EXPECT_EQ(memory->requests, 1200U);
  EXPECT_DOUBLE_EQ(memory->ratio, Simulate("default", chains, 1000)->ratio());
  EXPECT_DOUBLE_EQ(memory->memory_ratio, memory->ratio);
  EXPECT_DOUBLE_EQ(memory->half, Simulate("default", chains, 500)->ratio());
  EXPECT_DOUBLE_EQ(memory->twice, Simulate("default", chains, 2000)->ratio());
  EXPECT_LT(memory->half, memory->ratio);
  EXPECT_LT(memory->twice, memory->any);
  EXPECT_LT(memory->distinct_tokens, memory->tokens);

  const auto both = ExpectHits(requests, TraceFormat::kMooncake, 500 * 512, 2500 * 512);
  ASSERT_TRUE(both);
  const auto simulated = SimulateTwoTiers({.descent = Descent::kAdmitted,
                                           .zones = true,
                                           .moves = true,
                                           .memory_blocks = 500,
                                           .disk_blocks = 2500},
                                          chains);
  EXPECT_DOUBLE_EQ(both->ratio, simulated->together.ratio());
  EXPECT_DOUBLE_EQ(both->memory_ratio, simulated->memory_ratio());
  EXPECT_GT(both->ratio, both->memory_ratio);
}

TEST(SizingTest, ATraceOfAnotherFormatIsRefused) {
  ExpectPart("--trace-format: 1200 of 1200 prompts have another number of blocks",
             ExpectHits(Conversations(), TraceFormat::kBailian, 1 << 20, 0).error().detail);
  const std::vector<Request> small(
      3, {.input_tokens = 320, .output_tokens = 1, .blocks = std::vector<std::uint32_t>(20, 1)});
  ExpectPart("at 512 a block",
             ExpectHits(small, TraceFormat::kMooncake, 1 << 20, 0).error().detail);
  EXPECT_TRUE(ExpectHits(small, TraceFormat::kBailian, 1 << 20, 0));
}

TEST(SizingTest, RoomForAllFindsWhatIsAskedTwice) {
  const std::vector<Request> requests = {
      {.input_tokens = 32, .output_tokens = 1, .blocks = {1, 2}},
      {.input_tokens = 48, .output_tokens = 1, .blocks = {1, 2, 3}}};
  const auto hits = ExpectHits(requests, TraceFormat::kVllm, 1 << 20, 0);
  ASSERT_TRUE(hits);
  EXPECT_EQ(hits->distinct_tokens, 48U);
  EXPECT_DOUBLE_EQ(hits->ratio, 2.0 / 5);
  EXPECT_DOUBLE_EQ(hits->any, 2.0 / 5);
  ExpectPart("its blocks have 16 tokens, and --memory hold 16 tokens",
             ExpectHits(requests, TraceFormat::kVllm, 16, 0).error().detail);
}

}  // namespace
}  // namespace kvcove::lab
