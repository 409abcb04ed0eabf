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
  std::string name;  // of its connections, in the log
  // Fewer where the process may not have so many descriptors: base/descriptors.h.
  std::uint32_t max_connections = 1024;
  std::uint32_t descriptors_each = 1;  // cost of one connection, for all listeners together
  bool is_unix = false;
  std::int64_t hello_ns = 5'000'000'000;  // longest time of a handshake, and then of a hello
  std::shared_ptr<Tls> tls;               // null: in the clear
};

// A connection that has begun. It counts against the limit while `counted` exists, and as one that
// has proven nothing while `ticket` does.
struct Arrival {
  std::uint64_t id = 0;  // never used again
  UniqueFd fd;           // non-blocking
  bool is_unix = false;  // true also behind TLS
  std::shared_ptr<void> counted;
  std::shared_ptr<Unproven::Ticket> ticket;  // the server drops it when it lets the connection in
};

// Belongs to its event loop's thread, but for Open, the destructor (after the loop has ended) and
// the counters.
class Listener {
 public:
  // Takes a connection; called on the loop's thread.
  using Deliver = std::function<void(Arrival)>;
  // Ends a connection, which may have ended or been let in already. Called on any thread, without a
  // lock; must not wait.
  using Drop = std::function<void(std::uint64_t id)>;

  Listener(boost::asio::io_context& loop, UniqueFd socket, const ListenerOptions& options,
           Deliver deliver, Drop drop);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Begins to accept. Call it before the loop runs, or on its thread.
  void Start();
  // Closes the socket and accepts from another one. Call it on the loop's thread.
  void Replace(UniqueFd socket);
  // Stops accepting and delivering, and cancels the timers, so that the loop can end.
  void Close();

  // ---- hand-over to a successor; call these while the loop does not run
  // Returns a copy of the listening socket.
  UniqueFd Copy();
  // Gives later connections ids above this one.
  void BeginAbove(std::uint64_t id);
  // Counts a connection of a predecessor; see Arrival. Null: there is no room.
  std::shared_ptr<void> Count();
  // Returns the ticket of such a connection that has proven nothing yet. It has as long for its
  // hello as a new one.
  std::shared_ptr<Unproven::Ticket> Enter(std::uint64_t id, int fd);

  // From any thread.
  const ConnectionLimit& connections() const;
  const Unproven& unproven() const;

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
