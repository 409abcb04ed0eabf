// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/server.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <unordered_map>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/listener.h"
#include "kvcove/rpc/spin.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvcove::rpc {
namespace {

namespace asio = boost::asio;
using Protocol = asio::generic::stream_protocol;
using Socket = Protocol::socket;

constexpr std::size_t kReadBytes = 64U << 10;
constexpr std::size_t kFirstReadBytes = 4U << 10;  // before the proof
constexpr int kFramesInARow = 64;

// Behind TLS each has a socket pair, too. On a Unix socket each may bring the descriptor of a
// process that is watched, and an owner has another listener beside it.
std::uint32_t DescriptorsEach(const ServerOptions& options) {
  if (!options.socket_path.empty()) return 4;
  return options.tls == nullptr ? 1 : 3;
}

}  // namespace

// One event loop, its thread, and the connections that it serves.
class Server::Loop {
 public:
  Loop(const ServerOptions& options, Handler& handler, std::vector<std::unique_ptr<Loop>>& loops)
      : options_(options), handler_(handler), loops_(loops), work_(loop_.get_executor()) {}

  // Loop 0 accepts.
  void Listen(UniqueFd socket) {
    listener_.emplace(
        loop_, std::move(socket),
        ListenerOptions{.name = options_.name,
                        .max_connections = options_.max_connections,
                        .descriptors_each = DescriptorsEach(options_),
                        .is_unix = !options_.socket_path.empty(),
                        .hello_ns = options_.hello_deadline_ns,
                        .tls = options_.tls},
        [this](Arrival arrival) { Admit(std::move(arrival)); },
        [this](ConnectionId id) { asio::post(loop_, [this, id] { Drop(id); }); });
    listener_->Start();
  }
  const Listener& listener() const { return *listener_; }

  void Start(const std::string& name) {
    thread_ = StartThread(name, [this] {
      loop_thread_ = std::this_thread::get_id();
      RunSpinning(loop_, SystemClock::Instance());
    });
  }

  void Stop() {
    if (!thread_.joinable()) return;
    asio::post(loop_, [this] {
      if (listener_) listener_->Close();
      watches_.clear();
      while (!connections_.empty()) Close(connections_.begin()->first);
      work_.reset();
      loop_.stop();
    });
    thread_.join();
  }

