// SPDX-License-Identifier: Apache-2.0
// What the halves of `kvcove bench connector` share.
#pragma once

#include <cstdint>
#include <string>

#include "lab/commands/bench.h"

namespace kvcove::lab {

// 32 bytes, like an engine's hash of block `i`.
std::string BenchHash(std::uint64_t i);

// The rows of a rank, and of a pool that is slow.
Status RunRanksBench(const BenchOptions& options, Pool& pool);

}  // namespace kvcove::lab
