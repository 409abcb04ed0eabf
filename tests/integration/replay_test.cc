// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/replay.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "kvcove/base/log.h"
#include "kvcove/base/random.h"
#include "lab/policy/workload.h"
#include "tests/call_time.h"
#include "tests/must.h"

namespace kvcove::lab {
namespace {

const std::string kTrace = std::string(KVCOVE_SOURCE_DIR) + "/traces/conversation_trace.jsonl";

Result<ReplayResult> RunEmbedded(const std::vector<Request>& requests, const std::string& policy,
                                 std::uint64_t blocks, std::uint32_t update_every = 0,
                                 std::uint32_t tp = 1, Flow flow = Flow::kVerl) {
  constexpr std::uint64_t kBlockBytes = 256;
  KVCOVE_ASSIGN(auto pool,
                Pool::Open(fmt::format("embedded:?memory={}&policy={}&max_objects={}",
                                       std::max<std::uint64_t>(blocks * kBlockBytes, 1 << 20),
                                       policy, 100000),
                           kCallTime));
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

// A test for each size: a replay of the whole trace takes minutes on a machine that is busy, and a
// test that is silent for too long counts as one that hangs.
class ReplaySizeTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ReplaySizeTest, AgreesWithTheSimulationOfItsPolicy) {
  SetLogLevel(LogLevel::kError);
  const auto requests = Must(ReadTrace(kTrace));
  const auto chains = ChainsOf(requests);
  const std::uint64_t blocks = GetParam();
  for (const char* policy : {"default", "lru"}) {
    const auto replayed = RunEmbedded(requests, policy, blocks);
    ASSERT_TRUE(replayed) << replayed.error().ToString();
    EXPECT_EQ(replayed->wrong_blocks + replayed->stale_blocks + replayed->failed, 0U);
    const double simulated = Must(Simulate(policy, chains, blocks)).ratio();
    EXPECT_NEAR(replayed->hit_ratio(), simulated, 0.002) << policy << " " << blocks;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ReplaySizeTest, testing::Values(4096, 10240));

constexpr std::uint64_t kSizes[] = {1000, 3000, 10'000, 30'000};

// What docs/eviction.md says of the default, a little below its figures.
TEST(EvictionTest, TheDefaultFindsWhatItShouldOnTheTrace) {
  const auto chains = ChainsOf(Must(ReadTrace(kTrace)));
  const double wanted[] = {.0825, .1365, .2400, .3355};
  for (int i = 0; i < 4; ++i) {
    const HitCount once = Must(Simulate("default", chains, kSizes[i]));
    EXPECT_GT(once.ratio(), wanted[i]) << kSizes[i];
    EXPECT_EQ(Must(Simulate("default", chains, kSizes[i])).hit_blocks, once.hit_blocks)
        << "the same requests, the same hits";
  }
}

TEST(EvictionTest, NoWorkloadIsBetterServedByRecencyOrS3Fifo) {
  const auto trace = ChainsOf(Must(ReadTrace(kTrace)));
  for (const std::string_view name : WorkloadNames()) {
    const auto requests = *MakeWorkload(name, trace, 1);
    for (const std::uint64_t blocks : kSizes) {
      const double found = Must(Simulate("default", requests, blocks)).ratio();
      for (const char* other : {"lru", "s3fifo"}) {
        EXPECT_GT(found, Must(Simulate(other, requests, blocks)).ratio() - .003)
            << name << " " << blocks << " " << other;
      }
    }
  }
}

TEST(EvictionTest, TheOutputLengthDoesNoHarmAndLiesCostLittle) {
  const auto requests = Must(ReadTrace(kTrace));
  const auto chains = ChainsOf(requests);
  Random random(1);
  std::vector<Hints> told;
  std::vector<Hints> lies;
  for (const Request& request : requests) {
    told.push_back({.output_tokens = static_cast<std::uint32_t>(request.output_tokens)});
    lies.push_back({.output_tokens = static_cast<std::uint32_t>(random.Below(2000)),
                    .session_ends = random.OneIn(2)});
  }
  for (const std::uint64_t blocks : kSizes) {
    const auto found = [&](std::span<const Hints> hints) {
      return Simulate(*policy::MakePolicy("default"), chains, blocks, hints).ratio();
    };
    const double without = found({});
    EXPECT_GT(found(told), without - .003) << blocks;
    EXPECT_GT(found(lies), Must(Simulate("lru", chains, blocks)).ratio() - .01) << blocks;
  }
}

// From one load to another and back: what was learned of the one costs the other something, as
// docs/eviction.md says, but neither ever falls far below recency.
TEST(EvictionTest, ALoadThatChangesAndComesBackIsLearnedAgain) {
  const auto trace = ChainsOf(Must(ReadTrace(kTrace)));
  std::vector<Chain> requests(trace.begin(), trace.begin() + 6000);
  auto agents = *MakeWorkload("agents", {}, 1);
  agents.resize(6000);
  for (Chain& chain : agents) {
    for (std::uint32_t& block : chain) block += 1'000'000;
  }
  requests.insert(requests.end(), agents.begin(), agents.end());
  requests.insert(requests.end(), trace.begin() + 6000, trace.end());
  for (const std::uint64_t blocks : {3000ULL, 10'000ULL}) {
    const auto parts = [&](const char* name) {
      CacheSimulator cache(*MakeSimulatedPolicy(name, blocks), blocks);
      std::array<HitCount, 3> counts;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        HitCount& count = counts[std::min<std::size_t>(i / 6000, 2)];
        count.hit_blocks += cache.LeadingRun(requests[i]);
        count.blocks += requests[i].size();
        cache.Access(requests[i]);
      }
      return counts;
    };
    const auto ours = parts("default");
    const auto lru = parts("lru");
    for (int i = 0; i < 3; ++i) EXPECT_GT(ours[i].ratio(), lru[i].ratio() - .02) << blocks << i;
    // A policy that has never seen the other load.
    const std::vector<Chain> last(trace.begin() + 6000, trace.end());
    EXPECT_GT(ours[2].ratio(), Must(Simulate("default", last, blocks)).ratio() - .025) << blocks;
  }
}

TEST(ReplayTest, WeightUpdatesLeaveNothingStale) {
  const auto requests = Must(ReadTrace(kTrace, 1500));
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
  const auto requests = Must(ReadTrace(kTrace, 400));
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
}  // namespace kvcove::lab
