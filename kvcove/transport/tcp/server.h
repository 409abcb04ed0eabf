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

#include <cstdint>
#include <memory>
#include <string>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/listener.h"
#include "kvcove/transport/service.h"

namespace kvcove::transport::tcp {

struct ServerOptions {
  rpc::Address listen{.host = "127.0.0.1", .port = 0};
  std::string name = "a data server";  // of these connections, in the log
  std::string thread_name = "kvcove-data";
  std::size_t loops = 2;
  std::uint32_t max_connections = 4096;
  std::uint32_t descriptors_each = 1;    // that one connection costs, all listeners together
  std::int64_t hello_ns = 5 * kSecond;   // to say hello
  std::int64_t stall_ns = 10 * kSecond;  // without a byte in the middle of an exchange
  std::shared_ptr<rpc::Tls> tls;         // null: in the clear
  // A call beyond its limits is answered "busy" (rpc/busy.h), and the connection's next one is not
  // read before it may be asked again. Null: no limits.
  std::shared_ptr<rpc::CallLimits> admission;
};

// Thread-safe.
class Server {
 public:
  // Listens when it returns. `gate` says who is let in; it and the service outlive the server.
  // Errors: kUnavailable, kInvalid.
  static Result<std::unique_ptr<Server>> Open(const ServerOptions& options, rpc::Gate& gate,
                                              Service& service, const Clock& clock);
  ~Server();
  // Ends every connection and joins the loops. Wakes that come later go nowhere.
  void Stop();

  // With the port that was chosen.
  const rpc::Address& address() const;
  const ConnectionLimit& connections() const;
  const rpc::Unproven& unproven() const;

 private:
  class Loop;
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::transport::tcp
