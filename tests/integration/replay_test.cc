// SPDX-License-Identifier: Apache-2.0
#include "kvcove/replay/replay.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "kvcove/base/log.h"

namespace kvcove::replay {
namespace {

const std::string kTrace = std::string(KVCOVE_SOURCE_DIR) + "/traces/conversation_trace.jsonl";

Result<ReplayResult> RunEmbedded(const std::vector<Request>& requests, const std::string& policy,
                                 std::uint64_t blocks, std::uint32_t update_every = 0,
                                 std::uint32_t tp = 1, Flow flow = Flow::kVerl) {
  constexpr std::uint64_t kBlockBytes = 256;
  KVCOVE_ASSIGN(auto pool,
                Pool::Open(fmt::format("embedded:?memory={}&policy={}&max_objects={}",
                                       std::max<std::uint64_t>(blocks * kBlockBytes, 1 << 20),
                                       policy, 100000)));
  std::size_t longest = 1;
  for (const Request& request : requests) longest = std::max(longest, request.blocks.size());
  KVCOVE_ASSIGN(auto engine, Engine::Open({.tp = tp,
                                           .own_blocks = 0,
                                           .longest_request = longest,
                                           .block_bytes = std::max<std::uint64_t>(
                                               kBlockBytes, (1 << 20) / blocks / 64 * 64),
                                           .flow = flow,
                                           .late_stores = update_every > 0},
                                          std::move(pool)));
  std::vector<std::unique_ptr<EngineLink>> engines;
  engines.push_back(LinkTo(std::move(engine), requests));
  return Replay(requests, engines, {.update_every = update_every, .progress = {}});
}

TEST(ReplayTest, AgreesWithTheSimulationOfItsPolicy) {
  SetLogLevel(LogLevel::kError);
  const auto requests = *ReadTrace(kTrace);
  const auto chains = ChainsOf(requests);
  for (const char* policy : {"default", "lru", "s3fifo"}) {
    for (const std::uint64_t blocks : {4096ULL, 10240ULL}) {
      const auto replayed = RunEmbedded(requests, policy, blocks);
      ASSERT_TRUE(replayed) << replayed.error().ToString();
      EXPECT_EQ(replayed->wrong_blocks + replayed->stale_blocks + replayed->failed, 0U);
      const double simulated = policy::Simulate(policy, chains, blocks)->ratio();
      EXPECT_NEAR(replayed->hit_ratio(), simulated, 0.002) << policy << " " << blocks;
    }
  }
}

TEST(ReplayTest, WeightUpdatesLeaveNothingStale) {
  const auto requests = *ReadTrace(kTrace, 1500);
  const auto result = RunEmbedded(requests, "default", 10240, 200);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->updates, 7U);
  EXPECT_EQ(result->stale_blocks, 0U);
  EXPECT_EQ(result->wrong_blocks, 0U);
  EXPECT_GT(result->late_rejected, 0U) << "stores begun before a reset were tried after it";
  EXPECT_EQ(result->late_accepted, 0U);
  EXPECT_GT(result->pool_hits, 0U);
}

TEST(ReplayTest, RanksAndFlowsLeaveNothingStale) {
  const auto requests = *ReadTrace(kTrace, 400);
  for (const Flow flow : {Flow::kVerl, Flow::kPrimeRl}) {
    const auto result = RunEmbedded(requests, "default", 10240, 100, 2, flow);
    ASSERT_TRUE(result) << result.error().ToString();
    EXPECT_EQ(result->updates, 3U);
    EXPECT_EQ(result->stale_blocks + result->wrong_blocks + result->late_accepted, 0U);
    EXPECT_GT(result->pool_hits, 0U);
  }
}

TEST(TraceTest, NamesThePlaceOfWhatIsWrong) {
  const std::string path = testing::TempDir() + "/kvcove-broken-trace.jsonl";
  std::ofstream(path)
      << R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
      << "\n\n{\"timestamp\": 0}\n";
  const auto trace = ReadTrace(path);
  ASSERT_FALSE(trace);
  EXPECT_THAT(trace.error().detail, testing::HasSubstr(path + ":3:"));
  EXPECT_THAT(trace.error().detail, testing::HasSubstr("input_length"));
  for (const char* line :
       {"", "[]", "{", R"({"timestamp":-1,"input_length":1,"output_length":1,"hash_ids":[]})",
        R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":["a"]})"}) {
    EXPECT_FALSE(ParseTraceLine(line)) << line;
  }
  EXPECT_FALSE(ReadTrace("/nowhere.jsonl"));
}

}  // namespace
}  // namespace kvcove::replay
