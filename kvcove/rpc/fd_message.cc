// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/fd_message.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "kvcove/base/clock.h"

namespace kvcove::rpc {
namespace {

// Looks for an answer after the deadline, too: it, or the other process's end, may have come in
// time to a process that had no processor. Nothing is sent after the deadline.
Status Wait(int socket, short events, std::int64_t deadline_ns) {
  while (true) {
    const std::int64_t left =
        std::max<std::int64_t>(0, deadline_ns - SystemClock::Instance().NowNs());
    pollfd poller{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&poller, 1, static_cast<int>((left + kMillisecond - 1) / kMillisecond));
    if (left == 0 && (ready == 0 || events != POLLIN)) {
      return Fail(Code::kTimeout, "the other process did not answer in time");
    }
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return FailErrno(Code::kInternal, "poll");
  }
}

Error Ended() { return {Code::kUnavailable, std::string(kOtherEnded)}; }

// Receives some bytes, and the descriptors that came with them. 0: nothing is there yet.
Result<std::size_t> ReceiveSome(int socket, char* data, std::size_t size,
                                std::vector<UniqueFd>* fds) {
  iovec part{.iov_base = data, .iov_len = size};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0U;
  if (count <= 0) return std::unexpected(Ended());
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t number = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < number; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + (i * sizeof(int)), sizeof(fd));
      fds->emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Fail(Code::kLimit,
                "not all descriptors came: raise the limit of open files (ulimit -n)");
  }
  return static_cast<std::size_t>(count);
}

Status ReceiveAll(int socket, char* data, std::size_t size, std::int64_t deadline_ns,
                  std::vector<UniqueFd>* fds) {
  for (std::size_t got = 0; got < size;) {
    KVCOVE_TRY(Wait(socket, POLLIN, deadline_ns));
    KVCOVE_ASSIGN(const std::size_t count, ReceiveSome(socket, data + got, size - got, fds));
    got += count;
  }
  return {};
}

}  // namespace

Status SendMessage(int socket, std::string_view body, std::span<const int> fds,
                   std::int64_t deadline_ns) {
  if (body.size() > kMaxMessageBytes || fds.size() > kMaxMessageFds) {
    return Fail(Code::kInternal, "a message of an upgrade is too long");
  }
  const auto length = static_cast<std::uint32_t>(body.size());
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += body;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxMessageFds * sizeof(int))] = {};
  for (std::size_t sent = 0; sent < bytes.size();) {
    KVCOVE_TRY(Wait(socket, POLLOUT, deadline_ns));
    iovec part{.iov_base = bytes.data() + sent, .iov_len = bytes.size() - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    // With the first bytes only: a part of the message that is sent later must not send them again.
    if (sent == 0 && !fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
    }
    const ssize_t count = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count < 0 && errno == EPIPE) return std::unexpected(Ended());
    if (count < 0) return FailErrno(Code::kUnavailable, "sending to the other process");
    sent += static_cast<std::size_t>(count);
  }
  return {};
}

Result<FdMessage> ReceiveMessage(int socket, std::int64_t deadline_ns) {
  FdMessage message;
  std::uint32_t length = 0;
  KVCOVE_TRY(ReceiveAll(socket, reinterpret_cast<char*>(&length), sizeof(length), deadline_ns,
                        &message.fds));
  if (length > kMaxMessageBytes) return Fail(Code::kCorrupt, "a message of an upgrade is too long");
  message.body.resize(length);
  KVCOVE_TRY(ReceiveAll(socket, message.body.data(), length, deadline_ns, &message.fds));
  return message;
}

}  // namespace kvcove::rpc
