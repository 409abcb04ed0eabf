// SPDX-License-Identifier: Apache-2.0
// What the owners of one host say of themselves, for people: `kvcove status`, `kvcove doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/wire/messages.h"

namespace kvcove::pool {

struct OwnerStatus {
  std::string socket;
  Status reached;            // the others mean nothing without it
  int node = -1;             // NUMA; -1: bound to none
  bool lease_holds = false;  // its memory may be read now
  wire::PoolStat stat;
};

// Of each owner at `socket` and its siblings (requester/local/local_owners.h); empty where there is
// none. Each is asked for up to `timeout_ns`.
std::vector<OwnerStatus> StatusOfOwners(const std::string& socket, std::int64_t timeout_ns);

// Adds the numbers, and joins what is told by name or by session.
void AddStat(wire::PoolStat& sum, const wire::PoolStat& more);

}  // namespace kvcove::pool
