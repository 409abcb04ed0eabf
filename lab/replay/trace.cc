// SPDX-License-Identifier: Apache-2.0
#include "lab/replay/trace.h"

#include <fmt/core.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvcove/base/random.h"

namespace kvcove::lab {
namespace {

constexpr std::string_view kExample =
    R"({"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]})";
constexpr std::string_view kBailianExample =
    R"({"timestamp": 61.1, "input_length": 21, "output_length": 132, "hash_ids": [1089, 1090]})";
constexpr std::uint64_t kMaxBlock = 1U << 30;
constexpr std::size_t kVllmBlock = 16;  // tokens, vLLM's own default

Result<std::uint64_t> Number(const nlohmann::json& object, const char* field) {
  const auto at = object.find(field);
  if (at == object.end())
    return Fail(Code::kInvalid, fmt::format("the field '{}' is missing", field));
  if (!at->is_number_unsigned()) {
    return Fail(Code::kInvalid,
                fmt::format("the field '{}' must be a number of at least 0", field));
  }
  return at->get<std::uint64_t>();
}

// The request that a line of vLLM's log tells of, or nothing.
std::string RequestOf(std::string_view line) {
  for (const std::string_view before : {"Received request ", "Generated response ", "Request "}) {
    const std::size_t at = line.find(before);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = line.substr(at + before.size());
    return std::string(rest.substr(0, rest.find_first_of(": ")));
  }
  return {};
}

// The list behind the last `field`, or nothing where there is none. Texts of users come before the
// token ids, never behind them.
Result<std::optional<std::vector<std::uint32_t>>> TokensOf(std::string_view line,
                                                           std::string_view field) {
  std::size_t at = line.rfind(field);
  if (at == std::string_view::npos) return std::nullopt;
  at += field.size();
  if (at >= line.size() || line[at] != '[') return std::nullopt;  // None
  const std::size_t end = line.find(']', at);
  if (end == std::string_view::npos) {
    return Fail(Code::kInvalid, fmt::format("the list behind '{}' has no end", field));
  }
  std::vector<std::uint32_t> tokens;
  const char* from = line.data() + at + 1;
  const char* const until = line.data() + end;
  while (from < until) {
    std::uint32_t token = 0;
    const auto [next, error] = std::from_chars(from, until, token);
    if (error != std::errc{}) {
      return Fail(Code::kInvalid, fmt::format("the list behind '{}' is none of numbers", field));
    }
    tokens.push_back(token);
    from = next;
    while (from < until && (*from == ',' || *from == ' ')) ++from;
  }
  return tokens;
}

}  // namespace

Result<Request> ParseTraceLine(std::string_view line) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return Fail(Code::kInvalid, fmt::format("not a JSON object; a right line is {}", kExample));
  }
  Request request;
  KVCOVE_ASSIGN(request.timestamp_ms, Number(object, "timestamp"));
  KVCOVE_ASSIGN(request.input_tokens, Number(object, "input_length"));
  KVCOVE_ASSIGN(request.output_tokens, Number(object, "output_length"));
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array()) {
    return Fail(Code::kInvalid, "the field 'hash_ids' must be an array of block numbers");
  }
  request.blocks.reserve(ids->size());
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= kMaxBlock) {
      return Fail(Code::kInvalid, "a number in 'hash_ids' is not between 0 and 2^30");
    }
    request.blocks.push_back(id.get<std::uint32_t>());
  }
  return request;
}

// ---- formats

const std::map<std::string, TraceFormat>& TraceFormats() {
  static const std::map<std::string, TraceFormat> formats = {{"mooncake", TraceFormat::kMooncake},
                                                             {"bailian", TraceFormat::kBailian},
                                                             {"vllm", TraceFormat::kVllm}};
  return formats;
}

Status TraceReader::Add(std::string_view line, std::vector<Request>& requests) {
  if (format_ == TraceFormat::kVllm) return AddVllm(line, requests);
  if (format_ == TraceFormat::kBailian) return AddBailian(line, requests);
  KVCOVE_ASSIGN(Request request, ParseTraceLine(line));
  requests.push_back(std::move(request));
  return {};
}

