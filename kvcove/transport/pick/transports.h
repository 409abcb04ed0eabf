// SPDX-License-Identifier: Apache-2.0
// Which transports this build has, and which one moves payload between hosts. The source beside
// this header is the only place outside of a transport's own folder that names one:
// scripts/check_layers.sh refuses any other.
#pragma once

#include <vector>

#include "kvcove/transport/endpoint.h"

namespace kvcove::transport {

// Returns every transport, the preferred one first. They live as long as the process.
const std::vector<Transport*>& Transports();
// Returns the transport that connects to other hosts and serves them. One that works only between
// some hosts takes another one itself where it cannot be used.
Transport& Preferred();

}  // namespace kvcove::transport