  UniqueFd PeerProcess(ConnectionId id) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) return {};
    int fd = -1;
    socklen_t length = sizeof(fd);
    if (getsockopt(at->second->socket.native_handle(), SOL_SOCKET, SO_PEERPIDFD, &fd, &length) ==
        0) {
      return UniqueFd(fd);
    }
    // Older kernels: by number. It is the right process if the connection is still open afterwards.
    UniqueFd by_number(static_cast<int>(syscall(SYS_pidfd_open, at->second->peer.pid, 0)));
    pollfd poller{.fd = at->second->socket.native_handle(), .events = POLLIN, .revents = 0};
    if (poll(&poller, 1, 0) > 0 && (poller.revents & POLLHUP) != 0) return {};
    return by_number;
  }

  void WatchProcess(UniqueFd pidfd, std::uint64_t watch) {
    auto& descriptor = watches_.emplace(watch, asio::posix::stream_descriptor(loop_)).first->second;
    descriptor.assign(pidfd.Release());
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, watch](const boost::system::error_code& error) {
                            if (error) return;
                            watches_.erase(watch);
                            handler_.OnProcessGone(watch);
                          });
  }
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
  };

  // A connection on its way from one loop to another.
  struct Moved {
    Protocol protocol;
    UniqueFd fd;
    std::shared_ptr<void> counted;
    Peer peer;
    std::vector<std::byte> input;
    std::size_t filled = 0;
  };

  // Ends a connection that must give way or is late, if it has not been let in meanwhile.
  void Drop(ConnectionId id) {
    const auto at = connections_.find(id);
    if (at == connections_.end() || at->second->ticket == nullptr || handler_.Admitted(id)) return;
    Close(id);
  }

  void Admit(Arrival arrival) {
    const ConnectionId id = arrival.id;
    Socket socket(loop_, Protocol(arrival.is_unix ? AF_UNIX : AF_INET, 0), arrival.fd.Release());
    ucred peer{};
    if (!options_.socket_path.empty() &&
        !options_.unix_access.Allows(socket.native_handle(), peer)) {
      return;
    }
    auto connection = std::make_unique<Connection>(std::move(socket), std::move(arrival.counted));
    connection->socket.non_blocking(true);
    connection->peer = {.pid = peer.pid, .uid = peer.uid};
    connection->ticket = std::move(arrival.ticket);
    Connection& added = *connections_.emplace(id, std::move(connection)).first->second;
    handler_.OnOpen(id, added.peer);
    if (handler_.Admitted(id)) added.ticket.reset();
    Advance(id);
  }

  // Hands the connection to another loop, with its buffer as it is: a client may have sent as much
  // as a whole frame behind the call that moves it.
  void Move(ConnectionId id, std::size_t loop) {
    const auto at = connections_.find(id);
    auto moved = std::make_shared<Moved>(Moved{
        .protocol = at->second->socket.local_endpoint().protocol(),
        .fd = UniqueFd(at->second->socket.release()),
        .counted = std::move(at->second->counted),
        .peer = at->second->peer,
        .input = std::move(at->second->input),
        .filled = at->second->filled,
    });
    connections_.erase(at);
    Loop& other = *loops_[loop];
    asio::post(other.loop_, [&other, id, moved] {
      auto connection = std::make_unique<Connection>(
          Socket(other.loop_, moved->protocol, moved->fd.Release()), std::move(moved->counted));
      connection->socket.non_blocking(true);
      connection->peer = moved->peer;
      connection->input = std::move(moved->input);
      connection->filled = moved->filled;
      other.connections_.emplace(id, std::move(connection));
      other.Advance(id);
    });
  }

  void Close(ConnectionId id) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) return;
    connections_.erase(at);
    handler_.OnClose(id);
  }

  // Serves the frames that have arrived, one after the other, and reads on. A loop, because a
  // client may send thousands of them at once; after kFramesInARow other connections have their
  // turn.
  void Advance(ConnectionId id) {
    for (int served = 0; served < kFramesInARow; ++served) {
      const auto at = connections_.find(id);
      if (at == connections_.end()) return;
      Connection& connection = *at->second;
      if (connection.answering || !connection.output.empty()) return;
      if (connection.move_to_loop != 0) return Move(id, connection.move_to_loop);
      if (!ServeFrame(id, connection)) return;
    }
    asio::post(loop_, [this, id] { Advance(id); });
  }

  void Read(ConnectionId id, Connection& connection) {
    if (connection.reading) return;
    connection.reading = true;
    if (!connection.input.empty()) return ReadSome(id, connection);
    // A connection costs no buffer before its first byte.
    connection.socket.async_wait(Socket::wait_read,
                                 [this, id](const boost::system::error_code& error) {
                                   const auto at = connections_.find(id);
                                   if (at == connections_.end()) return;
                                   if (error) return Close(id);
                                   at->second->input.resize(kFirstReadBytes);
                                   ReadSome(id, *at->second);
                                 });
  }

  void ReadSome(ConnectionId id, Connection& connection) {
    if (connection.ticket == nullptr && connection.input.size() < kReadBytes) {
      connection.input.resize(kReadBytes);
    }
    if (connection.filled == connection.input.size()) {
      connection.input.resize(connection.input.size() * 2);
    }
    connection.socket.async_read_some(
        asio::buffer(connection.input.data() + connection.filled,
                     connection.input.size() - connection.filled),
        [this, id](const boost::system::error_code& error, std::size_t count) {
          const auto at = connections_.find(id);
          if (at == connections_.end()) return;
          if (error) return Close(id);
          if (at->second->ticket != nullptr) at->second->ticket->Heard();
          at->second->reading = false;
          at->second->filled += count;
          Advance(id);
        });
  }

  // Hands one whole frame to the handler. False: none has arrived, or the connection ends.
  bool ServeFrame(ConnectionId id, Connection& connection) {
    if (connection.filled < wire::kFrameHeaderBytes) {
      Read(id, connection);
      return false;
    }
    const std::uint32_t limit =
        handler_.Admitted(id) ? wire::kMaxFrameBytes : wire::kMaxFirstFrameBytes;
    const auto header =
        wire::DecodeFrameHeader(std::span<const std::byte, wire::kFrameHeaderBytes>(
                                    connection.input.data(), wire::kFrameHeaderBytes),
                                limit);
    if (!header || (header->method & wire::kReplyBit) != 0) {
      if (!header && header.error().code == Code::kIncompatible) {
        // The other side learns both numbers.
        Respond(id, {.method = 1, .call = 0}, ErrorReply(header.error(), /*close=*/true));
      } else {
        Close(id);
      }
      return false;
    }
    const std::size_t total = wire::kFrameHeaderBytes + header->body_bytes;
    if (connection.filled < total) {
      if (connection.input.size() < total) connection.input.resize(total);
      Read(id, connection);
      return false;
    }
    // The body starts 24 bytes into an aligned buffer, so its fields are aligned.
    const std::span<const std::byte> body(connection.input.data() + wire::kFrameHeaderBytes,
                                          header->body_bytes);
    connection.answering = true;
    serving_ = id;
    const wire::FrameHeader request = *header;
    handler_.OnRequest(
        id, static_cast<wire::Method>(request.method), body,
        wire::DeadlineOf(request, SystemClock::Instance().NowNs()),
        [this, id, request](Reply reply) { Deliver(id, request, std::move(reply)); });
    serving_ = 0;
    const auto at = connections_.find(id);
    if (at == connections_.end()) return false;
    if (at->second->ticket != nullptr && handler_.Admitted(id)) at->second->ticket.reset();
    Consume(*at->second, total);  // the handler has taken what it needs of the body
    if (at->second->answering) ListenForHangUp(id, *at->second);
    return true;
  }

  void Consume(Connection& connection, std::size_t bytes) {
    connection.filled -= bytes;
    if (connection.filled > 0) {
      std::memmove(connection.input.data(), connection.input.data() + bytes, connection.filled);
    }
    if (connection.input.size() > 4 * kReadBytes && connection.filled <= kReadBytes) {
      connection.input.resize(kReadBytes);
      connection.input.shrink_to_fit();
    }
  }

  // Nothing is read while the handler has a request. A client that gave up on an answer would keep
  // its connection until the answer comes, and a long poll may never be answered: so the client's
  // end is listened for. Frames that a client sends ahead are kept, as far as the buffer has room.
  void ListenForHangUp(ConnectionId id, Connection& connection) {
    if (connection.listening || connection.filled == connection.input.size()) return;
    connection.listening = true;
    connection.socket.async_wait(
        Socket::wait_read, [this, id](const boost::system::error_code& error) {
          const auto at = connections_.find(id);
          if (at == connections_.end() || error) return;
          Connection& connection = *at->second;
          connection.listening = false;
          if (!connection.answering) return;  // the next read learns of it
          const ssize_t count =
              recv(connection.socket.native_handle(), connection.input.data() + connection.filled,
                   connection.input.size() - connection.filled, MSG_DONTWAIT);
          if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return Close(id);
          if (count > 0) connection.filled += static_cast<std::size_t>(count);
          ListenForHangUp(id, connection);
        });
  }

  // An answer from the handler's call itself is written at once; its Advance() goes on. Any other,
  // also one to another connection of this loop, comes as an event of its own.
  void Deliver(ConnectionId id, const wire::FrameHeader& request, Reply reply) {
    if (std::this_thread::get_id() == loop_thread_ && serving_ == id) {
      return Respond(id, request, std::move(reply));
    }
    auto shared = std::make_shared<Reply>(std::move(reply));
    asio::post(loop_, [this, id, request, shared] {
      Respond(id, request, std::move(*shared));
      Advance(id);
    });
  }

  void Respond(ConnectionId id, const wire::FrameHeader& request, Reply reply) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) return;
    Connection& connection = *at->second;
    connection.answering = false;
    if (reply.body.size() > wire::kMaxFrameBytes) {
      reply = ErrorReply({Code::kLimit, "the answer is larger than a frame; ask for less"});
    }
    const auto header = wire::EncodeFrameHeader(
        {.method = static_cast<std::uint16_t>(request.method | wire::kReplyBit),
         .body_bytes = static_cast<std::uint32_t>(reply.body.size()),
         .code = reply.code,
         .call = request.call});
    iovec parts[2] = {{.iov_base = const_cast<std::byte*>(header.data()), .iov_len = header.size()},
                      {.iov_base = reply.body.data(), .iov_len = reply.body.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = reply.body.empty() ? 1 : 2;
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
    if (!reply.fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(reply.fds.size() * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(reply.fds.size() * sizeof(int));
      for (std::size_t i = 0; i < reply.fds.size(); ++i) {
        const int fd = reply.fds[i].get();
        std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &fd, sizeof(fd));
      }
    }
    ssize_t sent =
        sendmsg(connection.socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno != EAGAIN || !reply.fds.empty())) return Close(id);
    if (sent < 0) sent = 0;
    const std::size_t total = header.size() + reply.body.size();
    connection.move_to_loop = reply.move_to_loop;
    if (static_cast<std::size_t>(sent) == total) {
      if (reply.close) Close(id);
      return;
    }
    connection.output.assign(reinterpret_cast<const char*>(header.data()), header.size());
    connection.output += reply.body;
    connection.written = static_cast<std::size_t>(sent);
    connection.close_after_write = reply.close;
    Flush(id);
  }

  void Flush(ConnectionId id) {
    Connection& connection = *connections_.at(id);
    connection.socket.async_write_some(
        asio::buffer(connection.output.data() + connection.written,
                     connection.output.size() - connection.written),
        [this, id](const boost::system::error_code& error, std::size_t count) {
          const auto at = connections_.find(id);
          if (at == connections_.end()) return;
          if (error) return Close(id);
          Connection& connection = *at->second;
          connection.written += count;
          if (connection.written < connection.output.size()) return Flush(id);
          connection.output.clear();
          connection.written = 0;
          if (connection.close_after_write) return Close(id);
          Advance(id);
        });
  }

  const ServerOptions& options_;
  Handler& handler_;
  std::vector<std::unique_ptr<Loop>>& loops_;
  asio::io_context loop_{1};
  std::optional<Listener> listener_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::unordered_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::uint64_t, asio::posix::stream_descriptor> watches_;
  ConnectionId serving_ = 0;  // the connection whose request the handler has now; 0: none
  std::thread thread_;
  // Set before the first handler call, so whoever holds a responder may read it.
  std::thread::id loop_thread_;
};

