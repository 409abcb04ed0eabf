// SPDX-License-Identifier: Apache-2.0
// The address that an owner advertises: where other hosts connect to get and put data.
// docs/addresses.md has the order of choice and what is refused.
#pragma once

#include <functional>
#include <string>

#include "kvcove/rpc/leader.h"

namespace kvcove::net {

struct AdvertiseRequest {
  std::string advertise;  // --advertise, host or host:port; empty: not given
  rpc::Address listen;    // port 0: the kernel will choose one
  rpc::Addresses master;  // of several, the first to which there is a route counts
};

struct Advertised {
  rpc::Address address;  // port 0: the one that it will listen on
  std::string why;       // "the route to the master 10.0.0.9 leaves from it (eth0)"
};

using RouteFunction = std::function<Result<rpc::Route>(const rpc::Address&)>;

// Errors: kInvalid, with what to say instead; kUnavailable when the choice needs the route to the
// master and there is none.
Result<Advertised> ChooseAdvertised(const AdvertiseRequest& request,
                                    const RouteFunction& route = rpc::RouteTo);

// The network interface that has this numeric address, as "eth0"; empty: none has it.
std::string InterfaceOf(const std::string& host);

}  // namespace kvcove::net
