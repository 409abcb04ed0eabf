// SPDX-License-Identifier: Apache-2.0
// Where a program that has an HTTP server gives embedded pools their admin interface. An engine's
// library has none, and this is all that it has; server/host_admin.h is the other side.
#pragma once

#include <memory>

namespace kvcove::pool {

class LocalHost;

// Serves for as long as it exists.
class EmbeddedAdmin {
 public:
  virtual ~EmbeddedAdmin() = default;
};

// Returns the admin interface of this host, which outlives it; null: it cannot be served.
using EmbeddedAdminOpener = std::unique_ptr<EmbeddedAdmin> (*)(LocalHost& host);
// Calls `open` for each embedded pool that is opened from now on. Thread-safe.
void UseEmbeddedAdmin(EmbeddedAdminOpener open);
// Null where nobody has called UseEmbeddedAdmin.
std::unique_ptr<EmbeddedAdmin> OpenEmbeddedAdmin(LocalHost& host);

}  // namespace kvcove::pool
