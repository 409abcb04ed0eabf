// SPDX-License-Identifier: Apache-2.0
// Serves a service's exchanges over TCP: event loops, a listener, credentials, frames. Payload
// moves between the socket and the service's pieces without a copy.
//
// A connection:  greeting -> (a frame's head -> its body -> the steps of an exchange -> reply) ...
// It ends when the peer hangs up, sends garbage, has no valid hello within `hello_ns`, or makes no
// progress for `stall_ns` in the middle of an exchange; then its exchange ends, and its visit after
// it. Between exchanges it may be silent, and holds no buffer.
//
// Each loop is a thread with its own connections; loop 0 also accepts. One system call moves at
// most 1 MiB for one connection, and a loop serves the others after a bounded number of steps.
#pragma once

#include <memory>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/service.h"

namespace kvcove::transport::verbs {
class Fabric;
}  // namespace kvcove::transport::verbs

namespace kvcove::transport::tcp {

// Thread-safe.
class Server final : public transport::Server {
 public:
  // As Transport::Serve. `fabric`: serves payload by RDMA, too; null: over sockets only.
  static Result<std::unique_ptr<Server>> Open(const ServerOptions& options, rpc::Gate& gate,
                                              Service& service, const Clock& clock,
                                              verbs::Fabric* fabric = nullptr);
  ~Server() override;
  // Ends the connections and joins the loops.
  void Stop() override;
  [[nodiscard]] bool StopWithin(std::int64_t most_ns) override;

  const rpc::Address& address() const override;
  ConnectionCounts Connections() const override;
  std::optional<LaneCounts> Lanes() const override;

 private:
  class Loop;
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::transport::tcp
