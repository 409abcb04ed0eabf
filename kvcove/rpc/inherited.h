// SPDX-License-Identifier: Apache-2.0
// TCP listeners that this process has got from a predecessor or from itself (docs/upgrade.md,
// server/elected_master.cc), until a server asks for their address. They are shared by the whole
// process, as its ports are. Thread-safe, under one mutex that is taken alone.
#pragma once

#include <vector>

#include "kvcove/base/posix.h"
#include "kvcove/rpc/address.h"

namespace kvcove::rpc {

// Returns where a socket listens, with a numeric host: the address for which ListenTcp returns a
// copy of that socket.
Address BoundAddress(int fd);

// Returns one copy of every listening TCP socket that this process has open, however many
// descriptors it has.
std::vector<UniqueFd> CopyTcpListeners();

// Keeps listeners, which replace those that were kept before. ListenTcp returns one of them in
// place of a new socket when it is asked for the same address.
void InheritTcpListeners(std::vector<UniqueFd> listeners);
// Returns the listener at `address`, and keeps it no longer; -1: there is none.
UniqueFd TakeInherited(const Address& address);
// Closes the listeners for which no server has asked. Returns their number.
std::size_t DropInherited();

}  // namespace kvcove::rpc
