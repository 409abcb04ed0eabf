// SPDX-License-Identifier: Apache-2.0
// A listening socket and the beginning of its connections, the same for every port: it accepts,
// with a pause when accept() fails, counts, makes newcomers that have proven nothing give way to
// newer ones, runs TLS handshakes, and ends connections that do not say hello in time. What it
// delivers is a socket in the clear; frames and credentials are the server's.
//
//   accepted --(limit full)--> closed
//      | counted, with a ticket (rpc/unproven.h)
//      v
//   TLS handshake --(fails, late, displaced)--> closed
//      | or in the clear
//      v
//   delivered --(hello_ns passes, or displaced)--> drop(id): the server closes it, unless it has
//                                                  been let in meanwhile
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/tls.h"
#include "kvcove/rpc/unproven.h"

namespace boost::asio {
class io_context;
}

namespace kvcove::rpc {

struct ListenerOptions {
  std::string name;  // whose connections these are, in the log
  // Fewer where the process may not have so many descriptors: base/descriptors.h.
  std::uint32_t max_connections = 1024;
  std::uint32_t descriptors_each = 1;  // that one connection costs, all listeners together
  bool is_unix = false;
  std::int64_t hello_ns = 5'000'000'000;  // for a handshake, and then for a hello
  std::shared_ptr<Tls> tls;               // null: in the clear
};

// A connection that has begun. It counts, and has proven nothing, until these are gone.
struct Arrival {
  std::uint64_t id = 0;  // never used again
  UniqueFd fd;           // non-blocking
  bool is_unix = false;  // also what comes out of TLS
  std::shared_ptr<void> counted;
  std::shared_ptr<Unproven::Ticket> ticket;  // the server drops it when it lets the connection in
};

// Belongs to its event loop's thread, but for Open, the destructor (after the loop has ended) and
// the counters.
class Listener {
 public:
  // On the loop's thread.
  using Deliver = std::function<void(Arrival)>;
  // On any thread, without a lock; must not wait. The connection may be gone, or let in.
  using Drop = std::function<void(std::uint64_t id)>;

  Listener(boost::asio::io_context& loop, UniqueFd socket, const ListenerOptions& options,
           Deliver deliver, Drop drop);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Begins to accept; before the loop runs, or on its thread.
  void Start();
  // Accepts from another socket from now on; on the loop's thread.
  void Replace(UniqueFd socket);
  // Nothing is delivered any more, and its timers let the loop end.
  void Close();

  // ---- hand-over to a successor; while the loop stands still
  UniqueFd Copy();
  // Ids given from now on are above this one.
  void BeginAbove(std::uint64_t id);
  // One connection that came from a predecessor counts, as in Arrival.
  std::shared_ptr<void> Count();
  // It has proven nothing yet, and has as long for its hello as a new one.
  std::shared_ptr<Unproven::Ticket> Enter(std::uint64_t id, int fd);

  // From any thread.
  const ConnectionLimit& connections() const;
  const Unproven& unproven() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
