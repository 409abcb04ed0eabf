// SPDX-License-Identifier: Apache-2.0
// Frames are read and served, answers are written.
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvcove/base/clock.h"
#include "kvcove/rpc/loop.h"

namespace kvcove::rpc {
namespace {

constexpr std::size_t kReadBytes = 64U << 10;
// Most requests fit; the buffer of a connection that sends more at a time grows. A server may have
// thousands of connections that are mostly silent.
constexpr std::size_t kFirstReadBytes = 4U << 10;
constexpr int kFramesInARow = 64;

}  // namespace

void Server::Loop::Advance(ConnectionId id) {
  for (int served = 0; served < kFramesInARow; ++served) {
    const auto at = connections_.find(id);
    if (at == connections_.end()) return;
    Connection& connection = *at->second;
    // An answer that is not written yet holds back the next request, so a client that does not read
    // its answers fills its own socket, and not this process.
    if (connection.answering || !connection.output.empty()) return;
    if (draining_ || connection.hold != nullptr) return;
    if (connection.move_to_loop != 0) return Move(id, connection.move_to_loop);
    if (!ServeFrame(id, connection)) return;
  }
  asio::post(loop_, [this, id] { Advance(id); });
}

void Server::Loop::Read(ConnectionId id, Connection& connection) {
  if (connection.reading) return;
  connection.reading = true;
  if (!connection.input.empty()) return ReadSome(id, connection);
  // Waits without a buffer, so that a connection costs none before its first byte.
  connection.socket.async_wait(Socket::wait_read,
                               [this, id](const boost::system::error_code& error) {
                                 const auto at = connections_.find(id);
                                 if (at == connections_.end()) return;
                                 if (error) return Close(id);
                                 at->second->input.resize(kFirstReadBytes);
                                 ReadSome(id, *at->second);
                               });
}

void Server::Loop::ReadSome(ConnectionId id, Connection& connection) {
  // asio writes into the buffer until this read completes: nothing resizes it while `reading` is
  // set.
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

bool Server::Loop::ServeFrame(ConnectionId id, Connection& connection) {
  if (connection.refused_bytes > 0) return DropRefused(id, connection);
  if (connection.filled < wire::kFrameHeaderBytes) {
    Read(id, connection);
    return false;
  }
  // A connection that is not let in may send short frames only: a stranger must not make this
  // process allocate megabytes.
  const std::uint32_t limit =
      handler_.Admitted(id) ? wire::kMaxFrameBytes : wire::kMaxFirstFrameBytes;
  const auto header = wire::DecodeFrameHeader(std::span<const std::byte, wire::kFrameHeaderBytes>(
                                                  connection.input.data(), wire::kFrameHeaderBytes),
                                              limit);
  if (!header || (header->method & wire::kReplyBit) != 0) {
    if (!header && header.error().code == Code::kIncompatible) {
      // The answer's detail has both versions, for the other side's log.
      Respond(id, {.method = 1, .call = 0}, ErrorReply(header.error(), /*close=*/true));
    } else {
      Close(id);
    }
    return false;
  }
  if (!Charge(connection, *header)) return DropRefused(id, connection);
  const std::size_t total = wire::kFrameHeaderBytes + header->body_bytes;
  if (connection.filled < total) {
    if (connection.input.size() < total) connection.input.resize(total);
    Read(id, connection);
    return false;
  }
  // The header has 24 bytes and the buffer is aligned, so the fields of the body are aligned, too.
  const std::span<const std::byte> body(connection.input.data() + wire::kFrameHeaderBytes,
                                        header->body_bytes);
  // Set before the call, because the handler may answer within it.
  connection.answering = true;
  serving_ = id;
  const wire::FrameHeader request = *header;
  handler_.OnRequest(id, static_cast<wire::Method>(request.method), body,
                     wire::DeadlineOf(request, SystemClock::Instance().NowNs()),
                     [this, id, request](Reply reply) { Deliver(id, request, std::move(reply)); });
  serving_ = 0;
  // Looked up again: the handler may have detached the connection, or its answer may have ended it.
  const auto at = connections_.find(id);
  if (at == connections_.end()) return false;
  if (at->second->ticket != nullptr && handler_.Admitted(id)) {
    at->second->ticket.reset();
    Enter(id, *at->second);
  }
  Consume(*at->second, total);  // `body` was valid within the handler's call only
  if (at->second->answering) ListenForHangUp(id, *at->second);
  return true;
}

void Server::Loop::Consume(Connection& connection, std::size_t bytes) {
  connection.filled -= bytes;
  if (connection.filled > 0) {
    std::memmove(connection.input.data(), connection.input.data() + bytes, connection.filled);
  }
  if (connection.input.size() > 4 * kReadBytes && connection.filled <= kReadBytes) {
    connection.input.resize(kReadBytes);
    connection.input.shrink_to_fit();
  }
}

void Server::Loop::ListenForHangUp(ConnectionId id, Connection& connection) {
  if (connection.listening) return;
  if (connection.filled == connection.input.size()) {
    if (connection.input.size() >= kReadBytes) return;
    connection.input.resize(kReadBytes);
  }
  connection.listening = true;
  connection.socket.async_wait(
      Socket::wait_read, [this, id](const boost::system::error_code& error) {
        const auto at = connections_.find(id);
        if (at == connections_.end() || error) return;
        Connection& connection = *at->second;
        connection.listening = false;
        if (!connection.answering) return;  // answered meanwhile: the next read sees the end
        const ssize_t count =
            recv(connection.socket.native_handle(), connection.input.data() + connection.filled,
                 connection.input.size() - connection.filled, MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return Close(id);
        if (count > 0) connection.filled += static_cast<std::size_t>(count);
        ListenForHangUp(id, connection);
      });
}

void Server::Loop::Deliver(ConnectionId id, const wire::FrameHeader& request, Reply reply) {
  if (std::this_thread::get_id() == loop_thread_ && serving_ == id) {
    return Respond(id, request, std::move(reply));
  }
  auto shared = std::make_shared<Reply>(std::move(reply));
  asio::post(loop_, [this, id, request, shared] {
    Respond(id, request, std::move(*shared));
    Advance(id);
  });
}

void Server::Loop::Respond(ConnectionId id, const wire::FrameHeader& request, Reply reply) {
  const auto at = connections_.find(id);
  if (at == connections_.end()) return;
  Connection& connection = *at->second;
  if (const std::int64_t delay_ns = std::exchange(reply.delay_ns, 0); delay_ns > 0) {
    auto later = std::make_shared<Reply>(std::move(reply));
    return Hold(id, connection, delay_ns, [this, id, request, later] {
      Respond(id, request, std::move(*later));
      Advance(id);
    });
  }
  connection.answering = false;
  Release(connection);
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
  ssize_t sent = sendmsg(connection.socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  // Descriptors are sent with the first byte, so an answer with some cannot wait in `output`.
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
  if (connection.account != nullptr) {
    connection.charged = connection.output.size();
    connection.account->Hold(connection.charged);
  }
  Flush(id);
}

void Server::Loop::Flush(ConnectionId id) {
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
        connection.output.shrink_to_fit();
        connection.written = 0;
        Release(connection);
        if (connection.close_after_write) return Close(id);
        Advance(id);
      });
}

}  // namespace kvcove::rpc
