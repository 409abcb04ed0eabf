// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/openai.h"

#include <gmock/gmock.h>

namespace kvcove::lab {
namespace {

using ::testing::HasSubstr;

std::string Event(const std::string& json) { return "data: " + json + "\n\n"; }

TEST(AnswerReaderTest, TheFirstTokenAndTheEndHaveTheirTimes) {
  FakeClock clock;
  AnswerReader reader(clock);
  const std::int64_t asked_ns = clock.NowNs();
  clock.AdvanceNs(50 * kMillisecond);
  ASSERT_TRUE(reader.Take(Event(R"({"choices":[{"text":"one"}]})")));
  clock.AdvanceNs(20 * kMillisecond);
  ASSERT_TRUE(reader.Take(Event(R"({"choices":[{"text":" two","finish_reason":"length"}]})")));
  ASSERT_TRUE(
      reader.Take(Event(R"({"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2}})")));
  clock.AdvanceNs(5 * kMillisecond);
  ASSERT_TRUE(reader.Take(Event("[DONE]")));
  const auto answer = reader.Finish();
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->asked_ns, asked_ns);
  EXPECT_EQ(answer->first_token_ns, asked_ns + 50 * kMillisecond);
  EXPECT_EQ(answer->ended_ns, asked_ns + 75 * kMillisecond);
  EXPECT_EQ(answer->text, "one two");
  EXPECT_EQ(answer->prompt_tokens, 11);
  EXPECT_EQ(answer->output_tokens, 2);
}

TEST(AnswerReaderTest, ARoleIsNoToken) {
  FakeClock clock;
  AnswerReader reader(clock);
  ASSERT_TRUE(reader.Take(Event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})")));
  clock.AdvanceNs(kSecond);
  // Content of the same event as the role is one, and so is a thought that is not shown.
  ASSERT_TRUE(reader.Take(Event(R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})")));
  ASSERT_TRUE(
      reader.Take(Event(R"({"choices":[{"delta":{"role":"assistant","content":"yes"}}]})")));
  ASSERT_TRUE(reader.Take(Event("[DONE]")));
  const auto answer = reader.Finish();
  ASSERT_TRUE(answer) << answer.error().ToString();
  EXPECT_EQ(answer->first_token_ns - answer->asked_ns, kSecond);
  EXPECT_EQ(answer->text, "yes");
  EXPECT_EQ(answer->output_tokens, 2) << "without usage it counts events";
}

TEST(AnswerReaderTest, BytesMayArriveInAnyParts) {
  const std::string stream = ": a comment\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\n" +
                             Event(R"({"choices":[{"text":"b"}]})") + Event("[DONE]");
  for (std::size_t size = 1; size < stream.size(); size += 3) {
    FakeClock clock;
    AnswerReader reader(clock);
    for (std::size_t at = 0; at < stream.size(); at += size) {
      ASSERT_TRUE(reader.Take(std::string_view(stream).substr(at, size)));
    }
    const auto answer = reader.Finish();
    ASSERT_TRUE(answer) << answer.error().ToString();
    EXPECT_EQ(answer->text, "ab");
  }
}

TEST(AnswerReaderTest, FailuresAreErrors) {
  FakeClock clock;
  const struct {
    std::string stream;
    const char* error;
  } cases[] = {
      {Event(R"({"error":{"message":"out of blocks","code":500}})"), "out of blocks"},
      {Event(R"({"choices":[{"text":"a","finish_reason":"abort"}]})"), "aborted"},
      {Event("no json"), "no JSON object"},
      {Event(R"({"choices":[{"text":"a"}]})"), "before [DONE]"},
      {Event("[DONE]"), "no token"},
  };
  for (const auto& wrong : cases) {
    AnswerReader reader(clock);
    const Status taken = reader.Take(wrong.stream);
    const std::string error = taken ? reader.Finish().error().detail : taken.error().detail;
    EXPECT_THAT(error, HasSubstr(wrong.error));
  }
}

TEST(EndpointTest, TextsOfEndpoints) {
  for (const auto& [text, name] : std::vector<std::pair<const char*, const char*>>{
           {"http://127.0.0.1:8000", "http://127.0.0.1:8000"},
           {"127.0.0.1:8000", "http://127.0.0.1:8000"},
           {"http://h:8000/v1/", "http://h:8000"},
           {"http://h/serve/v1", "http://h:80/serve"},
           {"http://[::1]:8000", "http://[::1]:8000"}}) {
    const auto endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint) << text;
    EXPECT_EQ(endpoint->ToString(), name);
  }
  for (const char* text : {"", "http://", "https://h:8000", "h:x", "http://h:8000/a b"}) {
    EXPECT_FALSE(ParseEndpoint(text)) << text;
  }
}

}  // namespace
}  // namespace kvcove::lab
