// SPDX-License-Identifier: Apache-2.0
// TCP as a transport, and the one header of this folder that others include. Sockets need no
// registration, and the processor moves their bytes, so Abort() always returns true.
//
// With a fabric the payload of registered memory moves by RDMA beside the sockets (docs/rdma.md):
// between processes that both have one, and Abort() may return false then.
#pragma once

#include <memory>

#include "kvcove/transport/endpoint.h"

namespace kvcove::transport::verbs {
class Fabric;
}  // namespace kvcove::transport::verbs

namespace kvcove::transport::tcp {

struct LaneOptions {
  verbs::Fabric* fabric = nullptr;  // null: sockets only; outlives the transport
  // Payload moves by RDMA even where TLS protects the connections: devices do not encrypt.
  bool trusted = false;
};

Transport& Sockets();
std::unique_ptr<Transport> MakeSockets(const LaneOptions& lanes);

}  // namespace kvcove::transport::tcp
