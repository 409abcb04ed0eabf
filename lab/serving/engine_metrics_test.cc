// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/engine_metrics.h"

#include <gmock/gmock.h>

namespace kvcove::lab {
namespace {

using ::testing::DoubleEq;

std::map<std::string, double> Tiers(const FoundTokens& found) {
  std::map<std::string, double> tiers;
  for (const TierTokens& tier : found.tiers) tiers[tier.tier] = tier.tokens;
  return tiers;
}

constexpr const char* kVllmBefore = R"(# HELP vllm:prompt_tokens_total Number of prompt tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a {b} c"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 10.0
vllm:kvcove_hit_disk_keys_total{engine="0"} 5.0
)";
constexpr const char* kVllmAfter =
    R"(vllm:prompt_tokens_total{engine="0",model_name="a {b} c"} 700.0
vllm:prompt_tokens_total{engine="1",model_name="a {b} c"} 4e2
vllm:prompt_tokens_created{engine="1",model_name="m"} 1.7e+09
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 300.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 110.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 600.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 999.0
vllm:kvcove_hit_memory_keys_total{engine="0"} 10.0
vllm:kvcove_hit_memory_keys_total{engine="1"} 10.0
vllm:kvcove_hit_remote_memory_keys_total{engine="0"} 0.0
vllm:kvcove_hit_disk_keys_total{engine="0"} 15.0
)";

TEST(EngineMetricsTest, NewVllmSaysTheTiersOfAnyConnector) {
  const FoundTokens found = FoundIn(Scrape::Parse(
      R"(vllm:prompt_tokens_total{engine="0"} 1000.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_cache_hit"} 100.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 600.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="device"} 100.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="host"} 300.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="p2p"} 150.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="disk"} 90.0
vllm:prompt_tokens_cached_by_source_total{engine="0",source="external_unspecified"} 60.0
vllm:kvcove_hit_disk_keys_total{engine="0"} 7.0
)"));
  const auto tiers = Tiers(found);
  EXPECT_THAT(tiers.at("engine's cache"), DoubleEq(100));
  EXPECT_THAT(tiers.at("pool, memory of this host"), DoubleEq(300));
  EXPECT_THAT(tiers.at("pool, memory of other hosts"), DoubleEq(150));
  EXPECT_THAT(tiers.at("pool, disk"), DoubleEq(90));
  EXPECT_THAT(tiers.at("connector"), DoubleEq(60));
  EXPECT_THAT(found.ratio(), DoubleEq(0.7));
}

TEST(EngineMetricsTest, VllmWithKvcoveFindsByTier) {
  const Scrape counts = Scrape::Parse(kVllmAfter).Since(Scrape::Parse(kVllmBefore));
  const FoundTokens found = FoundIn(counts);
  EXPECT_DOUBLE_EQ(found.prompt_tokens, 1000);
  const auto tiers = Tiers(found);
  EXPECT_THAT(tiers.at("engine's cache"), DoubleEq(100));
  EXPECT_THAT(tiers.at("pool, memory of this host"), DoubleEq(400)) << "20 of 30 keys";
  EXPECT_THAT(tiers.at("pool, memory of other hosts"), DoubleEq(0));
  EXPECT_THAT(tiers.at("pool, disk"), DoubleEq(200));
  EXPECT_THAT(found.ratio(), DoubleEq(0.7));
  EXPECT_THAT(counts.Between("vllm:kvcove_", "_total"),
              testing::ElementsAre(testing::Pair("hit_disk_keys", 10),
                                   testing::Pair("hit_memory_keys", 20)));
}

TEST(EngineMetricsTest, AnOlderVllmCountsHitsOfItsCaches) {
  const FoundTokens found =
      FoundIn(Scrape::Parse("vllm:prompt_tokens_total 1000\n"
                            "vllm:prefix_cache_hits_total 300\n"
                            "vllm:external_prefix_cache_hits_total 200\n"));
  EXPECT_THAT(Tiers(found).at("engine's cache"), DoubleEq(300));
  EXPECT_THAT(Tiers(found).at("connector"), DoubleEq(200));
}

TEST(EngineMetricsTest, SglangFindsBySource) {
  const FoundTokens found = FoundIn(Scrape::Parse(
      "sglang:prompt_tokens_total{model_name=\"m\"} 1000 1700000000\n"
      "sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 300\n"
      "sglang:cached_tokens_total{model_name=\"m\",cache_source=\"storage_file\"} 100\n"));
  EXPECT_DOUBLE_EQ(found.prompt_tokens, 1000);
  EXPECT_THAT(Tiers(found).at("device"), DoubleEq(300));
  EXPECT_THAT(Tiers(found).at("storage_file"), DoubleEq(100));
}

TEST(EngineMetricsTest, EnginesAreAdded) {
  Scrape both = Scrape::Parse("vllm:prompt_tokens_total{engine=\"0\"} 100\n");
  both.Add(Scrape::Parse("vllm:prompt_tokens_total{engine=\"0\"} 11\n"));
  EXPECT_DOUBLE_EQ(FoundIn(both).prompt_tokens, 111);
}

TEST(EngineMetricsTest, ARestartedEngineCountsFromZero) {
  const Scrape before = Scrape::Parse("vllm:prompt_tokens_total 500\n");
  EXPECT_DOUBLE_EQ(
      FoundIn(Scrape::Parse("vllm:prompt_tokens_total 20\n").Since(before)).prompt_tokens, 20);
}

TEST(EngineMetricsTest, OtherTextIsNoMetric) {
  for (const char* text : {"", "<html>\n", "a\n", "vllm:prompt_tokens_total x\n", "}{ 1"}) {
    EXPECT_EQ(FoundIn(Scrape::Parse(text)).prompt_tokens, 0) << text;
  }
}

}  // namespace
}  // namespace kvcove::lab
