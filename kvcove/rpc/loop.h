// SPDX-License-Identifier: Apache-2.0
// One event loop of a server. Only the server's own files include it: loop.cc (connections begin,
// move and end), loop_frames.cc (frames and answers), loop_limits.cc, loop_hand_over.cc.
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

// One event loop, its thread, and the connections that it serves. The server calls Start, Stop and
// the hand-over; Deliver is called on any thread; everything else runs on the loop's thread,
// without a lock. A handler may end any connection, so code that has called one looks its
// connection up again by id.
class Server::Loop {
 public:
  using Protocol = asio::generic::stream_protocol;
  using Socket = Protocol::socket;

  Loop(const ServerOptions& options, Handler& handler, std::vector<std::unique_ptr<Loop>>& loops)
      : options_(options), handler_(handler), loops_(loops), work_(loop_.get_executor()) {}

  // Makes this the loop that accepts: loop 0.
  void Listen(UniqueFd socket);
  const Listener& listener() const { return *listener_; }
  // Watches the socket's name, and binds it again when it is removed. For loop 0, before it runs.
  // `file` outlives the loop.
  void WatchSocket(SocketFile& file);

  // Starts the thread, unless it runs. Errors: as StartThread.
  Status Start(const std::string& name);
  // Closes all connections and joins the thread.
  void Stop();

  // ---- hand-over to a successor (loop_hand_over.cc); see Server
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
    std::shared_ptr<Unproven::Ticket> ticket;  // null once it is let in
    Peer peer;
    std::vector<std::byte> input;  // empty until the first byte arrives
    std::size_t filled = 0;
    bool reading = false;    // a read into `input` is under way
    bool answering = false;  // the handler has a request and has not answered it
    bool listening = false;  // a wait for a hang-up is under way (ListenForHangUp)
    std::string output;      // an answer that the kernel did not take at once
    std::size_t written = 0;
    bool close_after_write = false;
    std::size_t move_to_loop = 0;
    // ---- limits (loop_limits.cc); null until it is let in, and where there are none
    std::unique_ptr<CallLimits::Account> account;
    std::uint64_t charged = 0;        // bytes of the request, then of the answer in `output`
    std::uint64_t refused_bytes = 0;  // bytes of a refused request that are still to be dropped
    wire::FrameHeader refused;
    CallLimits::Verdict verdict;
    std::unique_ptr<asio::steady_timer> hold;  // timer of Hold, while it runs
  };

  // A connection that moves from one loop to another.
  struct Moved {
    Protocol protocol;
    UniqueFd fd;
    std::shared_ptr<void> counted;
    Peer peer;
    std::vector<std::byte> input;
    std::size_t filled = 0;
    std::unique_ptr<CallLimits::Account> account;
  };

  // Returns whether no request is with the handler and all answers are written. Delayed answers do
  // not count: a hand-over does not wait for them.
  bool Quiet() const;

  void AwaitSocketLook();
  void LookAtSocket();

  // Ends a connection that must give way or is late, unless it was let in meanwhile.
  void Drop(ConnectionId id);
  void Admit(Arrival arrival);

  // Hands the connection to another loop, with its buffer: a client may have sent further frames
  // behind the call that moves it.
  void Move(ConnectionId id, std::size_t loop);
  // Ends a connection, and notifies the handler. Nothing, if it has ended.
  void Close(ConnectionId id);

  // Serves the frames that have arrived, one after the other, then reads on. A loop and no
  // recursion, because a client may send thousands at once; after kFramesInARow other connections
  // have their turn.
  void Advance(ConnectionId id);
  void Read(ConnectionId id, Connection& connection);
  void ReadSome(ConnectionId id, Connection& connection);

  // Hands one whole frame to the handler. False: none has arrived yet, or the connection ends.
  bool ServeFrame(ConnectionId id, Connection& connection);
  void Consume(Connection& connection, std::size_t bytes);

  // ---- limits
  // Counts the calls of a connection from now on, because it was let in.
  void Enter(ConnectionId id, Connection& connection);
  // Charges a request, once, before memory is allocated for its body. False: it is refused; its
  // bytes are dropped as they arrive, and then it is answered.
  bool Charge(Connection& connection, const wire::FrameHeader& request);
  // Drops bytes of a refused request. True: all are dropped, and the request is answered.
  bool DropRefused(ConnectionId id, Connection& connection);
  // Serves no further frame of the connection for so long, then calls `then`; not if the connection
  // ends before.
  void Hold(ConnectionId id, Connection& connection, std::int64_t duration_ns,
            std::function<void()> then);
  // Gives back the bytes that are charged for the connection.
  static void Release(Connection& connection);

  // Waits for the client's end while the handler has a request, in which no frame is read. A client
  // that has given up would otherwise keep its connection until the answer, and a long poll may
  // never be answered. Keeps frames that the client sends ahead, as far as the buffer has room.
  void ListenForHangUp(ConnectionId id, Connection& connection);

  // Takes the handler's answer. One that is given within the handler's call is written at once, and
  // the Advance() that made the call continues. Any other, also one to another connection of this
  // loop, becomes an event of its own: it would change a connection under the code that uses it.
  void Deliver(ConnectionId id, const wire::FrameHeader& request, Reply reply);
  // Writes the answer, as far as the kernel takes it; Flush writes the rest later.
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
  bool draining_ = false;     // no request is begun (Pause)
  ConnectionId serving_ = 0;  // the connection whose request the handler has now; 0: none
  std::thread thread_;
  // Set before the first handler call, so that any holder of a responder may read it.
  std::thread::id loop_thread_;
};

}  // namespace kvcove::rpc
