// SPDX-License-Identifier: Apache-2.0
// Calls to one TCP address, or to the one of several masters that leads, over a few kept
// connections, each with one call at a time. Has no thread; a call runs on its caller's. The mutex
// guards the tables of connections and is never held during a call.
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

  // Makes a call. With several masters it asks those that may lead, one after the other, twice each
  // at most. A call that waits at a master which other calls have found silent continues at the
  // next. Errors: as Client::Call; kUnavailable without `answered` where nobody leads.
  Result<std::string> Call(wire::Method method, std::span<const std::byte> body,
                           std::int64_t deadline_ns) override;
  // Returns the address that is asked now.
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
  // Returns a kept connection, or a new one (`fresh`). Closes kept ones to other addresses.
  Result<Client> Take(const Address& to, std::int64_t deadline_ns, bool& fresh);
  Result<std::string> CallAt(const Address& to, wire::Method method,
                             std::span<const std::byte> body, std::int64_t deadline_ns);
  Result<std::string> CallOver(Client& client, const Address& to, wire::Method method,
                               std::span<const std::byte> body, std::int64_t deadline_ns);
  // Ends the calls that wait at another address than the current one, by shutting down their
  // sockets.
  void AbandonOthers();

  LeaderFinder finder_;
  const Access access_;
  Mutex mutex_;
  std::vector<Idle> idle_ KVCOVE_GUARDED_BY(mutex_);
  std::vector<Busy> busy_ KVCOVE_GUARDED_BY(mutex_);  // calls under way; empty with one address
};

}  // namespace kvcove::rpc
