// SPDX-License-Identifier: Apache-2.0
#include "kvcove/pool/embedded_admin.h"

#include <atomic>

namespace kvcove::pool {
namespace {

std::atomic<EmbeddedAdminOpener> embedded_admin_opener = nullptr;

}  // namespace

void UseEmbeddedAdmin(EmbeddedAdminOpener open) { embedded_admin_opener = open; }

std::unique_ptr<EmbeddedAdmin> OpenEmbeddedAdmin(LocalHost& host) {
  const EmbeddedAdminOpener open = embedded_admin_opener;
  return open == nullptr ? nullptr : open(host);
}

}  // namespace kvcove::pool
