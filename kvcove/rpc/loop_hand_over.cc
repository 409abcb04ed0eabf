// SPDX-License-Identifier: Apache-2.0
// A loop is stopped, and its sockets are handed over to a successor.
#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/loop.h"

namespace kvcove::rpc {
namespace {

// How often Pause checks that all requests are answered.
constexpr auto kQuietLook = std::chrono::microseconds(200);

}  // namespace

void Server::Loop::Pause(std::int64_t deadline_ns) {
  if (!thread_.joinable()) return;
  const Clock& clock = SystemClock::Instance();
  do {
    std::promise<bool> quiet;
    asio::post(loop_, [&] {
      draining_ = true;
      quiet.set_value(Quiet());
    });
    if (quiet.get_future().get()) break;
    std::this_thread::sleep_for(kQuietLook);
  } while (clock.NowNs() < deadline_ns);
  loop_.stop();
  thread_.join();
  // Runs the handlers of operations that had completed when the loop stopped. Bytes that were read
  // and sockets that were accepted would be lost otherwise: they are not in the kernel any more,
  // and not in the connections yet.
  loop_.restart();
  loop_.poll();
}

void Server::Loop::Resume(const std::string& name) {
  if (thread_.joinable()) return;  // it was not paused
  draining_ = false;
  for (const auto& [id, connection] : connections_) {
    asio::post(loop_, [this, id = id] { Advance(id); });
  }
  loop_.restart();
  StartAgain([&] { return Start(name); });
}

// Call it while the loop is paused, in which nothing is read or written. The descriptors are
// copies, so that this loop can continue with its own if the successor fails.
void Server::Loop::HandOver(HandedServer& handed) {
  const auto copy = [](int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  if (listener_) handed.listener = listener_->Copy();
  for (const auto& [id, connection] : connections_) {
    if (options_.tls != nullptr) break;  // these are ends of socket pairs
    // The successor could not answer: the request is with this process's handler, or its answer is
    // half written.
    if (connection->answering || !connection->output.empty()) continue;
    // The successor would take the rest of a refused request for a frame.
    if (connection->refused_bytes > 0) continue;
    const auto begin = connection->input.begin();
    handed.connections.push_back(
        {.id = id,
         .peer = connection->peer,
         .fd = copy(connection->socket.native_handle()),
         .input = {begin, begin + static_cast<std::ptrdiff_t>(connection->filled)}});
  }
  for (auto& [watch, descriptor] : watches_) {
    handed.watches.push_back({.watch = watch, .pidfd = copy(descriptor.native_handle())});
  }
}

// Call it before the loop runs.
void Server::Loop::Adopt(HandedServer& handed) {
  listener_->BeginAbove(handed.last);
  for (HandedConnection& taken : handed.connections) {
    listener_->BeginAbove(taken.id);
    auto counted = listener_->Count();
    if (counted == nullptr) {  // fewer descriptors than the predecessor had
      // The handler knows the connection from the predecessor's state.
      asio::post(loop_, [this, id = taken.id] { handler_.OnClose(id); });
      continue;
    }
    auto connection = std::make_unique<Connection>(
        Socket(loop_, Protocol(options_.socket_path.empty() ? AF_INET : AF_UNIX, 0),
               taken.fd.Release()),
        std::move(counted));
    connection->socket.non_blocking(true);
    connection->peer = taken.peer;
    if (!handler_.Admitted(taken.id)) {
      connection->ticket = listener_->Enter(taken.id, connection->socket.native_handle());
    }
    connection->filled = taken.input.size();
    connection->input = std::move(taken.input);
    if (connection->ticket == nullptr) Enter(taken.id, *connection);
    connections_.emplace(taken.id, std::move(connection));
    asio::post(loop_, [this, id = taken.id] { Advance(id); });
  }
  for (HandedWatch& taken : handed.watches) WatchProcess(std::move(taken.pidfd), taken.watch);
}

UniqueFd Server::Loop::Detach(ConnectionId id) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return {};
  UniqueFd fd(at->second->socket.release());
  connections_.erase(at);
  return fd;
}

bool Server::Loop::Quiet() const {
  return std::ranges::none_of(connections_, [](const auto& entry) {
    const Connection& connection = *entry.second;
    return (connection.answering && connection.hold == nullptr) || !connection.output.empty();
  });
}

}  // namespace kvcove::rpc
