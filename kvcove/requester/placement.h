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
  std::string preferred;  // an owner's address; before all others, whatever the strategy
  std::string host;       // of the requester
};

// Of `owners` those that take objects. Owners of different hosts come before a second one of a
// host, so that the first N hold N replicas as far apart as can be.
std::vector<wire::OwnerNumber> OrderOwners(const PlacementRequest& request,
                                           std::vector<wire::OwnerStat> owners, Random& random);

}  // namespace kvcove::requester
