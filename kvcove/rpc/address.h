// SPDX-License-Identifier: Apache-2.0
// Network addresses of processes: `host:port`, `[::1]:port`. TCP sockets from them.
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
  // "10.0.0.1:7400", "[fd00::1]:7400".
  std::string ToString() const;
};

// 127.0.0.1 and the port.
Address LoopbackAddress(std::uint16_t port);

// `default_port` 0: the text must name one. Errors: kInvalid, saying what was wrong with it.
Result<Address> ParseAddress(std::string_view text, std::uint16_t default_port);

// Only this host can reach it.
bool IsLoopback(const Address& address);

// How the kernel reaches an address. Both are numeric, an IPv6 link-local with its scope:
// fe80::1%eth0.
struct Route {
  std::string source;  // of this host: what the peer sees
  std::string peer;    // the first address of the peer's name, as ConnectTcp takes it
};
// Asks the kernel's routing table; nothing is sent. Errors: kInvalid for a name that is not known,
// kUnavailable without a route.
Result<Route> RouteTo(const Address& address);

// A listening socket, closed on exec, not blocking; `address.port` 0 becomes the port that the
// kernel chose. Errors: kInvalid for a name that is not known, kUnavailable when it is in use.
Result<UniqueFd> ListenTcp(Address& address);

// Connected before `deadline_ns`, without Nagle's delay. Errors: kUnavailable, kTimeout, kInvalid.
Result<UniqueFd> ConnectTcp(const Address& address, std::int64_t deadline_ns);

}  // namespace kvcove::rpc
