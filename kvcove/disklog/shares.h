// SPDX-License-Identifier: Apache-2.0
// What some namespaces may have of a disk, and are guaranteed: a tenant's together, or one alone.
// Bytes of live records. Belongs to the Log's thread once the log is open.
//
// A log does not refuse what is beyond a maximum: its owner does (owner/disk/tiering.h). The log
// decides which zones are freed first:
//
//   1. zones that are mostly of a share near its maximum, so that what it may write next replaces
//      what it wrote first
//   2. the others
//   3. zones of which a quarter or more belongs to shares that are within their guarantees
//
// What is within a guarantee and lies in a zone that is freed all the same moves, as far as the
// bounds of moves allow.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace kvcove::disklog {

// An index into DiskShares::limits.
using ShareNumber = std::uint32_t;
inline constexpr ShareNumber kNoShare = ~ShareNumber{0};

struct ShareLimits {
  std::uint64_t maximum_bytes = ~std::uint64_t{0};
  std::uint64_t guaranteed_bytes = 0;
};

struct DiskShares {
  std::vector<ShareLimits> limits;  // empty: no namespace has any
  // Of a namespace's name, as PutRequest has it; kNoShare: it has no limits.
  std::function<ShareNumber(std::string_view name)> of;
};

}  // namespace kvcove::disklog
