// SPDX-License-Identifier: Apache-2.0
// A server on a Unix or TCP socket: event loops, frames in, frames out. It knows no service. A
// garbage frame closes its connection and nothing else. On a Unix socket it lets in
// processes of this user, of root, and of the users and groups in ServerOptions::unix_access.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/descriptors.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/address.h"
#include "kvcove/rpc/call_limits.h"
#include "kvcove/rpc/tls.h"
#include "kvcove/rpc/unix_access.h"
#include "kvcove/rpc/unproven.h"
#include "kvcove/wire/frame.h"

namespace kvcove::rpc {

using ConnectionId = std::uint64_t;

struct Peer {
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
};

struct Reply {
  Code code = Code::kOk;
  std::string body;           // or the error's detail
  std::vector<UniqueFd> fds;  // sent with the body
  bool close = false;         // end the connection after this answer
  std::int64_t delay_ns = 0;  // wait before it is sent
  // The loop that serves the connection after this answer; 0: no change. Only for answers that are
  // given within the handler's call.
  std::size_t move_to_loop = 0;
};
// Returns the answer for an error. `close`: end the connection after it.
inline Reply ErrorReply(const Error& error, bool close = false) {
  return {.code = error.code, .body = error.detail, .fds = {}, .close = close};
}

// Answers one request. Call it once, on any thread, also after the connection has ended; not after
// the server has.
using Responder = std::function<void(Reply)>;

// The user of a server. Calls about one connection come one after the other, on its loop's thread,
// and must not wait.
class Handler {
 public:
  virtual ~Handler() = default;
  // Notes a new connection.
  virtual void OnOpen(ConnectionId id, const Peer& peer) = 0;
  // Serves a request. `body` is valid within the call. `deadline_ns`: when the caller gives up; 0:
  // unknown. `respond` must be called once; the connection's next request is read after that.
  virtual void OnRequest(ConnectionId id, wire::Method method, std::span<const std::byte> body,
                         std::int64_t deadline_ns, Responder respond) = 0;
  // Notes the end of a connection.
  virtual void OnClose(ConnectionId id) = 0;
  // Notes the end of a process that was given to WatchProcess.
  virtual void OnProcessGone(std::uint64_t watch) = 0;
  // Returns whether the connection may send whole frames, not only short ones. Until then it is one
  // of the few that have proven nothing (rpc/unproven.h).
  virtual bool Admitted(ConnectionId id) const = 0;
  // For ServerOptions::admission: CallerOf returns the caller of an admitted connection and is
  // called once for it; TrafficOf returns the share from which a call draws.
  virtual LimitedCaller CallerOf(ConnectionId /*id*/) const { return {}; }
  virtual Traffic TrafficOf(wire::Method /*method*/) const { return Traffic::kOther; }
};

struct ServerOptions {
  std::string socket_path;  // of a Unix socket; empty: `listen`
  UnixAccess unix_access;   // users that may connect to the Unix socket
  Address listen;           // TCP address
  // Connections begin in loop 0; Reply::move_to_loop moves them to another.
  std::size_t loops = 1;
  // Fewer where the process may not have so many descriptors: base/descriptors.h.
  std::uint32_t max_connections = 1024;
  std::string name = "a Unix socket";              // of its connections, in the log
  std::int64_t hello_deadline_ns = 5'000'000'000;  // longest time of a connection to say hello
  std::shared_ptr<Tls> tls;                        // TCP only; null: in the clear
  // Limits of connections that were let in. A call beyond a limit is answered "busy" (rpc/busy.h)
  // without the handler, and the connection's next call is not read before the client may ask
  // again: a client that does not wait fills its socket, and not this process. Null: no limits.
  std::shared_ptr<CallLimits> admission;
  std::string thread_name = "kvcove-rpc";
};

// Copies of the descriptors of a server for a successor's process. The server can continue with its
// own if the successor fails.
struct HandedConnection {
  ConnectionId id = 0;
  Peer peer;
  UniqueFd fd;
  std::vector<std::byte> input;  // bytes that were read and not served yet
};
struct HandedWatch {
  std::uint64_t watch = 0;
  UniqueFd pidfd;
};
struct HandedServer {
  UniqueFd listener;
  std::vector<HandedConnection> connections;
  std::vector<HandedWatch> watches;
  ConnectionId last = 0;  // the successor gives higher ids
};

// A server of frames over one Unix socket or TCP address, with one or several event loops. Open,
// Start, Pause, Resume, HandOver and Stop belong to one thread at a time.
class Server {
 public:
  // Binds and listens; serves from Start on. For a Unix socket see rpc/unix_access.h. `handler`
  // outlives the server. Errors: kUnavailable when the address is in use, kDenied, kInvalid.
  static Result<std::unique_ptr<Server>> Open(const ServerOptions& options, Handler& handler);
  // Returns a server over the descriptors of a predecessor. OnOpen is not called for its
  // connections, which the handler knows from the predecessor's state. Those beyond
  // `max_connections` are closed, with an OnClose once the server has started.
  static Result<std::unique_ptr<Server>> Adopt(const ServerOptions& options, Handler& handler,
                                               HandedServer handed);
  ~Server();

  // Starts the loops. Errors: as StartThread; the server serves nobody then, and can only be
  // destroyed.
  Status Start();
  // Begins no more requests, and stops the loops when all requests are answered, or at the
  // deadline. From then until Resume no handler call is under way, and bytes of clients wait in
  // their sockets.
  void Pause(std::int64_t deadline_ns);
  // Starts the loops again, after a Pause.
  void Resume();
  // Returns copies of the descriptors of a paused server. It leaves out connections whose request
  // is not answered yet, and those behind TLS, whose keys remain with this process.
  HandedServer HandOver();
  // Takes a connection of loop 0 out of the server, within the handler's call about it: closes
  // nothing and calls no OnClose. Empty: it has ended.
  UniqueFd Detach(ConnectionId id);
  // Closes all connections, removes the socket and joins the threads. No handler call is made after
  // it.
  void Stop();

  // Returns the TCP address, with the port that was chosen.
  const Address& address() const;
  // Returns how many connections there are and may be. Thread-safe.
  const ConnectionLimit& connections() const;
  // Returns those of them that the handler has not admitted yet. Thread-safe.
  const Unproven& unproven() const;

  // Returns a pidfd of the connection's process; empty where the kernel gives none. Unix sockets
  // only; on loop 0's thread only.
  UniqueFd PeerProcess(ConnectionId id);
  // Calls OnProcessGone(watch) once the process of `pidfd` has ended. On loop 0's thread only.
  void WatchProcess(UniqueFd pidfd, std::uint64_t watch);
  // Ends the watch and closes its descriptor. On loop 0's thread only.
  void UnwatchProcess(std::uint64_t watch);

 private:
  class Loop;
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
