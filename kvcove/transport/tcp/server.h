// SPDX-License-Identifier: Apache-2.0
// A service's exchanges over TCP: event loops, a listener, credentials, frames. Payload goes from
// the socket into the service's pieces and back, with no copy between.
//
// A connection:  greeting -> (a frame's head -> its body -> the steps of an exchange -> reply) ...
// It ends when the peer hangs up, sends garbage, is not let in within `hello_ns`, or makes no
// progress for `stall_ns` in the middle of an exchange; then its exchange ends, and its visit after
// it. Between exchanges it may be silent, and holds no buffer.
//
// A loop moves at most 1 MiB for one connection before it looks after the others.
#pragma once

#include <memory>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/transport/peer.h"
#include "kvcove/transport/service.h"

namespace kvcove::transport::tcp {

// Thread-safe.
class Server final : public transport::Server {
 public:
  // As Transport::Serve.
  static Result<std::unique_ptr<Server>> Open(const ServerOptions& options, rpc::Gate& gate,
                                              Service& service, const Clock& clock);
  ~Server() override;
  // Joins the loops.
  void Stop() override;

  const rpc::Address& address() const override;
  ConnectionCounts Connections() const override;

 private:
  class Loop;
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::transport::tcp