class Server::Impl {
 public:
  Impl(const ServerOptions& options, Handler& handler, UniqueFd listener) : options_(options) {
    for (std::size_t i = 0; i < std::max<std::size_t>(options_.loops, 1); ++i) {
      loops_.push_back(std::make_unique<Loop>(options_, handler, loops_));
    }
    loops_[0]->Listen(std::move(listener));
  }
  void Start() {
    for (const auto& loop : loops_) loop->Start(options_.thread_name);
  }
  // Loop 0 first: afterwards no connection moves to another.
  void Stop() {
    for (const auto& loop : loops_) loop->Stop();
    if (!options_.socket_path.empty()) unlink(options_.socket_path.c_str());
  }
  Loop& first() { return *loops_[0]; }
  const Address& address() const { return options_.listen; }
  const ConnectionLimit& connections() const { return loops_[0]->listener().connections(); }
  const Unproven& unproven() const { return loops_[0]->listener().unproven(); }

 private:
  const ServerOptions options_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { Stop(); }

Result<std::unique_ptr<Server>> Server::Open(const ServerOptions& given, Handler& handler) {
  ServerOptions options = given;
  UniqueFd listener;
  if (options.socket_path.empty()) {
    KVCOVE_ASSIGN(listener, ListenTcp(options.listen));
  } else {
    KVCOVE_ASSIGN(listener, ListenUnix(options.socket_path, options.unix_access));
  }
  return std::unique_ptr<Server>(
      new Server(std::make_unique<Impl>(options, handler, std::move(listener))));
}

void Server::Start() { impl_->Start(); }
void Server::Stop() { impl_->Stop(); }
const Address& Server::address() const { return impl_->address(); }
const ConnectionLimit& Server::connections() const { return impl_->connections(); }
const Unproven& Server::unproven() const { return impl_->unproven(); }
UniqueFd Server::PeerProcess(ConnectionId id) { return impl_->first().PeerProcess(id); }
void Server::WatchProcess(UniqueFd pidfd, std::uint64_t watch) {
  impl_->first().WatchProcess(std::move(pidfd), watch);
}
void Server::UnwatchProcess(std::uint64_t watch) { impl_->first().UnwatchProcess(watch); }

}  // namespace kvcove::rpc
