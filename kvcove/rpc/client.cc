// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/client.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/mutex.h"
#include "kvcove/rpc/gate.h"
#include "kvcove/rpc/spin.h"
#include "kvcove/rpc/unix_access.h"

namespace kvcove::rpc {
namespace {

constexpr int kMaxFds = 8;
constexpr int kGreetings = 3;

bool IsClosed(int error) { return error == EPIPE || error == ECONNRESET; }

std::int64_t Left(std::int64_t deadline_ns) { return LeftNs(deadline_ns, SystemClock::Instance()); }

// Looks for an interrupt after a system call that ended with `error` or by its timeout.
void LookAfter(int error) {
  if (error == EINTR) return Interrupt::LookNow();
  Interrupt::LookIfDue();
}

}  // namespace

Result<Client> Client::Connect(const std::string& path, std::int64_t deadline_ns) {
  ExpectNoLock("a connection to a server");
  KVCOVE_ASSIGN(UniqueFd fd, ConnectUnix(path, deadline_ns));
  return Client(std::move(fd));
}

Result<Client> Client::Connect(const Address& address, const Access& access,
                               std::int64_t deadline_ns) {
  ExpectNoLock("a connection to a server");
  std::vector<Credential> credentials;
  if (access.credentials) {
    KVCOVE_ASSIGN(credentials, access.credentials());
  }
  std::size_t shown = 0;
  // Tried again: a server with too many new connections closes the oldest of them (rpc/unproven.h),
  // which may be this one if the process was slow to say hello.
  for (int tries = 1;; ++tries) {
    KVCOVE_ASSIGN(UniqueFd fd, ConnectTcp(address, deadline_ns));
    if (access.tls != nullptr) {
      auto tunnel = access.tls->Connect(std::move(fd), address.host, deadline_ns);
      if (!tunnel && tunnel.error().code == Code::kUnavailable && tries < kGreetings) continue;
      if (!tunnel) return std::unexpected(tunnel.error());
      fd = std::move(*tunnel);
    }
    // Receives block, bounded by SO_RCVTIMEO.
    fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
    Client client(std::move(fd));
    client.tls_ = access.tls != nullptr;
    const Status greeted =
        client.Greet(shown < credentials.size() ? &credentials[shown] : nullptr, deadline_ns);
    if (greeted) return client;
    if (greeted.error().code == Code::kUnavailable && tries < kGreetings) continue;
    // While a token is exchanged, a server may know one of the two only.
    if (greeted.error().code == Code::kDenied && ++shown < credentials.size()) continue;
    return Fail(greeted.error().code,
                fmt::format("{}: {}", address.ToString(), greeted.error().detail));
  }
}

Status Client::Greet(const Credential* credential, std::int64_t deadline_ns) {
  if (credential == nullptr) {
    KVCOVE_TRY(Call(wire::Method::kHello, {}, deadline_ns));
    return {};
  }
  const wire::AuthHello hello = Greeting(*credential);
  const std::string first = wire::Encode(hello);
  KVCOVE_ASSIGN(const std::string reply,
                Call(wire::Method::kHello, std::as_bytes(std::span(first)), deadline_ns));
  KVCOVE_ASSIGN(const wire::AuthChallenge challenge,
                wire::DecodeAuthChallenge(std::as_bytes(std::span(reply))));
  KVCOVE_ASSIGN(const wire::AuthBytes proof, Prove(*credential, hello, challenge));
  const std::string second = wire::EncodeProof(proof);
  KVCOVE_TRY(Call(wire::Method::kProve, std::as_bytes(std::span(second)), deadline_ns));
  return {};
}

Status Client::Wait(short events, std::int64_t deadline_ns) {
  while (true) {
    const std::int64_t left =
        Interrupt::Ended() ? -1 : std::max<std::int64_t>(Left(deadline_ns), 0);
    if (left < 0) return Fail(Code::kTimeout, "the call was interrupted");
    pollfd poller{.fd = fd_.get(), .events = events, .revents = 0};
    const std::int64_t turn = Interrupt::TurnNs(left);
    const timespec limit{.tv_sec = turn / kSecond, .tv_nsec = turn % kSecond};
    const int ready = ppoll(&poller, 1, &limit, nullptr);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return FailErrno(Code::kUnavailable, "poll");
    // Only after the poll: a look for interrupts may last beyond the deadline, and an answer that
    // came meanwhile came in time.
    if (left == 0) return Fail(Code::kTimeout, "the pool did not answer in time");
    LookAfter(ready < 0 ? EINTR : 0);
  }
}

// A server without room closes new connections without a word, so the text names the server's log.
Error Client::Closed() const {
  if (answered_) return {Code::kUnavailable, "the pool closed the connection"};
  // With TLS 1.3 a server judges the client's certificate after the client's handshake has ended.
  return {Code::kUnavailable,
          fmt::format("the pool closed the connection before it answered; its log says why: it may "
                      "{}have as many connections as its limit of open files allows (ulimit -n){}",
                      tls_ ? "have refused this process's TLS certificate, or " : "",
                      tls_ ? "" : ", or expect TLS")};
}

Status Client::SetReceiveTimeout(std::int64_t deadline_ns) {
  const std::int64_t left = Left(deadline_ns);
  if (left <= 0) return Fail(Code::kTimeout, "the deadline had passed before the call");
  (void)Interrupt::TurnNs(left);  // starts the turn with the call, not after its first wait
  // The timeout must not exceed the time that is left, nor the time between two looks for signals.
  // It may be shorter: poll waits for the rest. So the value of the last call mostly still fits,
  // and most calls need no system call to set it.
  const std::int64_t left_us =
      std::clamp<std::int64_t>(left / kMicrosecond, 1, Interrupt::kLookNs / kMicrosecond);
  if (timeout_us_ > 0 && timeout_us_ <= left_us && left_us < timeout_us_ + 20000) return {};
  const std::int64_t rounded_us = left_us > 20000 ? left_us / 10000 * 10000 : left_us;
  const timeval limit{.tv_sec = rounded_us / 1000000, .tv_usec = rounded_us % 1000000};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  timeout_us_ = rounded_us;
  return {};
}

Status Client::SendAll(std::span<const std::byte> header, std::span<const std::byte> body,
                       std::int64_t deadline_ns) {
  std::size_t sent = 0;
  const std::size_t total = header.size() + body.size();
  while (sent < total) {
    iovec parts[2];
    int count = 0;
    const auto add = [&](std::span<const std::byte> part) {
      if (!part.empty()) {
        parts[count++] = {.iov_base = const_cast<std::byte*>(part.data()), .iov_len = part.size()};
      }
    };
    if (sent < header.size()) add(header.subspan(sent));
    add(body.subspan(sent > header.size() ? sent - header.size() : 0));
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<std::size_t>(count);
    // Does not block in the kernel: Wait() has the deadline and looks for interrupts.
    const ssize_t written = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written >= 0) {
      sent += static_cast<std::size_t>(written);
      continue;
    }
    if (errno == EINTR) continue;
    if (IsClosed(errno)) return std::unexpected(Closed());
    if (errno != EAGAIN) return FailErrno(Code::kUnavailable, "sending to the pool");
    KVCOVE_TRY(Wait(POLLOUT, deadline_ns));
  }
  return {};
}

