// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/put_order.h"

#include <algorithm>
#include <tuple>

namespace kvcove::requester {
namespace {

// Other processes put between the reading of the hint and the put, so 1/64 of an owner is left
// free.
constexpr std::uint64_t kReserve = 64;

}  // namespace

std::vector<std::size_t> OrderForPut(std::vector<PutCandidate> candidates,
                                     const PutQuestion& question) {
  const std::size_t count = candidates.size();
  const auto rank = [&](const PutCandidate& one) {
    const bool full = one.free_bytes < question.bytes + one.capacity_bytes / kReserve;
    const bool far = question.node < 0 || one.node != question.node;
    return std::tuple(full, far, !one.has_predecessor, (one.owner + question.turn) % count);
  };
  std::ranges::sort(candidates, {}, rank);
  std::vector<std::size_t> order;
  order.reserve(count);
  for (const PutCandidate& one : candidates) order.push_back(one.owner);
  return order;
}

}  // namespace kvcove::requester
