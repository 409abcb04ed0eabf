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
  std::vector<UniqueFd> fds;  // go with it
  bool close = false;         // end the connection after it
  std::int64_t delay_ns = 0;  // after which it is sent
  // This connection is served by that loop from now on; not for answers from another thread.
  std::size_t move_to_loop = 0;
};
inline Reply ErrorReply(const Error& error, bool close = false) {
  return {.code = error.code, .body = error.detail, .fds = {}, .close = close};
}

// Answers one request, at most once, from any thread.
using Responder = std::function<void(Reply)>;

// Calls about one connection come one after the other, from its loop's thread.
class Handler {
 public:
  virtual ~Handler() = default;
  virtual void OnOpen(ConnectionId id, const Peer& peer) = 0;
  // `deadline_ns`: when the caller gives up; 0 where its frame does not say. `respond` must be
  // called once. Requests of one connection come one after the other: the next is
  // read when this one is answered.
  virtual void OnRequest(ConnectionId id, wire::Method method, std::span<const std::byte> body,
                         std::int64_t deadline_ns, Responder respond) = 0;
  virtual void OnClose(ConnectionId id) = 0;
  // A process given to WatchProcess is gone.
  virtual void OnProcessGone(std::uint64_t watch) = 0;
  // True once the connection may send whole frames, not only short ones. Until then it is one of
  // the few that have proven nothing (rpc/unproven.h).
  virtual bool Admitted(ConnectionId id) const = 0;
  // For ServerOptions::admission: whose an admitted connection is, asked once, and what a call
  // draws from.
  virtual LimitedCaller CallerOf(ConnectionId /*id*/) const { return {}; }
  virtual Traffic TrafficOf(wire::Method /*method*/) const { return Traffic::kOther; }
};

struct ServerOptions {
  std::string socket_path;  // or:
  UnixAccess unix_access;   // who may connect there
  Address listen;           // TCP
  // Connections begin in loop 0; Reply::move_to_loop takes them to another.
  std::size_t loops = 1;
  // Fewer where the process may not have so many descriptors: base/descriptors.h.
  std::uint32_t max_connections = 1024;
  std::string name = "a Unix socket";              // of these connections, in the log
  std::int64_t hello_deadline_ns = 5'000'000'000;  // for a connection to say hello
  std::shared_ptr<Tls> tls;                        // TCP only; null: in the clear
  // Limits of connections that were let in. A call beyond one is answered "busy" (rpc/busy.h)
  // without the handler, and the connection's next call is not read before it may be asked again:
  // who does not wait fills a socket, not this process. Null: no limits.
  std::shared_ptr<CallLimits> admission;
  std::string thread_name = "kvcove-rpc";
};

// What a server has open, on its way to a successor process: descriptors of their own, so that the
// server may go on with its own if the successor does not come.
struct HandedConnection {
  ConnectionId id = 0;
  Peer peer;
  UniqueFd fd;
  std::vector<std::byte> input;  // was read and not answered
};
struct HandedWatch {
  std::uint64_t watch = 0;
  UniqueFd pidfd;
};
struct HandedServer {
  UniqueFd listener;
  std::vector<HandedConnection> connections;
  std::vector<HandedWatch> watches;
  ConnectionId last = 0;  // the successor gives higher ones
};

class Server {
 public:
  // Binds and listens; for a Unix socket see rpc/unix_access.h. Errors: kUnavailable when the
  // address is in use, kDenied, kInvalid.
  static Result<std::unique_ptr<Server>> Open(const ServerOptions& options, Handler& handler);
  // The same over what a predecessor had open. Its requests come as on any connection; the handler
  // hears no OnOpen for them.
  static Result<std::unique_ptr<Server>> Adopt(const ServerOptions& options, Handler& handler,
                                               HandedServer handed);
  ~Server();

  // Errors: as StartThread; then it serves nobody, and can only be destroyed.
  Status Start();
  // Serves no more requests, and stops the loops when all that were begun are answered, or at the
  // deadline. No handler call is under way then, until Resume. What clients send waits.
  void Pause(std::int64_t deadline_ns);
  void Resume();
  // Of a paused server. A connection whose request is not answered yet is not in it, nor one behind
  // TLS: its keys stay with this process.
  HandedServer HandOver();
  // Takes a connection out of the server, from the handler's call about it: it closes nothing, and
  // calls no OnClose. Loop 0 only. Blocking from here on.
  UniqueFd Detach(ConnectionId id);
  // Closes everything, removes the socket and joins the thread. No handler call after it.
  void Stop();

  // With the port that was chosen.
  const Address& address() const;
  // How many connections there are and may be.
  const ConnectionLimit& connections() const;
  // Those of them that the handler has not admitted yet.
  const Unproven& unproven() const;

  // The descriptor that proves the death of the connection's process. Empty where the kernel has
  // none.
  // Unix sockets only.
  UniqueFd PeerProcess(ConnectionId id);
  // OnProcessGone(watch) when `pidfd` says so. From loop 0's thread only.
  void WatchProcess(UniqueFd pidfd, std::uint64_t watch);
  // Ends that, and closes its descriptor. From loop 0's thread only.
  void UnwatchProcess(std::uint64_t watch);

 private:
  class Loop;
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
