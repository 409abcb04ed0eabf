// SPDX-License-Identifier: Apache-2.0
// One event loop of a server, from inside. Only the server's own files include it.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kvcove/base/log.h"
#include "kvcove/rpc/listener.h"
#include "kvcove/rpc/server.h"
#include "kvcove/rpc/socket_file.h"

namespace kvcove::rpc {

namespace asio = boost::asio;

// One event loop, its thread, and the connections that it serves.
// Start and Stop belong to the server, and Deliver comes from any thread; all else runs on the
// loop's own.
class Server::Loop {
 public:
  using Protocol = asio::generic::stream_protocol;
  using Socket = Protocol::socket;

  Loop(const ServerOptions& options, Handler& handler, std::vector<std::unique_ptr<Loop>>& loops)
      : options_(options), handler_(handler), loops_(loops), work_(loop_.get_executor()) {}

  // Loop 0 accepts.
  void Listen(UniqueFd socket);
  const Listener& listener() const { return *listener_; }
  // Of loop 0, before it runs: when the socket's name is removed, it is bound again. `file`
  // outlives the loop.
  void WatchSocket(SocketFile& file);

  // Errors: as StartThread.
  Status Start(const std::string& name);
  void Stop();

  // ---- hand-over to a successor (loop_hand_over.cc); as Server has them
  void Pause(std::int64_t deadline_ns);
  void Resume(const std::string& name);
  void HandOver(HandedServer& handed);
  void Adopt(HandedServer& handed);
  UniqueFd Detach(ConnectionId id);

  UniqueFd PeerProcess(ConnectionId id);
  void WatchProcess(UniqueFd pidfd, std::uint64_t watch);
  void UnwatchProcess(std::uint64_t watch) { watches_.erase(watch); }

 private:
  struct Connection {
    Connection(Socket&& accepted, std::shared_ptr<void> taken)
        : socket(std::move(accepted)), counted(std::move(taken)) {}
    Socket socket;
    std::shared_ptr<void> counted;             // of the ConnectionLimit
    std::shared_ptr<Unproven::Ticket> ticket;  // until it is let in
    Peer peer;
    std::vector<std::byte> input;  // empty until the first byte comes
    std::size_t filled = 0;
    bool reading = false;    // a read into `input` is under way
    bool answering = false;  // the handler has a request and has not answered it
    bool listening = false;  // for a hang-up, while the handler has a request
    std::string output;      // what the kernel did not take at once
    std::size_t written = 0;
    bool close_after_write = false;
    std::size_t move_to_loop = 0;
    // ---- limits (loop_limits.cc); null until it is let in, and where there are none
    std::unique_ptr<CallLimits::Account> account;
    std::uint64_t charged = 0;        // bytes of the request, then of what is left of its answer
    std::uint64_t refused_bytes = 0;  // of a refused request: still to be read and thrown away
    wire::FrameHeader refused;
    CallLimits::Verdict verdict;
    std::unique_ptr<asio::steady_timer> hold;  // Hold's, while it runs
  };

  // A connection on its way from one loop to another.
  struct Moved {
    Protocol protocol;
    UniqueFd fd;
    std::shared_ptr<void> counted;
    Peer peer;
    std::vector<std::byte> input;
    std::size_t filled = 0;
    std::unique_ptr<CallLimits::Account> account;
  };

  // No request is with the handler, and every answer is on its way, but those that are put off: a
  // hand-over does not wait for them.
  bool Quiet() const;

  void AwaitSocketLook();
  void LookAtSocket();

  // Ends a connection that must give way or is late, if it has not been let in meanwhile.
  void Drop(ConnectionId id);
  void Admit(Arrival arrival);

  // Hands the connection to another loop, with its buffer as it is: a client may have sent as much
  // as a whole frame behind the call that moves it.
  void Move(ConnectionId id, std::size_t loop);
  void Close(ConnectionId id);

  // Serves the frames that have arrived, one after the other, and reads on. A loop, because a
  // client may send thousands of them at once; after kFramesInARow other connections have their
  // turn.
  void Advance(ConnectionId id);
  void Read(ConnectionId id, Connection& connection);
  void ReadSome(ConnectionId id, Connection& connection);

  // Hands one whole frame to the handler. False: none has arrived, or the connection ends.
  bool ServeFrame(ConnectionId id, Connection& connection);
  void Consume(Connection& connection, std::size_t bytes);

  // ---- limits
  // The connection has been let in: what it does counts from now on.
  void Enter(ConnectionId id, Connection& connection);
  // Whether this request may come; asked once, before memory is taken for its body. False: it is
  // thrown away as it arrives, and then answered.
  bool Charge(Connection& connection, const wire::FrameHeader& request);
  // Goes on with that. True: it is answered.
  bool DropRefused(ConnectionId id, Connection& connection);
  // Serves nothing more of the connection until it calls `then`, so much later. Never, if the
  // connection ends before.
  void Hold(ConnectionId id, Connection& connection, std::int64_t duration_ns,
            std::function<void()> then);
  static void Release(Connection& connection);

  // Nothing is read while the handler has a request. A client that gave up on an answer would keep
  // its connection until the answer comes, and a long poll may never be answered: so the client's
  // end is listened for. Frames that a client sends ahead are kept, as far as the buffer has room.
  void ListenForHangUp(ConnectionId id, Connection& connection);

  // An answer from the handler's call itself is written at once; its Advance() goes on. Any other,
  // also one to another connection of this loop, comes as an event of its own.
  void Deliver(ConnectionId id, const wire::FrameHeader& request, Reply reply);
  void Respond(ConnectionId id, const wire::FrameHeader& request, Reply reply);
  void Flush(ConnectionId id);

  const ServerOptions& options_;
  Handler& handler_;
  std::vector<std::unique_ptr<Loop>>& loops_;
  asio::io_context loop_{1};
  std::optional<Listener> listener_;
  SocketFile* socket_file_ = nullptr;
  asio::steady_timer socket_look_{loop_};
  LogLimit unbound_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unordered_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::uint64_t, asio::posix::stream_descriptor> watches_;
  bool draining_ = false;     // no request is begun
  ConnectionId serving_ = 0;  // the connection whose request the handler has now; 0: none
  std::thread thread_;
  // Set before the first handler call, so that any holder of a responder may read it.
  std::thread::id loop_thread_;
};

}  // namespace kvcove::rpc
