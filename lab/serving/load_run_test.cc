// SPDX-License-Identifier: Apache-2.0
// Loads on a server in this process, whose answers are there at once.
#include "lab/serving/load_run.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "kvcove/base/interrupt.h"
#include "kvcove/http/server.h"

namespace kvcove::lab {
namespace {

using ::testing::HasSubstr;

class LoadRunTest : public testing::Test {
 protected:
  // `answer`: of the request with this number and body.
  void Serve(std::function<http::Response(std::uint64_t, const nlohmann::json&)> answer) {
    rpc::Address address = rpc::LoopbackAddress(0);
    auto listener = rpc::ListenTcp(address);
    ASSERT_TRUE(listener) << listener.error().ToString();
    http::ServerOptions options;
    options.listener = *std::move(listener);
    auto server = http::Server::Open(
        std::move(options),
        {{.method = "GET",
          .path = "/v1/models",
          .answer =
              [](const http::Request&) {
                return http::Response{.body = R"({"data":[{"id":"m","max_model_len":500}]})"};
              }},
         {.method = "POST",
          .path = "/v1/completions",
          .waits = true,
          .body_bytes = 64 * 1024,
          .answer = [this, answer = std::move(answer)](const http::Request& request) {
            return answer(requests_++, nlohmann::json::parse(request.body));
          }}});
    ASSERT_TRUE(server) << server.error().ToString();
    server_ = *std::move(server);
    engines_.emplace_back(Endpoint{.address = address, .prefix = {}}, "", 60 * kSecond);
  }

  static http::Response Stream(const nlohmann::json& body) {
    std::string events;
    for (std::uint64_t i = 0; i < body["max_tokens"]; ++i) {
      events += "data: {\"choices\":[{\"text\":\" a\"}]}\n\n";
    }
    const std::string prompt = body["prompt"];
    return {.body = fmt::format("{}data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{},"
                                "\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n",
                                events, 3 * std::ranges::count(prompt, ' '),
                                body["max_tokens"].get<std::uint64_t>()),
            .type = "text/event-stream"};
  }

  Result<LoadResult> Run(std::function<bool()> interrupted = [] {
    SleepNs(kMillisecond);
    return false;
  }) {
    return RunLoad(load_, {.model = "m", .tokens_per_word = 1}, engines_,
                   {.interrupted = std::move(interrupted), .progress = {}});
  }

  Load load_{.model = {},
             .conversations = 8,
             .turns = 2,
             .concurrency = 4,
             .system_tokens = 10,
             .input_tokens = 20,
             .turn_tokens = 5,
             .output_tokens = 3,
             .agents_percent = 0};
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<bool> released_{false};
  std::unique_ptr<http::Server> server_;
  std::vector<OpenAiClient> engines_;
};

TEST_F(LoadRunTest, AllRequestsAreMeasured) {
  Serve([](std::uint64_t, const nlohmann::json& body) { return Stream(body); });
  const auto result = Run();
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(result->completed, 8);
  EXPECT_EQ(result->lost_conversations(), 0);
  EXPECT_EQ(result->unfinished, 0);
  EXPECT_EQ(result->first_ttft_ms.size(), 8);
  EXPECT_EQ(result->later_ttft_ms.size(), 8);
  EXPECT_EQ(result->e2e_ms.size(), 16);
  EXPECT_EQ(result->output_tokens, 16 * 3);
  EXPECT_EQ(requests_, 16);
  EXPECT_GT(result->seconds, 0);
}

TEST_F(LoadRunTest, ALostConversationStopsNoOther) {
  Serve([](std::uint64_t number, const nlohmann::json& body) {
    return number == 3 ? http::Response{.status = 503, .body = "{\"detail\":\"busy\"}"}
                       : Stream(body);
  });
  const auto result = Run();
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(result->completed, 7);
  ASSERT_EQ(result->lost.size(), 1);
  EXPECT_THAT(result->lost.begin()->first, HasSubstr("answers 503: busy"));
}

TEST_F(LoadRunTest, ARefusedRequestEndsTheRun) {
  Serve([](std::uint64_t number, const nlohmann::json& body) {
    return number == 3 ? http::Response{.status = 400, .body = "{\"error\":{\"message\":\"long\"}}"}
                       : Stream(body);
  });
  const auto result = Run();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::kInvalid);
  EXPECT_THAT(result.error().detail, HasSubstr("answers 400: long"));
}

TEST_F(LoadRunTest, AnInterruptedRunKeepsWhatItMeasured) {
  Serve([this](std::uint64_t number, const nlohmann::json& body) {
    while (number >= 2 && !released_) SleepNs(kMillisecond);
    return Stream(body);
  });
  load_.concurrency = 2;
  const auto result = Run([&] {
    SleepNs(kMillisecond);
    return requests_ == 4;  // two are answered, two wait
  });
  released_ = true;
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_TRUE(result->interrupted);
  EXPECT_EQ(result->e2e_ms.size(), 2);
  EXPECT_EQ(result->lost_conversations(), 0);
  EXPECT_EQ(result->completed + result->unfinished, 8);
}

TEST_F(LoadRunTest, AShortAnswerIsCounted) {
  Serve([](std::uint64_t, nlohmann::json body) {
    body["max_tokens"] = 1;
    return Stream(body);
  });
  const auto result = Run();
  ASSERT_TRUE(result) << result.error().ToString();
  EXPECT_EQ(result->short_answers, 16);
}

TEST_F(LoadRunTest, LookingFindsModelAndTokenizer) {
  Serve([](std::uint64_t, const nlohmann::json& body) { return Stream(body); });
  const auto served = LookAtEngines(load_, engines_);
  ASSERT_TRUE(served) << served.error().ToString();
  EXPECT_EQ(served->model, "m");
  EXPECT_DOUBLE_EQ(served->tokens_per_word, 3);
  load_.model = "n";
  EXPECT_THAT(LookAtEngines(load_, engines_).error().detail, HasSubstr("it serves: m"));
  load_.model = "m";
  load_.input_tokens = 1000;
  EXPECT_THAT(LookAtEngines(load_, engines_).error().detail, HasSubstr("takes 500"));
}

}  // namespace
}  // namespace kvcove::lab
