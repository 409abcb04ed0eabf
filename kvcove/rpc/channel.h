// SPDX-License-Identifier: Apache-2.0
// Calls to one TCP address, or to the one of several that leads, over a few kept connections, one
// call at a time each.
#pragma once

#include <vector>

#include "kvcove/base/mutex.h"
#include "kvcove/rpc/client.h"
#include "kvcove/rpc/leader.h"
#include "kvcove/wire/host_wire.h"

namespace kvcove::rpc {

// Thread-safe.
class TcpChannel final : public wire::Channel {
 public:
  TcpChannel(Addresses addresses, Access access)
      : finder_(std::move(addresses)), access_(std::move(access)) {}

  // Of several, those are asked one after the other that may lead, twice each at most. A call that
  // waits at one which others have found silent goes on at the next. Errors: as Client::Call;
  // kUnavailable without `answered` where nobody leads.
  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns) override;
  // The one that is asked now.
  Address address() const { return finder_.Current(); }
  const Addresses& addresses() const { return finder_.addresses(); }
  const Access& access() const { return access_; }

 private:
  static constexpr std::size_t kMaxIdle = 8;
  struct Idle {
    Address to;
    Client client;
  };
  struct Busy {
    Address to;
    int fd = -1;
  };
  Result<Client> Take(const Address& to, std::int64_t deadline_ns, bool& fresh);
  Result<std::string> CallAt(const Address& to, wire::Method method,
                             std::span<const std::byte> body, std::int64_t deadline_ns);
  Result<std::string> CallOver(Client& client, const Address& to, wire::Method method,
                               std::span<const std::byte> body, std::int64_t deadline_ns);
  // Ends the calls that wait where nobody is asked any more.
  void AbandonOthers();

  LeaderFinder finder_;
  const Access access_;
  Mutex mutex_;
  std::vector<Idle> idle_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Busy> busy_ KVCOVE_GUARDED_BY(mutex_);  // where there are several addresses
};

}  // namespace kvcove::rpc
