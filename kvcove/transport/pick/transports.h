// SPDX-License-Identifier: Apache-2.0
// Lists the transports of this build and picks the one that moves payload between hosts. The source
// beside this header is the only place outside of a transport's own folder that names a transport:
// scripts/check_layers.sh refuses any other.
#pragma once

#include <vector>

#include "kvcove/transport/endpoint.h"

namespace kvcove::transport {

// Returns every transport, the preferred one first. They live as long as the process.
const std::vector<Transport*>& Transports();
// Returns the transport that connects to other hosts and serves them. A transport that works only
// between some hosts uses another one itself between the rest.
Transport& Preferred();

}  // namespace kvcove::transport
