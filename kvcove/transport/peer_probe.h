// SPDX-License-Identifier: Apache-2.0
// Measures the ways between this host and an owner's data server. Moves at most 21 MiB each way,
// none of which is a value's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/transport/peer.h"
#include "kvcove/wire/probe.h"

namespace kvcove::transport {

// The best of what was measured, of one connection.
struct WayFigures {
  std::int64_t round_trip_ns = 0;
  double from_peer = 0;  // bytes a second
  double to_peer = 0;    // bytes a second; 0: not measured
};

// For one thread.
class PeerProbe {
 public:
  // `transport` outlives it.
  PeerProbe(Transport& transport, const rpc::Address& address, const rpc::Access& access,
            const Clock& clock);
  // Measures by the connection: calls without payload, and payload both ways. Errors: the call's;
  // kUnavailable for a server that ends the connection, as one does that knows no measurement.
  Result<WayFigures> ByConnection();
  // Measures through the transport's device: the first packets of new lanes, and payload that the
  // owner writes into memory of this process. Errors: the reason why payload takes the connection.
  Result<WayFigures> ByDevice();

 private:
  enum class Way : std::uint8_t { kFromPeer, kToPeer };
  // Returns the bytes a second of the fastest of several transfers.
  Result<double> RateOf(Way way, bool by_device);
  // Returns the nanoseconds of one measurement. Asks again, for 5 s together, while the owner's
  // limits of calls and bytes refuse it.
  Result<std::int64_t> TimeOf(const wire::Probe& probe, bool by_device);
  Result<std::int64_t> TimeOnce(const wire::Probe& probe, bool by_device, std::int64_t until_ns);

  Transport& transport_;
  const Clock& clock_;
  const std::shared_ptr<Peer> peer_;
};

}  // namespace kvcove::transport
