// SPDX-License-Identifier: Apache-2.0
// Request sequences that try an eviction policy: variations of a trace, and patterns made from a
// seed. The same name, trace and seed give the same requests.
//
//   reversed  the trace from its end
//   shuffled  the trace in a random order: nothing of when requests return is left
//   scan      the trace, and after every tenth request a chain of 200 blocks that nobody reads
//   again shift     half of the trace, as many requests of `agents`, then the rest of the trace
//   loop      2,000 chains of 16 blocks, read in turn: the worst case of every recency
//   zipf      5,000 chains of 4 to 64 blocks, popular as 1 / rank
//   agents    agents that share a system prompt of 8 blocks, call tools 4 to 40 times in a row,
//   each
//             time with all that came before, and end; some of their chains branch
//   sessions  a chat service: 24 applications with system prompts, sessions of some turns with
//             pauses of seconds to an hour between them, documents in every fifth one. A request's
//             last block is partial, and the next turn has another in its place
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvcove/base/result.h"
#include "lab/policy/simulate.h"

namespace kvcove::lab {

std::vector<std::string_view> WorkloadNames();
// `trace`: what variations are made from. Errors: kInvalid for an unknown name.
Result<std::vector<Chain>> MakeWorkload(std::string_view name, std::span<const Chain> trace,
                                        std::uint64_t seed);

}  // namespace kvcove::lab
