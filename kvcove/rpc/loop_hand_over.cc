// SPDX-License-Identifier: Apache-2.0
// A loop stands still, and its sockets go to a successor.
#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <future>

#include "kvcove/base/clock.h"
#include "kvcove/base/posix.h"
#include "kvcove/rpc/loop.h"

namespace kvcove::rpc {
namespace {

// How often Pause looks whether all is answered.
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
  // What the loop has read or accepted, but not handled when it stopped, would be nowhere: not in
  // the sockets any more, and not yet in the connections.
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

// The loop stands still: nothing is read or written meanwhile.
void Server::Loop::HandOver(HandedServer& handed) {
  const auto copy = [](int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  if (listener_) handed.listener = listener_->Copy();
  for (const auto& [id, connection] : connections_) {
    if (options_.tls != nullptr) break;  // these are ends of socket pairs
    if (connection->answering || !connection->output.empty()) continue;
    // The rest of a refused request cannot be told from a frame.
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

// Before the loop runs.
void Server::Loop::Adopt(HandedServer& handed) {
  listener_->BeginAbove(handed.last);
  for (HandedConnection& taken : handed.connections) {
    listener_->BeginAbove(taken.id);
    auto counted = listener_->Count();
    if (counted == nullptr) continue;  // fewer descriptors than the predecessor had
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
