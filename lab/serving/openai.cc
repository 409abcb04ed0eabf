// SPDX-License-Identifier: Apache-2.0
#include "lab/serving/openai.h"

#include <fmt/core.h>

#include <algorithm>

#include "kvcove/http/connection.h"

namespace kvcove::lab {
namespace {

using nlohmann::json;

constexpr std::int64_t kGetNs = 10 * kSecond;
constexpr std::size_t kMaxLine = 16U << 20;
constexpr std::size_t kMaxReason = 300;

std::string TextOf(const json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::uint64_t CountOf(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// What a server says of an error: {"error": {"message": "..."}}, {"message": "..."},
// {"detail": "..."}, or any text.
std::string ReasonOf(const std::string& body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  std::string reason = body;
  if (parsed.is_object()) {
    const auto error = parsed.find("error");
    const json& named = error != parsed.end() && error->is_object() ? *error : parsed;
    for (const char* key : {"error", "detail", "message"}) {
      if (std::string text = TextOf(named, key); !text.empty()) reason = std::move(text);
    }
  }
  std::ranges::replace_if(reason, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  if (reason.size() > kMaxReason) reason = reason.substr(0, kMaxReason) + "...";
  return reason;
}

// Most servers that refuse a request will refuse it again; 408 and 429 ask for another try.
Code CodeOf(int status) {
  return status >= 400 && status < 500 && status != 408 && status != 429 ? Code::kInvalid
                                                                         : Code::kUnavailable;
}

std::string PromptOf(const std::vector<Message>& messages) {
  std::string prompt;
  for (const Message& message : messages) {
    const char* name = message.role == "system" ? ""
                       : message.role == "user" ? "User: "
                                                : "Assistant:";
    prompt += name + message.text + "\n\n";
  }
  return prompt + "Assistant:";
}

json BodyOf(const Question& question) {
  json body = {{"model", question.model}, {"max_tokens", question.output_tokens},
               {"ignore_eos", true},      {"temperature", 0},
               {"stream", true},          {"stream_options", {{"include_usage", true}}}};
  if (question.api == "chat") {
    json messages = json::array();
    for (const Message& message : question.messages) {
      messages.push_back({{"role", message.role}, {"content", message.text}});
    }
    body["messages"] = std::move(messages);
  } else {
    body["prompt"] = PromptOf(question.messages);
  }
  return body;
}

}  // namespace

std::string Endpoint::ToString() const { return "http://" + address.ToString() + prefix; }

Result<Endpoint> ParseEndpoint(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    return Fail(Code::kInvalid, fmt::format("'{}': this command speaks plain HTTP; name the engine "
                                            "itself, such as http://127.0.0.1:8000",
                                            text));
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  const std::size_t slash = rest.find('/');
  Endpoint endpoint;
  if (slash != std::string_view::npos) endpoint.prefix = rest.substr(slash);
  while (endpoint.prefix.ends_with('/')) endpoint.prefix.pop_back();
  if (endpoint.prefix.ends_with("/v1")) endpoint.prefix.resize(endpoint.prefix.size() - 3);
  if (endpoint.prefix.find_first_of(" \r\n?#") != std::string::npos) {
    return Fail(Code::kInvalid,
                fmt::format("'{}' is not http://host:port or http://host:port/path", text));
  }
  KVCOVE_ASSIGN(endpoint.address, rpc::ParseAddress(rest.substr(0, slash), 80));
  return endpoint;
}

AnswerReader::AnswerReader(const Clock& clock) : clock_(clock) { answer_.asked_ns = clock.NowNs(); }

Status AnswerReader::Take(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (line_.size() > kMaxLine) return Fail(Code::kCorrupt, "a line of an answer has no end");
    if (end == std::string_view::npos) return {};
    bytes.remove_prefix(end + 1);
    std::string line = std::move(line_);
    line_.clear();
    if (line.ends_with('\r')) line.pop_back();
    // Other fields, comments and the empty lines between events say nothing here.
    if (!line.starts_with("data:")) continue;
    std::string_view data = std::string_view(line).substr(5);
    if (data.starts_with(' ')) data.remove_prefix(1);
    KVCOVE_TRY(TakeEvent(data));
  }
  return {};
}

Status AnswerReader::TakeEvent(std::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    answer_.ended_ns = clock_.NowNs();
    return {};
  }
  const json event = json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    return Fail(Code::kCorrupt,
                "an event of the answer is no JSON object; is this a server with "
                "OpenAI's interface?");
  }
  if (event.contains("error") && !event["error"].is_null()) {
    return Fail(Code::kUnavailable, "the engine failed: " + ReasonOf(event.dump()));
  }
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    answer_.prompt_tokens = CountOf(*usage, "prompt_tokens");
    answer_.output_tokens = CountOf(*usage, "completion_tokens");
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return {};
  const json& choice = choices->front();
  if (TextOf(choice, "finish_reason") == "abort") {
    return Fail(Code::kUnavailable, "the engine aborted the request");
  }
  const auto delta = choice.find("delta");
  // The first event of a chat gives the role and no token.
  const bool chat = delta != choice.end() && delta->is_object();
  const std::string text = chat ? TextOf(*delta, "content") : TextOf(choice, "text");
  if (chat && delta->contains("role") && text.empty() &&
      TextOf(*delta, "reasoning_content").empty() && TextOf(*delta, "reasoning").empty()) {
    return {};
  }
  answer_.text += text;
  ++events_;
  if (answer_.first_token_ns == 0) answer_.first_token_ns = clock_.NowNs();
  return {};
}

Result<Answer> AnswerReader::Finish() {
  if (!done_) return Fail(Code::kUnavailable, "the answer ended before [DONE]");
  if (answer_.first_token_ns == 0) return Fail(Code::kUnavailable, "the answer has no token");
  if (answer_.output_tokens == 0) answer_.output_tokens = events_;
  return std::move(answer_);
}

Result<std::string> OpenAiClient::Get(const std::string& path) const {
  KVCOVE_ASSIGN(http::Response response, http::Call({.server = "the engine",
                                                     .host = endpoint_.address.host,
                                                     .port = endpoint_.address.port,
                                                     .target = endpoint_.prefix + path,
                                                     .body = {},
                                                     .authorization = authorization(),
                                                     .timeout_ns = kGetNs}));
  if (response.status == 200) return std::move(response.body);
  return Fail(
      response.status == 404 ? Code::kMiss : CodeOf(response.status),
      fmt::format("{}{} answers {}: {}", name(), path, response.status, ReasonOf(response.body)));
}

Result<std::vector<Model>> OpenAiClient::Models() const {
  const Result<std::string> body = Get("/v1/models");
  if (!body && body.error().code != Code::kMiss) return std::unexpected(body.error());
  const json parsed = json::parse(body.value_or(""), nullptr, /*allow_exceptions=*/false);
  const auto data = parsed.is_object() ? parsed.find("data") : parsed.end();
  if (data == parsed.end() || !data->is_array()) {
    return Fail(Code::kInvalid, fmt::format("{}/v1/models is no list of models; is this a server "
                                            "with OpenAI's interface?",
                                            name()));
  }
  std::vector<Model> models;
  for (const json& model : *data) {
    if (!model.is_object()) continue;
    models.push_back({.name = TextOf(model, "id"), .max_tokens = CountOf(model, "max_model_len")});
  }
  return models;
}

Result<std::string> OpenAiClient::Metrics() const { return Get("/metrics"); }

Result<Answer> OpenAiClient::Ask(const Question& question) const {
  Result<Answer> answer =
      Post(endpoint_.prefix + (question.api == "chat" ? "/v1/chat/completions" : "/v1/completions"),
           BodyOf(question).dump());
  if (answer) return answer;
  return Fail(answer.error().code, fmt::format("{}: {}", name(), answer.error().detail));
}

Result<Answer> OpenAiClient::Post(const std::string& target, const std::string& body) const {
  const Clock& clock = SystemClock::Instance();
  const std::int64_t deadline_ns = clock.NowNs() + timeout_ns_;
  AnswerReader reader(clock);
  KVCOVE_ASSIGN(UniqueFd fd, rpc::ConnectTcp(endpoint_.address, deadline_ns));
  http::Connection connection(std::move(fd));
  const std::string host = endpoint_.address.ToString();
  KVCOVE_ASSIGN(
      const http::Response response,
      connection.Stream(
          {.host = host, .target = target, .authorization = authorization(), .body = body},
          deadline_ns, [&](std::string_view part) { return reader.Take(part); }));
  if (response.status != 200) {
    return Fail(CodeOf(response.status),
                fmt::format("{} answers {}: {}", target, response.status, ReasonOf(response.body)));
  }
  return reader.Finish();
}

}  // namespace kvcove::lab
