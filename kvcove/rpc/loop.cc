// SPDX-License-Identifier: Apache-2.0
// Connections begin, move to another loop and end; processes are watched.
#include "kvcove/rpc/loop.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/asio/post.hpp>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/pulse.h"
#include "kvcove/rpc/spin.h"
#include "kvcove/rpc/unix_access.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace kvcove::rpc {
namespace {

constexpr std::chrono::seconds kSocketLook{1};

// Returns how many descriptors one connection may cost. Behind TLS each has a socket pair, too. On
// a Unix socket each may need the descriptor of a watched process and the file of a session's page,
// and an owner has another listener beside this one.
std::uint32_t DescriptorsEach(const ServerOptions& options) {
  if (!options.socket_path.empty()) return 5;
  return options.tls == nullptr ? 1 : 3;
}

}  // namespace

void Server::Loop::Listen(UniqueFd socket) {
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

void Server::Loop::WatchSocket(SocketFile& file) {
  socket_file_ = &file;
  AwaitSocketLook();
}

void Server::Loop::AwaitSocketLook() {
  socket_look_.expires_after(kSocketLook);
  socket_look_.async_wait([this](const boost::system::error_code& stopped) {
    if (stopped) return;
    // During a hand-over the successor's process may have bound the name already.
    if (!draining_) LookAtSocket();
    AwaitSocketLook();
  });
}

void Server::Loop::LookAtSocket() {
  if (socket_file_->Mine()) return;
  const std::string& path = socket_file_->path();
  auto socket = ListenUnix(path, options_.unix_access);
  if (socket) {
    socket_file_->Take();
    listener_->Replace(std::move(*socket));
    LogWarn("the socket '{}' was removed while it was served; it is bound again", path);
  } else if (unbound_.Due(SystemClock::Instance().NowNs()) > 0) {
    LogError(
        "the socket '{}' was removed while it was served, and cannot be bound again: {}; processes "
        "that are connected go on, new ones do not find this one",
        path, socket.error().detail);
  }
}

Status Server::Loop::Start(const std::string& name) {
  if (thread_.joinable()) return {};
  KVCOVE_ASSIGN(thread_, StartThread(name, [this, name] {
                  loop_thread_ = std::this_thread::get_id();
                  const Pulse pulse(loop_, name);
                  RunSpinning(loop_, SystemClock::Instance());
                }));
  return {};
}

void Server::Loop::Stop() {
  if (!thread_.joinable()) return;
  // On the loop's own thread, which alone may touch connections.
  asio::post(loop_, [this] {
    if (listener_) listener_->Close();
    socket_look_.cancel();
    watches_.clear();
    while (!connections_.empty()) Close(connections_.begin()->first);
    work_.reset();
    loop_.stop();
  });
  thread_.join();
}

UniqueFd Server::Loop::PeerProcess(ConnectionId id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return {};
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (getsockopt(at->second->socket.native_handle(), SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) {
    return UniqueFd(fd);
  }
  // Older kernels: by number, which may belong to another process once the peer has ended. If the
  // connection is still open afterwards, the peer had not ended, so the descriptor is the peer's.
  UniqueFd by_number(static_cast<int>(syscall(SYS_pidfd_open, at->second->peer.pid, 0)));
  pollfd poller{.fd = at->second->socket.native_handle(), .events = POLLIN, .revents = 0};
  if (poll(&poller, 1, 0) > 0 && (poller.revents & POLLHUP) != 0) return {};
  return by_number;
}

void Server::Loop::WatchProcess(UniqueFd pidfd, std::uint64_t watch) {
  auto& descriptor = watches_.emplace(watch, asio::posix::stream_descriptor(loop_)).first->second;
  descriptor.assign(pidfd.Release());
  descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                        [this, watch](const boost::system::error_code& error) {
                          if (error) return;
                          watches_.erase(watch);
                          handler_.OnProcessGone(watch);
                        });
}

void Server::Loop::Drop(ConnectionId id) {
  // The handler is asked, too: it may have let the connection in by an answer of another thread,
  // after which the ticket exists until the next frame.
  const auto at = connections_.find(id);
  if (at == connections_.end() || at->second->ticket == nullptr || handler_.Admitted(id)) return;
  Close(id);
}

void Server::Loop::Admit(Arrival arrival) {
  const ConnectionId id = arrival.id;
  Socket socket(loop_, Protocol(arrival.is_unix ? AF_UNIX : AF_INET, 0), arrival.fd.Release());
  ucred peer{};
  if (!options_.socket_path.empty() && !options_.unix_access.Allows(socket.native_handle(), peer)) {
    return;
  }
  auto connection = std::make_unique<Connection>(std::move(socket), std::move(arrival.counted));
  connection->socket.non_blocking(true);
  connection->peer = {.pid = peer.pid, .uid = peer.uid};
  connection->ticket = std::move(arrival.ticket);
  Connection& added = *connections_.emplace(id, std::move(connection)).first->second;
  handler_.OnOpen(id, added.peer);
  if (handler_.Admitted(id)) {
    added.ticket.reset();
    Enter(id, added);
  }
  Advance(id);
}

void Server::Loop::Move(ConnectionId id, std::size_t loop) {
  const auto at = connections_.find(id);
  auto moved = std::make_shared<Moved>(Moved{
      .protocol = at->second->socket.local_endpoint().protocol(),
      .fd = UniqueFd(at->second->socket.release()),
      .counted = std::move(at->second->counted),
      .peer = at->second->peer,
      .input = std::move(at->second->input),
      .filled = at->second->filled,
      .account = std::move(at->second->account),
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
    connection->account = std::move(moved->account);
    other.connections_.emplace(id, std::move(connection));
    other.Advance(id);
  });
}

void Server::Loop::Close(ConnectionId id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  // Erased first: the handler may call back about this connection.
  connections_.erase(at);
  handler_.OnClose(id);
}

}  // namespace kvcove::rpc
