// SPDX-License-Identifier: Apache-2.0
// Network addresses of processes (`host:port`, `[::1]:port`), and TCP sockets to and at them. All
// functions are thread-safe; those that resolve a name may wait for DNS.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kvcove/base/posix.h"

namespace kvcove::rpc {

struct Address {
  std::string host;
  std::uint16_t port = 0;
  bool operator==(const Address&) const = default;
  // Returns "10.0.0.1:7400" or "[fd00::1]:7400".
  std::string ToString() const;
};

// Returns 127.0.0.1 and the port.
Address LoopbackAddress(std::uint16_t port);

// Reads an address. `default_port` 0: the text must name a port. Errors: kInvalid, with the reason.
Result<Address> ParseAddress(std::string_view text, std::uint16_t default_port);

// Returns whether only this host can reach the address. Names but `localhost` are not resolved.
bool IsLoopback(const Address& address);

// How the kernel reaches an address. Both are numeric, an IPv6 link-local with its scope:
// fe80::1%eth0.
struct Route {
  std::string source;  // address of this host that the peer sees
  std::string peer;    // first address of the peer's name, which ConnectTcp uses
};
// Returns the route of the kernel's routing table; sends nothing to the peer. Errors: kInvalid for
// an unknown name, kUnavailable without a route.
Result<Route> RouteTo(const Address& address);

// Returns a listening socket, closed on exec, not blocking: the one that was inherited for this
// address (rpc/inherited.h), or a new one. `address.port` 0 becomes the port that the kernel chose.
// Errors: kInvalid for an unknown name, kUnavailable when the address is in use.
Result<UniqueFd> ListenTcp(Address& address);

// Returns a socket that is connected before `deadline_ns`, not blocking, without Nagle's delay.
// Errors: kTimeout; kUnavailable, also for an unknown name: the DNS may know it a moment later (a
// pod that is being started again), and the same server may have another name that is known.
Result<UniqueFd> ConnectTcp(const Address& address, std::int64_t deadline_ns);

}  // namespace kvcove::rpc
