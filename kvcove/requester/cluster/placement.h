// SPDX-License-Identifier: Apache-2.0
// Which owners a put goes to, best first. Pure.
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

// The addresses of SessionOptions::preferred_segment.
std::vector<std::string> PreferredOwners(std::string_view segments);

// Of `owners` those that take objects: the preferred ones, then the others. Owners of different
// hosts come before a second one of a host, so that the first N hold N replicas as far apart as can
// be.
std::vector<wire::OwnerNumber> OrderOwners(const PlacementRequest& request,
                                           std::vector<wire::OwnerStat> owners, Random& random);

}  // namespace kvcove::requester
