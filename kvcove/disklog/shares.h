// SPDX-License-Identifier: Apache-2.0
// Shares: maximum and guarantee of one namespace, or of all namespaces of a tenant, in bytes of
// live records on the disk. Belongs to the Log's thread once the log is open.
//
// A log does not refuse objects beyond a maximum: its owner does (owner/tier/tiering.h). The log
// decides which zones are freed first:
//
//   1. zones of which half or more belongs to shares near their maximum, so that new objects of a
//      share replace its oldest
//   2. the others
//   3. zones of which a quarter or more belongs to shares within their guarantees
//
// Objects within a guarantee are moved out of a zone that is freed, within the bounds of moves.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace kvcove::disklog {

// Index into DiskShares::limits.
using ShareNumber = std::uint32_t;
inline constexpr ShareNumber kNoShare = ~ShareNumber{0};

struct ShareLimits {
  std::uint64_t maximum_bytes = ~std::uint64_t{0};
  std::uint64_t guaranteed_bytes = 0;
};

struct DiskShares {
  std::vector<ShareLimits> limits;  // empty: no namespace has limits
  // Returns the share of PutRequest::name; kNoShare: no limits.
  std::function<ShareNumber(std::string_view name)> of;
};

}  // namespace kvcove::disklog
