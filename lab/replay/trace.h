// SPDX-License-Identifier: Apache-2.0
// Request traces, in three formats:
//
//   mooncake  the Mooncake FAST'25 release: one JSON object a line with timestamp (ms),
//   input_length
//             and output_length (tokens) and hash_ids (one a block of 512 tokens, a partial last
//             one included)
//   bailian   the Qwen-Bailian release (alibaba-edu/qwen-bailian-usagetraces-anon): the same
//   fields,
//             with seconds and blocks of 16 tokens, and more, which are not read
//   vllm      a log of vLLM with --enable-log-requests: lines that carry prompt_token_ids, which
//             newer versions write with VLLM_LOGGING_LEVEL=DEBUG; blocks of 16 tokens are made of
//             them. Answers are counted where --enable-log-outputs wrote them. Other lines are
//             skipped. --max-log-len cuts prompts, and must not be given.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvcove/base/result.h"
#include "lab/policy/simulate.h"

namespace kvcove::lab {

inline constexpr std::uint64_t kTokensPerBlock = 512;

struct Request {
  std::uint64_t timestamp_ms = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  Chain blocks;
};

enum class TraceFormat : std::uint8_t { kMooncake, kBailian, kVllm };
const std::map<std::string, TraceFormat>& TraceFormats();  // by name

// Errors: kInvalid with the file, the line's number, what is wrong and what would be right.
Result<std::vector<Request>> ReadTrace(const std::string& path, std::size_t limit = ~std::size_t{0},
                                       TraceFormat format = TraceFormat::kMooncake);
// A line of Mooncake's.
Result<Request> ParseTraceLine(std::string_view line);

// Reads a trace line by line; what lines have in common, such as blocks, gets equal numbers.
class TraceReader {
 public:
  explicit TraceReader(TraceFormat format) : format_(format) {}
  // Adds the line's request, if it has one. Errors: kInvalid, saying what is wrong.
  Status Add(std::string_view line, std::vector<Request>& requests);

 private:
  Status AddBailian(std::string_view line, std::vector<Request>& requests);
  Status AddVllm(std::string_view line, std::vector<Request>& requests);
  Result<std::uint32_t> NumberOf(std::uint64_t block);

  const TraceFormat format_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;  // of blocks
  std::unordered_map<std::string, std::size_t> running_;      // vllm: request -> its place
};

std::vector<Chain> ChainsOf(const std::vector<Request>& requests);

}  // namespace kvcove::lab
