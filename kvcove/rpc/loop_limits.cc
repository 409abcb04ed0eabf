// SPDX-License-Identifier: Apache-2.0
// Limits: requests are charged to a connection's account; refused ones are dropped and answered.
#include <algorithm>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/busy.h"
#include "kvcove/rpc/loop.h"

namespace kvcove::rpc {

void Server::Loop::Enter(ConnectionId id, Connection& connection) {
  if (options_.admission == nullptr) return;
  connection.account = options_.admission->Enter(handler_.CallerOf(id));
}

bool Server::Loop::Charge(Connection& connection, const wire::FrameHeader& request) {
  if (connection.account == nullptr || connection.charged > 0) return true;
  const std::uint64_t bytes = wire::kFrameHeaderBytes + request.body_bytes;
  connection.verdict =
      connection.account->Begin(handler_.TrafficOf(static_cast<wire::Method>(request.method)),
                                bytes, SystemClock::Instance().NowNs());
  if (connection.verdict.admitted()) {
    connection.charged = bytes;
    return true;
  }
  connection.refused = request;
  connection.refused_bytes = bytes;
  return false;
}

bool Server::Loop::DropRefused(ConnectionId id, Connection& connection) {
  const std::uint64_t dropped =
      std::min<std::uint64_t>(connection.refused_bytes, connection.filled);
  Consume(connection, dropped);
  connection.refused_bytes -= dropped;
  if (connection.refused_bytes > 0) {
    Read(id, connection);
    return false;
  }
  // Holds the connection for the time that the client was told to wait. A client that asks earlier
  // fills its socket, and not this process.
  Hold(id, connection, connection.verdict.retry_after_ms * kMillisecond,
       [this, id] { Advance(id); });
  const wire::FrameHeader request = connection.refused;
  Respond(id, request, ErrorReply(BusyError(connection.verdict), connection.verdict.close));
  return true;
}

void Server::Loop::Hold(ConnectionId id, Connection& connection, std::int64_t duration_ns,
                        std::function<void()> then) {
  connection.hold = std::make_unique<asio::steady_timer>(loop_);
  connection.hold->expires_after(std::chrono::nanoseconds(duration_ns));
  connection.hold->async_wait(
      [this, id, then = std::move(then)](const boost::system::error_code& cancelled) {
        if (cancelled) return;
        const auto at = connections_.find(id);
        if (at == connections_.end()) return;
        at->second->hold.reset();
        then();
      });
}

void Server::Loop::Release(Connection& connection) {
  if (connection.charged == 0) return;
  connection.account->End(std::exchange(connection.charged, 0));
}

}  // namespace kvcove::rpc
