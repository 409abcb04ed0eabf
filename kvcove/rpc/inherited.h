// SPDX-License-Identifier: Apache-2.0
// TCP listeners on their way from a process to its successor (docs/upgrade.md). They belong to the
// whole process, as the ports do that they listen on. Thread-safe.
#pragma once

#include <vector>

#include "kvcove/base/posix.h"
#include "kvcove/rpc/address.h"

namespace kvcove::rpc {

// Where a listening socket listens, with a numeric host: what ListenTcp must be asked for to get a
// copy of it.
Address BoundAddress(int fd);

// A copy of every listening TCP socket that this process has open.
std::vector<UniqueFd> CopyTcpListeners();

// ListenTcp gives these in place of a new socket to who asks for their address.
void InheritTcpListeners(std::vector<UniqueFd> listeners);
// The one that `address` names, and no longer inherited; -1: none.
UniqueFd TakeInherited(const Address& address);
// Closes those that nobody has asked for. Returns how many.
std::size_t DropInherited();

}  // namespace kvcove::rpc
