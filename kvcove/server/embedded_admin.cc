// SPDX-License-Identifier: Apache-2.0
#include "kvcove/server/embedded_admin.h"

#include "kvcove/pool/embedded_admin.h"
#include "kvcove/server/host_admin.h"

namespace kvcove::server {
namespace {

class ServedEmbedded final : public pool::EmbeddedAdmin {
 public:
  explicit ServedEmbedded(std::unique_ptr<HostAdmin> admin) : admin_(std::move(admin)) {}

 private:
  const std::unique_ptr<HostAdmin> admin_;
};

std::unique_ptr<pool::EmbeddedAdmin> OpenFor(pool::LocalHost& host) {
  HostPoolOptions pool;
  pool.hosts = {&host};
  auto admin = HostAdmin::OpenEmbedded(std::move(pool), SystemClock::Instance());
  if (admin == nullptr) return nullptr;
  return std::make_unique<ServedEmbedded>(std::move(admin));
}

}  // namespace

void ServeEmbedded() { pool::UseEmbeddedAdmin(&OpenFor); }

}  // namespace kvcove::server
