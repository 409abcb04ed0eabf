// SPDX-License-Identifier: Apache-2.0
#include "kvcove/rpc/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <memory>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/rpc/inherited.h"

namespace kvcove::rpc {
namespace {

using Resolved = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Thousands of clients connect at once to a master that is back. The kernel bounds it by somaxconn.
constexpr int kBacklog = 4096;

Result<Resolved> Resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  const int error = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return Fail(Code::kInvalid,
                fmt::format("the host '{}' is not known: {}", address.host, gai_strerror(error)));
  }
  return Resolved(found, &freeaddrinfo);
}

// Makes the connection end after 30 s without a sign of life. A peer whose host has vanished closes
// nothing, so its connection would otherwise remain for hours. TCP_USER_TIMEOUT bounds data that
// was sent and not acknowledged, for which no keep-alives are sent.
void ExpectLife(int fd) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

std::string Numeric(const sockaddr* address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  getnameinfo(address, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return host;
}

// `shown`: the address as it was given, for errors.
Result<UniqueFd> ConnectToAddress(const addrinfo& found, const std::string& shown,
                                  std::int64_t deadline_ns) {
  UniqueFd fd(socket(found.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return FailErrno(Code::kInternal, "creating a TCP socket");
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ExpectLife(fd.get());
  if (connect(fd.get(), found.ai_addr, found.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) {
    return FailErrno(Code::kUnavailable, fmt::format("connecting to {}", shown));
  }
  while (true) {
    const std::int64_t left = LeftNs(deadline_ns, SystemClock::Instance());
    if (left <= 0) {
      return Fail(Code::kTimeout, fmt::format("{} did not answer in time", shown));
    }
    pollfd poller{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    const std::int64_t turn = Interrupt::TurnNs(left);
    const timespec limit{.tv_sec = turn / kSecond, .tv_nsec = turn % kSecond};
    const int ready = ppoll(&poller, 1, &limit, nullptr);
    if (ready < 0 && errno != EINTR) return FailErrno(Code::kUnavailable, "poll");
    if (ready < 0) Interrupt::LookNow();
    if (ready == 0) Interrupt::LookIfDue();
    if (ready <= 0) continue;
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == 0) return fd;
    errno = error;
    return FailErrno(Code::kUnavailable, fmt::format("connecting to {}", shown));
  }
}

}  // namespace

std::string Address::ToString() const {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

Address LoopbackAddress(std::uint16_t port) { return {.host = "127.0.0.1", .port = port}; }

Result<Address> ParseAddress(std::string_view text, std::uint16_t default_port) {
  Address address{.host = {}, .port = default_port};
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos || (end + 1 < text.size() && text[end + 1] != ':')) {
      return Fail(Code::kInvalid, fmt::format("'{}' is not [IPv6 address]:port", text));
    }
    address.host = text.substr(1, end - 1);
    if (end + 1 < text.size()) port = text.substr(end + 2);
  } else {
    const std::size_t colon = text.find(':');
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
      return Fail(Code::kInvalid,
                  fmt::format("'{}': write an IPv6 address in brackets, such as [::1]:7400", text));
    }
    address.host = text.substr(0, colon);
    if (colon != std::string_view::npos) port = text.substr(colon + 1);
  }
  if (address.host.empty()) {
    return Fail(Code::kInvalid, fmt::format("'{}' names no host; use host:port", text));
  }
  if (!port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
    if (error != std::errc() || end != port.data() + port.size()) {
      return Fail(Code::kInvalid, fmt::format("'{}' is not a port (1 to 65535)", port));
    }
  } else if (default_port == 0) {
    return Fail(Code::kInvalid, fmt::format("'{}' names no port; use host:port", text));
  }
  return address;
}

bool IsLoopback(const Address& address) {
  if (address.host == "localhost") return true;
  in_addr four{};
  if (inet_pton(AF_INET, address.host.c_str(), &four) == 1) {
    return (ntohl(four.s_addr) >> 24) == 127;
  }
  in6_addr six{};
  return inet_pton(AF_INET6, address.host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

Result<Route> RouteTo(const Address& address) {
  KVCOVE_ASSIGN(const Resolved found, Resolve(address, /*passive=*/false));
  // A datagram socket gets its source address from connect(), which sends no packet.
  const UniqueFd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return FailErrno(Code::kUnavailable, "creating a UDP socket");
  sockaddr_storage source{};
  socklen_t length = sizeof(source);
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&source), &length) != 0) {
    return FailErrno(Code::kUnavailable, fmt::format("no route to {}", address.ToString()));
  }
  return Route{.source = Numeric(reinterpret_cast<sockaddr*>(&source), length),
               .peer = Numeric(found->ai_addr, found->ai_addrlen)};
}

Result<UniqueFd> ListenTcp(Address& address) {
  if (UniqueFd inherited = TakeInherited(address); inherited.valid()) return inherited;
  KVCOVE_ASSIGN(const Resolved found, Resolve(address, /*passive=*/true));
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd.valid()) ExpectLife(fd.get());  // accepted sockets inherit it
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    return FailErrno(Code::kUnavailable, fmt::format("listening on {}", address.ToString()));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  address.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
  return fd;
}

Result<UniqueFd> ConnectTcp(const Address& address, std::int64_t deadline_ns) {
  const Result<Resolved> resolved = Resolve(address, /*passive=*/false);
  if (!resolved) return Fail(Code::kUnavailable, resolved.error().detail);
  // A name may have several addresses: "localhost" is ::1 on many hosts, and then 127.0.0.1.
  for (const addrinfo* found = resolved->get();; found = found->ai_next) {
    auto fd = ConnectToAddress(*found, address.ToString(), deadline_ns);
    if (fd || found->ai_next == nullptr || fd.error().code == Code::kTimeout) return fd;
  }
}

}  // namespace kvcove::rpc
