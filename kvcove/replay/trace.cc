// SPDX-License-Identifier: Apache-2.0
#include "kvcove/replay/trace.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvcove::replay {
namespace {

constexpr std::string_view kExample =
    R"({"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]})";
constexpr std::uint64_t kMaxBlock = 1U << 30;

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

Result<std::vector<Request>> ReadTrace(const std::string& path, std::size_t limit) {
  std::ifstream file(path);
  if (!file) {
    return Fail(Code::kInvalid,
                fmt::format("cannot read the trace '{}': {}", path, std::strerror(errno)));
  }
  std::vector<Request> requests;
  std::string line;
  for (std::size_t number = 1; requests.size() < limit && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<Request> request = ParseTraceLine(line);
    if (!request) {
      return Fail(Code::kInvalid, fmt::format("{}:{}: {}", path, number, request.error().detail));
    }
    requests.push_back(std::move(*request));
  }
  if (requests.empty()) return Fail(Code::kInvalid, fmt::format("the trace '{}' is empty", path));
  return requests;
}

std::vector<policy::Chain> ChainsOf(const std::vector<Request>& requests) {
  std::vector<policy::Chain> chains;
  chains.reserve(requests.size());
  for (const Request& request : requests) chains.push_back(request.blocks);
  return chains;
}

}  // namespace kvcove::replay
