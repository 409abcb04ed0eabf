// SPDX-License-Identifier: Apache-2.0
// Lists the transports of this build and picks the one that moves payload between hosts. The source
// beside this header is the only place outside of a transport's own folder that names a transport:
// scripts/check_layers.sh refuses any other.
#pragma once

#include <memory>
#include <vector>

#include "kvcove/transport/endpoint.h"

namespace kvcove::transport::verbs {
class Fabric;
}  // namespace kvcove::transport::verbs

namespace kvcove::transport {

// Returns every transport, the preferred one first. They live as long as the process.
const std::vector<Transport*>& Transports();
// Returns the transport that connects to other hosts and serves them. A transport that works only
// between some hosts uses another one itself between the rest.
Transport& Preferred();
// Returns a transport that moves the payload of registered memory by RDMA where both sides have it,
// and all else as Preferred() does. `trusted`: also payload of connections that TLS protects, since
// devices do not encrypt. The fabric outlives the transport.
std::unique_ptr<Transport> WithRdma(verbs::Fabric& fabric, bool trusted);

}  // namespace kvcove::transport
