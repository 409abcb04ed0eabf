// SPDX-License-Identifier: Apache-2.0
// Orders the owners of a cluster for a put. Functions without state, so any thread may call them.
#pragma once

#include <string>
#include <vector>

#include "kvcove/base/random.h"
#include "kvcove/requester/types.h"
#include "kvcove/wire/cluster.h"

namespace kvcove::requester {

struct PlacementRequest {
  Placement strategy = Placement::kLocalFirst;
  std::vector<std::string>
      preferred;     // addresses; before all others, in this order, whatever the strategy
  std::string host;  // of the requester
};

// Returns the addresses in SessionOptions::preferred_segment, which separates them by commas.
std::vector<std::string> PreferredOwners(std::string_view segments);

// Returns the numbers of the owners that take objects, best first: the preferred ones, then the
// others by the strategy. An owner of a new host comes before a second one of a host, so that the
// first N hold N replicas as far apart as possible; preferred owners keep their order.
std::vector<wire::OwnerNumber> OrderOwners(const PlacementRequest& request,
                                           std::vector<wire::OwnerStat> owners, Random& random);

}  // namespace kvcove::requester
