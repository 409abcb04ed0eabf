// SPDX-License-Identifier: Apache-2.0
// Request traces in the format of the Mooncake FAST'25 release: one JSON object a line with
// timestamp (ms), input_length and output_length (tokens) and hash_ids (one a block of 512 tokens,
// a partial last one included).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/policy/simulate.h"

namespace kvcove::replay {

inline constexpr std::uint64_t kTokensPerBlock = 512;

struct Request {
  std::uint64_t timestamp_ms = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  policy::Chain blocks;
};

// Errors: kInvalid with the file, the line's number, what is wrong and what would be right.
Result<std::vector<Request>> ReadTrace(const std::string& path,
                                       std::size_t limit = ~std::size_t{0});
Result<Request> ParseTraceLine(std::string_view line);

std::vector<policy::Chain> ChainsOf(const std::vector<Request>& requests);

}  // namespace kvcove::replay
