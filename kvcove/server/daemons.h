// SPDX-License-Identifier: Apache-2.0
// Several owners of one host in one process, one a NUMA node: each a daemon with a socket, a lease
// and threads of its own.
#pragma once

#include <memory>
#include <vector>

#include "kvcove/net/devices/numa.h"
#include "kvcove/server/daemon.h"

namespace kvcove::server {

// Splits the options of one daemon into those of one for each share. Memory, objects, quotas and
// rates are divided; disks are dealt out in turn. Each daemon but the first gets the next port and
// a sibling's socket (requester/local/local_owners.h), named after its node. Errors: kInvalid where
// ports run out, or where the number of disks cannot be divided.
Result<std::vector<DaemonOptions>> SplitDaemon(const DaemonOptions& whole,
                                               const std::vector<net::OwnerShare>& shares);

// Opens all daemons, or none; with `take_over`, takes over those of a running process. Without a
// cluster, one authority (HostControl) decides about the generations of all of them. Errors: as
// Daemon::Open and Daemon::TakeOver.
Result<std::vector<std::unique_ptr<Daemon>>> OpenDaemons(std::vector<DaemonOptions> options,
                                                         const Clock& clock);

// Returns `address` with a port that is larger by `steps`; port 0 ("any") remains 0. Errors:
// kInvalid beyond 65535.
Result<rpc::Address> StepPort(const rpc::Address& address, std::size_t steps);

}  // namespace kvcove::server