Result<std::uint32_t> TraceReader::NumberOf(std::uint64_t block) {
  const auto at =
      numbers_.try_emplace(block, static_cast<std::uint32_t>(numbers_.size())).first->second;
  if (at >= kMaxBlock) return Fail(Code::kInvalid, "more than 2^30 different blocks");
  return at;
}

Status TraceReader::AddBailian(std::string_view line, std::vector<Request>& requests) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return Fail(Code::kInvalid,
                fmt::format("not a JSON object; a right line is {}", kBailianExample));
  }
  Request request;
  const auto seconds = object.find("timestamp");
  if (seconds == object.end() || !seconds->is_number() || !(seconds->get<double>() >= 0) ||
      seconds->get<double>() > 1e12) {
    return Fail(Code::kInvalid, "the field 'timestamp' must be a number of seconds");
  }
  request.timestamp_ms = static_cast<std::uint64_t>(seconds->get<double>() * 1000);
  KVCOVE_ASSIGN(request.input_tokens, Number(object, "input_length"));
  KVCOVE_ASSIGN(request.output_tokens, Number(object, "output_length"));
  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array()) {
    return Fail(Code::kInvalid, "the field 'hash_ids' must be an array of block numbers");
  }
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned()) {
      return Fail(Code::kInvalid, "a number in 'hash_ids' is none of at least 0");
    }
    KVCOVE_ASSIGN(const std::uint32_t block, NumberOf(id.get<std::uint64_t>()));
    request.blocks.push_back(block);
  }
  requests.push_back(std::move(request));
  return {};
}

Status TraceReader::AddVllm(std::string_view line, std::vector<Request>& requests) {
  const std::string id = RequestOf(line);
  if (id.empty()) return {};
  if (line.find("Generated response ") != std::string_view::npos) {
    const auto at = running_.find(id);
    if (at == running_.end()) return {};
    KVCOVE_ASSIGN(const auto tokens, TokensOf(line, "output_token_ids: "));
    if (tokens) requests[at->second].output_tokens += tokens->size();
    return {};
  }
  KVCOVE_ASSIGN(const auto tokens, TokensOf(line, "prompt_token_ids: "));
  if (!tokens || tokens->empty()) return {};
  Request request{.input_tokens = tokens->size()};
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    hash = Mix64(hash ^ ((*tokens)[i] + 1));
    if ((i + 1) % kVllmBlock != 0 && i + 1 < tokens->size()) continue;
    KVCOVE_ASSIGN(const std::uint32_t block, NumberOf(hash));
    request.blocks.push_back(block);
  }
  running_[id] = requests.size();
  requests.push_back(std::move(request));
  return {};
}

Result<std::vector<Request>> ReadTrace(const std::string& path, std::size_t limit,
                                       TraceFormat format) {
  std::ifstream file(path);
  if (!file) {
    return Fail(Code::kInvalid,
                fmt::format("cannot read the trace '{}': {}", path, std::strerror(errno)));
  }
  TraceReader reader(format);
  std::vector<Request> requests;
  std::string line;
  for (std::size_t number = 1; requests.size() < limit && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (const Status added = reader.Add(line, requests); !added) {
      return Fail(Code::kInvalid, fmt::format("{}:{}: {}", path, number, added.error().detail));
    }
  }
  if (requests.empty() && format == TraceFormat::kVllm) {
    return Fail(Code::kInvalid,
                fmt::format("no line of '{}' has a request with prompt_token_ids; run vLLM with "
                            "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG",
                            path));
  }
  if (requests.empty()) return Fail(Code::kInvalid, fmt::format("the trace '{}' is empty", path));
  return requests;
}

std::vector<Chain> ChainsOf(const std::vector<Request>& requests) {
  std::vector<Chain> chains;
  chains.reserve(requests.size());
  for (const Request& request : requests) chains.push_back(request.blocks);
  return chains;
}

}  // namespace kvcove::lab