Status Client::ReceiveAll(std::byte* data, std::size_t size, std::int64_t deadline_ns,
                          std::vector<UniqueFd>* fds) {
  std::size_t received = 0;
  Spin spin(SystemClock::Instance(), std::exchange(peer_needs_ns_, 0));
  bool spinning = true;
  while (received < size) {
    ssize_t count = 0;
    if (fds == nullptr) {
      count = recv(fd_.get(), data + received, size - received, spinning ? MSG_DONTWAIT : 0);
      if (count < 0 && errno == EAGAIN && spinning) {
        spinning = spin.Again();
        continue;
      }
    } else {
      iovec part{.iov_base = data + received, .iov_len = size - received};
      alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      count = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
      for (cmsghdr* at = CMSG_FIRSTHDR(&message); count >= 0 && at != nullptr;
           at = CMSG_NXTHDR(&message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t number = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < number; ++i) {
          int fd = -1;
          std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
          fds->emplace_back(fd);
        }
      }
      if (count >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) {
        return Fail(Code::kLimit,
                    "not all descriptors came: raise the limit of open files (ulimit -n)");
      }
    }
    if (count > 0) {
      received += static_cast<std::size_t>(count);
      continue;
    }
    if (count == 0 || IsClosed(errno)) return std::unexpected(Closed());
    if (errno != EAGAIN && errno != EINTR) {
      return FailErrno(Code::kUnavailable, "receiving from the pool");
    }
    LookAfter(errno);
    KVCOVE_TRY(Wait(POLLIN, deadline_ns));
  }
  return {};
}

Result<std::string> Client::Call(wire::Method method, std::span<const std::byte> body,
                                 std::int64_t deadline_ns, std::vector<UniqueFd>* fds) {
  ExpectNoLock("a call of a server");
  if (!usable()) return Fail(Code::kUnavailable, "the connection to the pool is closed");
  if (body.size() > wire::kMaxFrameBytes) {
    return Fail(Code::kInvalid, fmt::format("a request of {} bytes; at most {} are allowed",
                                            body.size(), wire::kMaxFrameBytes));
  }
  // The stream may be in the middle of a frame, or this call's reply may still come: the next call
  // would read it.
  const auto end = [&](Error error) {
    fd_.Reset();
    return std::unexpected(std::move(error));
  };
  if (auto ready = SetReceiveTimeout(deadline_ns); !ready) return std::unexpected(ready.error());
  const std::uint64_t call = next_call_++;
  const auto header =
      wire::EncodeFrameHeader({.method = static_cast<std::uint16_t>(method),
                               .body_bytes = static_cast<std::uint32_t>(body.size()),
                               .budget_ms = wire::BudgetMs(Left(deadline_ns)),
                               .call = call});
  if (auto sent = SendAll(header, body, deadline_ns); !sent) return end(sent.error());
  peer_needs_ns_ = Spin::NeededFor(body.size());
  std::array<std::byte, wire::kFrameHeaderBytes> bytes;
  if (auto got = ReceiveAll(bytes.data(), bytes.size(), deadline_ns, fds); !got) {
    return end(got.error());
  }
  const auto reply = wire::DecodeFrameHeader(bytes, wire::kMaxFrameBytes);
  if (!reply) return end(reply.error());
  answered_ = true;
  if (reply->call != call ||
      reply->method != (static_cast<std::uint16_t>(method) | wire::kReplyBit)) {
    return end({Code::kCorrupt, "the pool answered another call"});
  }
  std::string text(reply->body_bytes, '\0');
  if (!text.empty()) {
    if (auto got = ReceiveAll(reinterpret_cast<std::byte*>(text.data()), text.size(), deadline_ns,
                              nullptr);
        !got) {
      return end(got.error());
    }
  }
  if (reply->code != Code::kOk) {
    Error error{.code = reply->code, .detail = std::move(text), .answered = true};
    if (IsSayHelloFirst(error)) fd_.Reset();  // the server closes it, too
    return std::unexpected(std::move(error));
  }
  return text;
}

}  // namespace kvcove::rpc
