// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvcove {

// What a caller knows of a block or of its request and eviction may use. All of it is optional and
// none must be right: a hint that is wrong costs hits, nothing else.
struct Hints {
  std::uint32_t output_tokens = 0;  // length of the request's answer, also expected; 0: not known
  // This block, and those behind it in its request, are mostly not asked for again: the output of a
  // tool, search results, a chain of thought that the next turn leaves out.
  bool ephemeral = false;
  bool session_ends = false;  // nobody goes on from this request
  // More of this request follows in later batches. Without it a batch is a request.
  bool request_goes_on = false;
  bool operator==(const Hints&) const = default;
};

}  // namespace kvcove
