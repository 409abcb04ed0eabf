// SPDX-License-Identifier: Apache-2.0
// A server on a Unix socket: one event loop thread, frames in, frames out. It knows no service. A
// garbage frame closes its connection and nothing else. Only processes of this user (or root) are
// let in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcove/base/posix.h"
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
};
inline Reply ErrorReply(const Error& error, bool close = false) {
  return {.code = error.code, .body = error.detail, .fds = {}, .close = close};
}

// Answers one request, at most once, from any thread.
using Responder = std::function<void(Reply)>;

// All calls come from the loop's thread.
class Handler {
 public:
  virtual ~Handler() = default;
  virtual void OnOpen(ConnectionId id, const Peer& peer) = 0;
  // `respond` must be called once. Requests of one connection come one after the other: the next is
  // read when this one is answered.
  virtual void OnRequest(ConnectionId id, wire::Method method, std::span<const std::byte> body,
                         Responder respond) = 0;
  virtual void OnClose(ConnectionId id) = 0;
  // A process given to WatchProcess is gone.
  virtual void OnProcessGone(std::uint64_t watch) = 0;
  // True once the connection may send whole frames, not only short ones.
  virtual bool Admitted(ConnectionId id) const = 0;
};

struct ServerOptions {
  std::string socket_path;
  std::uint32_t max_connections = 1024;
  std::int64_t hello_deadline_ns = 5'000'000'000;  // for a connection to say hello
  std::string thread_name = "kvcove-rpc";
};

class UnixServer {
 public:
  // Binds and listens; the directory is created with mode 0700 if it does not exist, and refused if
  // others may write to it. A socket that nobody serves any more is replaced. Errors: kUnavailable
  // when it is in use, kDenied, kInvalid.
  static Result<std::unique_ptr<UnixServer>> Open(const ServerOptions& options, Handler& handler);
  ~UnixServer();

  void Start();
  // Closes everything, removes the socket and joins the thread. No handler call after it.
  void Stop();

  // The descriptor that proves the death of the connection's process. Empty where the kernel has
  // none.
  UniqueFd PeerProcess(ConnectionId id);
  // OnProcessGone(watch) when `pidfd` says so. From the loop's thread only.
  void WatchProcess(UniqueFd pidfd, std::uint64_t watch);

 private:
  class Impl;
  explicit UnixServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvcove::rpc
