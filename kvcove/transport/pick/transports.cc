// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/pick/transports.h"

#include "kvcove/transport/tcp/sockets.h"

namespace kvcove::transport {

const std::vector<Transport*>& Transports() {
  static const std::vector<Transport*> all = {&tcp::Sockets()};
  return all;
}

Transport& Preferred() { return *Transports().front(); }

std::unique_ptr<Transport> WithRdma(verbs::Fabric& fabric, bool trusted) {
  return tcp::MakeSockets({.fabric = &fabric, .trusted = trusted});
}

}  // namespace kvcove::transport
