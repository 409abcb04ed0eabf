// SPDX-License-Identifier: Apache-2.0
// Calls to one TCP address over a few kept connections, one call at a time each.
#pragma once

#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/rpc/client.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {

// Thread-safe.
class TcpChannel final : public wire::Channel {
 public:
  TcpChannel(Address address, Access access)
      : address_(std::move(address)), access_(std::move(access)) {}

  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns) override;
  const Address& address() const { return address_; }
  const Access& access() const { return access_; }

 private:
  static constexpr std::size_t kMaxIdle = 8;
  Result<Client> Take(std::int64_t deadline_ns, bool& fresh);

  const Address address_;
  const Access access_;
  Mutex mutex_;
  std::vector<Client> idle_ KVCOVE_GUARDED_BY(mutex_);
};

}  // namespace kvcove::rpc
