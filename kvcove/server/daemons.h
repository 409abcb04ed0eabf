// SPDX-License-Identifier: Apache-2.0
// Several owners of one host in one process, one a NUMA node: each a daemon with a socket, a lease
// and threads of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvcove/net/devices/numa.h"
#include "kvcove/server/daemon.h"

namespace kvcove::server {

// What one daemon was to be, as one for each share: memory, objects, quotas and the write rate are
// split, disks dealt out by turns, and each
// but the first has the next port and a sibling's socket (requester/local/local_owners.h), named
// after its node. Errors: kInvalid where ports run out, or where disks cannot be dealt out.
Result<std::vector<DaemonOptions>> SplitDaemon(const DaemonOptions& whole,
                                               const std::vector<net::OwnerShare>& shares);

// All or none; with `take_over` those of a running process. Without a cluster one authority over
// generations decides for all of them. Errors: as Daemon::Open.
Result<std::vector<std::unique_ptr<Daemon>>> OpenDaemons(std::vector<DaemonOptions> options,
                                                         const Clock& clock);

// `address` with a port that is larger by `steps`; 0 stays 0, "any".
Result<rpc::Address> StepPort(const rpc::Address& address, std::size_t steps);

}  // namespace kvcove::server
