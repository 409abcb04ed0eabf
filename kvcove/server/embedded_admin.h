// SPDX-License-Identifier: Apache-2.0
// The admin interface of embedded pools (host_admin.h): an engine's library has no HTTP server, and
// this one has.
#pragma once

namespace kvcove::server {

// Serves the admin interface of each embedded pool that this process opens from now on, unless its
// address has admin=0: at a Unix socket without a file, for this process's user and root, with two
// threads. `kvcove status` finds it. A pool whose interface cannot be served opens all the same.
// Thread-safe.
void ServeEmbedded();

}  // namespace kvcove::server
