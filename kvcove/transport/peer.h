// SPDX-License-Identifier: Apache-2.0
// Both ends of a transport as their users see them: a peer is another process's server, and a
// server runs a service for other processes. Users name no class of one transport: they have these
// from a `Transport` (transport/endpoint.h), and transport/pick/transports.h says which that is.
//
// Lifetimes. A peer may end as soon as each of its transfers is done or aborted, and so may the
// memory of the exchange itself; the transport keeps all memory that a device may still touch. A
// server's Stop() waits for the device instead, so that its service and the service's memory may
// end right behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
  // Called, without a lock, when ProbeDueNs() has become due: the peer should be probed.
  std::function<void()> on_doubt = {};
};

// One server of another process. Thread-safe.
class Peer : public Endpoint {
 public:
  virtual const rpc::Address& address() const = 0;
  // Carries calls without payload (pins, statistics). It lives as long as the peer.
  virtual wire::Channel& channel() = 0;
  // Returns true while the peer does not answer, and calls to it mostly fail at once.
  virtual bool broken() const = 0;
  // Returns the time of the next probe; rpc::Breaker::kNever while the peer is trusted.
  virtual std::int64_t ProbeDueNs() const = 0;
  // Tries to reach the peer, for some milliseconds. A peer that answers is trusted again.
  virtual void Probe() = 0;
  // Makes a way for a device to this peer now, which the next exchange takes; exchanges have theirs
  // made in the background. Waits for the peer and for the device, for seconds. Returns the time
  // of its first packet to the peer and back, in nanoseconds. For diagnoses. Errors: the reason why
  // payload takes the connection.
  virtual Result<std::int64_t> TryDevice() {
    return Fail(Code::kUnavailable, "no RDMA device is open for this peer");
  }
};

struct ServerOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 0};
  std::string name = "a data server";  // names these connections in the log
  std::string thread_name = "kvcove-data";
  std::size_t loops = 2;
  std::uint32_t max_connections = 4096;
  std::uint32_t descriptors_each = 1;    // cost of one connection, over all listeners
  std::int64_t hello_ns = 5 * kSecond;   // limit for a new connection's hello
  std::int64_t stall_ns = 10 * kSecond;  // limit without a byte in the middle of an exchange
  std::shared_ptr<rpc::Tls> tls;         // null: in the clear
  // Where most served pieces are: a device moves them by itself, where there is one. It stays
  // mapped until Stop() has returned. The device may keep its pages pinned for longer, and touches
  // them no more.
  std::vector<std::span<std::byte>> memory;
  // A call beyond these limits is answered "busy" (rpc/busy.h), and the server reads no further
  // call of that connection before the time that the answer names. Null: no limits.
  std::shared_ptr<rpc::CallLimits> admission;
};

// Connections of a server, for metrics.
struct ConnectionCounts {
  std::uint32_t open = 0;
  std::uint32_t max = 0;        // new connections beyond it are closed at once
  std::uint64_t refused = 0;    // closed beyond `max`, or not accepted because accept() failed
  std::uint32_t unproven = 0;   // have not said a valid hello yet
  std::uint64_t displaced = 0;  // were unproven, and were closed in favour of newer ones
};

// RDMA beside the connections of a server, for metrics.
struct LaneCounts {
  std::size_t lanes = 0;             // whose queue pairs exist
  std::size_t stuck = 0;             // of these, those whose device does not confirm their end
  std::uint64_t pinned_bytes = 0;    // of the server's memory
  std::uint64_t sent_bytes = 0;      // written into requesters' memory
  std::uint64_t received_bytes = 0;  // read out of it
};

// A service at an address. Thread-safe. The destructor stops it.
class Server {
 public:
  virtual ~Server() = default;
  // Ends every connection, and returns when nothing can land in, or be read from, the pieces of any
  // exchange: until then each `Served` lives. Later wakes of a visit have no effect.
  virtual void Stop() = 0;
  // As Stop(), but waits for a device for so long only. False: it still moves bytes, so service and
  // memory must live on; the connections have ended, and another call waits again.
  [[nodiscard]] virtual bool StopWithin(std::int64_t /*most_ns*/) {
    Stop();  // of a transport that waits for no device
    return true;
  }
  // Returns the address with the port that was chosen.
  virtual const rpc::Address& address() const = 0;
  virtual ConnectionCounts Connections() const = 0;
  // Nothing: payload moves by the connections alone.
  virtual std::optional<LaneCounts> Lanes() const { return std::nullopt; }
};

}  // namespace kvcove::transport
