// SPDX-License-Identifier: Apache-2.0
// Statistics of the owners of one host, for `kvcove status` and `kvcove doctor`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/wire/messages.h"

namespace kvcove::pool {

// Returns the socket of the admin interface of a process whose first data socket is `socket`.
std::string AdminSocketOf(const std::string& socket);
// Returns where the admin interface of the process that serves `socket` may be: as above, then that
// of the socket after which a sibling is named (requester/local/local_owners.h), since a process
// with several owners has one.
std::vector<std::string> AdminSocketsOf(const std::string& socket);

struct OwnerStatus {
  std::string socket;
  // Who decides about its generations (wire::Welcome): "master:HOST:PORT" in a cluster.
  std::string authority;
  Status reached;            // not ok: the owner did not answer, and the fields below mean nothing
  int node = -1;             // NUMA node of its memory; -1: bound to none
  bool lease_holds = false;  // its memory may be read now
  wire::PoolStat stat;
};

// Asks each owner at `socket` and its siblings (requester/local/local_owners.h), one after the
// other, for at most `timeout_ns` each. Empty: there is none.
std::vector<OwnerStatus> StatusOfOwners(const std::string& socket, std::int64_t timeout_ns);

// Adds `more` to `sum`: sums numbers, merges namespaces by name, and appends sessions and disks.
void AddStat(wire::PoolStat& sum, const wire::PoolStat& more);

}  // namespace kvcove::pool
