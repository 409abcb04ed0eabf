// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvcove::lab {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Request> Read(TraceFormat format, const std::vector<std::string>& lines) {
  TraceReader reader(format);
  std::vector<Request> requests;
  for (const std::string& line : lines) {
    const Status added = reader.Add(line, requests);
    EXPECT_TRUE(added) << line << ": " << added.error().detail;
  }
  return requests;
}
std::string Refusal(TraceFormat format, std::string_view line) {
  TraceReader reader(format);
  std::vector<Request> requests;
  const Status added = reader.Add(line, requests);
  EXPECT_TRUE(requests.empty());
  return added ? "" : added.error().detail;
}

TEST(TraceFormatTest, BailianHasSecondsAndBlockNumbersOfAnySize) {
  const auto requests =
      Read(TraceFormat::kBailian,
           {R"({"chat_id":159,"parent_chat_id":-1,"timestamp":61.114,"input_length":33,)"
            R"("output_length":132,"type":"text","turn":1,"hash_ids":[9000000000000000000,7,8]})",
            R"({"chat_id":160,"parent_chat_id":159,"timestamp":70,"input_length":20,)"
            R"("output_length":1,"type":"search","turn":2,"hash_ids":[9000000000000000000,9]})"});
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].timestamp_ms, 61'114U);
  EXPECT_EQ(requests[0].output_tokens, 132U);
  EXPECT_THAT(requests[0].blocks, ElementsAre(0, 1, 2));
  EXPECT_THAT(requests[1].blocks, ElementsAre(0, 3)) << "the same block has the same number";
}

TEST(TraceFormatTest, BailiansMistakesAreNamed) {
  const auto refusal = [](std::string_view line) { return Refusal(TraceFormat::kBailian, line); };
  EXPECT_THAT(refusal("[]"), HasSubstr("a right line is"));
  EXPECT_THAT(refusal(R"({"timestamp":"noon"})"), HasSubstr("timestamp"));
  EXPECT_THAT(refusal(R"({"timestamp":-1.5})"), HasSubstr("timestamp"));
  EXPECT_THAT(refusal(R"({"timestamp":1,"input_length":1,"output_length":1})"),
              HasSubstr("hash_ids"));
  EXPECT_THAT(refusal(R"({"timestamp":1,"input_length":1,"output_length":1,"hash_ids":[-4]})"),
              HasSubstr("hash_ids"));
}

std::string Tokens(int first, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(first + i);
  return text + "]";
}

TEST(TraceFormatTest, VllmsLogsOfSeveralVersionsAreRead) {
  const auto requests = Read(
      TraceFormat::kVllm,
      {"INFO 08-30 12:00:00 [api_server.py:1] Starting vLLM API server",
       // A prompt that looks like the log itself.
       "INFO 08-30 12:00:01 [logger.py:39] Received request cmpl-1: prompt: 'prompt_token_ids: "
       "[1, 2]', params: SamplingParams(n=1), prompt_token_ids: " +
           Tokens(100, 40) + ", prompt_embeds shape: None, lora_request: None.",
       "INFO 08-30 12:00:02 [logger.py:39] Received request cmpl-2: params: SamplingParams(n=1), "
       "lora_request: None.",
       "DEBUG 08-30 12:00:02 [logger.py:47] Request cmpl-2 details: prompt: 'x', "
       "prompt_token_ids: " +
           Tokens(100, 32) + ", prompt_embeds shape: None.",
       "INFO 08-30 12:00:03 [logger.py:60] Generated response cmpl-1: output: 'y', "
       "output_token_ids: [5, 6, 7], finish_reason: stop",
       "INFO 08-30 12:00:04 [logger.py:39] Received request cmpl-3: prompt: None, params: None, "
       "prompt_token_ids: None, lora_request: None."});
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].input_tokens, 40U);
  EXPECT_EQ(requests[0].output_tokens, 3U);
  EXPECT_THAT(requests[0].blocks, ElementsAre(0, 1, 2)) << "16, 16 and 8 tokens";
  EXPECT_THAT(requests[1].blocks, ElementsAre(0, 1)) << "the same tokens are the same blocks";
}

TEST(TraceFormatTest, VllmsBlocksDependOnWhatIsBeforeThem) {
  const auto requests =
      Read(TraceFormat::kVllm,
           {"Received request a: prompt_token_ids: " + Tokens(1, 32) + ", lora_request: None.",
            "Received request b: prompt_token_ids: " + Tokens(17, 16) + ", lora_request: None."});
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_NE(requests[1].blocks[0], requests[0].blocks[1]);
}

TEST(TraceFormatTest, VllmsMistakesAreNamed) {
  EXPECT_THAT(Refusal(TraceFormat::kVllm, "Received request a: prompt_token_ids: [1, 2"),
              HasSubstr("no end"));
  EXPECT_THAT(Refusal(TraceFormat::kVllm, "Received request a: prompt_token_ids: [1, two]"),
              HasSubstr("none of numbers"));
}

}  // namespace
}  // namespace kvcove::lab
