// SPDX-License-Identifier: Apache-2.0
// Both ends of a transport as their users see them: a peer is another process's server, and a
// server runs a service for other processes. Users name no class of one transport: they have these
// from a `Transport` (transport/endpoint.h), and transport/pick/transports.h says which that is.
//
// What may outlive what. A peer may end as soon as each of its transfers is done or aborted, and so
// may the memory of the exchange itself; what a device may still touch is kept by the transport. A
// server ends with Stop(), which waits for the device instead: its service and the service's memory
// end right behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/access.h"
#include "kvcove/rpc/address.h"
#include "kvcove/transport/endpoint.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {
class CallLimits;
class Tls;
}  // namespace kvcove::rpc

namespace kvcove::transport {

struct PeerOptions {
  rpc::Access access;
  // Called, without a lock, when the peer becomes worth a probe: ProbeDueNs().
  std::function<void()> on_doubt = {};
};

// One server of another process. Thread-safe.
class Peer : public Endpoint {
 public:
  virtual const rpc::Address& address() const = 0;
  // Carries calls without payload (pins, statistics). It lives as long as the peer.
  virtual wire::Channel& channel() = 0;
  // Returns true while calls to the peer mostly fail at once, because it does not answer.
  virtual bool broken() const = 0;
  // Returns when the peer is to be probed; rpc::Breaker::kNever while nobody doubts it.
  virtual std::int64_t ProbeDueNs() const = 0;
  // Tries to reach the peer, for some milliseconds; one that answers is trusted again.
  virtual void Probe() = 0;
};

struct ServerOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 0};
  std::string name = "a data server";  // of these connections, in the log
  std::string thread_name = "kvcove-data";
  std::size_t loops = 2;
  std::uint32_t max_connections = 4096;
  std::uint32_t descriptors_each = 1;    // that one connection costs, all listeners together
  std::int64_t hello_ns = 5 * kSecond;   // to say hello
  std::int64_t stall_ns = 10 * kSecond;  // without a byte in the middle of an exchange
  std::shared_ptr<rpc::Tls> tls;         // null: in the clear
  // A call beyond its limits is answered "busy" (rpc/busy.h), and the connection's next one is not
  // read before it may be asked again. Null: no limits.
  std::shared_ptr<rpc::CallLimits> admission;
};

// Connections of a server, for metrics.
struct ConnectionCounts {
  std::uint32_t open = 0;
  std::uint32_t max = 0;        // beyond, new ones are closed at once
  std::uint64_t refused = 0;    // so, or because they could not be accepted
  std::uint32_t unproven = 0;   // that have proven nothing yet
  std::uint64_t displaced = 0;  // that had proven nothing, and were closed for newer ones
};

// A service at an address. Thread-safe. Its destruction stops it.
class Server {
 public:
  virtual ~Server() = default;
  // Ends every connection, and returns when nothing can land in, or be read from, the pieces of any
  // exchange: until then each `Served` lives. Wakes of a visit that come later do nothing.
  virtual void Stop() = 0;
  // With the port that was chosen.
  virtual const rpc::Address& address() const = 0;
  virtual ConnectionCounts Connections() const = 0;
};

}  // namespace kvcove::transport
