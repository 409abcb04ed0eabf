// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/connection.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/beast/http.hpp>
#include <cerrno>

#include "kvcove/base/clock.h"
#include "kvcove/base/interrupt.h"
#include "kvcove/base/mutex.h"

namespace kvcove::http {
namespace {

namespace beast = boost::beast;

constexpr std::size_t kReadBytes = 64U << 10;
constexpr std::size_t kMaxAnswerBytes = 64U << 20;

}  // namespace

Status Connection::Wait(short events, std::int64_t deadline_ns) {
  while (true) {
    const std::int64_t left =
        std::max<std::int64_t>(LeftNs(deadline_ns, SystemClock::Instance()), 0);
    pollfd poller{.fd = fd_.get(), .events = events, .revents = 0};
    const std::int64_t turn = Interrupt::TurnNs(left);
    const timespec limit{.tv_sec = turn / kSecond, .tv_nsec = turn % kSecond};
    const int ready = ppoll(&poller, 1, &limit, nullptr);
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return FailErrno(Code::kUnavailable, "poll");
    // Only after the poll: an answer that came in time is taken, also if this thread was slow.
    if (left == 0) return Fail(Code::kTimeout, "no answer in time");
    if (ready < 0) {
      Interrupt::LookNow();
    } else {
      Interrupt::LookIfDue();
    }
  }
}

Status Connection::Send(std::string_view bytes, std::int64_t deadline_ns) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return FailErrno(Code::kUnavailable, "the connection ended");
    KVCOVE_TRY(Wait(POLLOUT, deadline_ns));
  }
  return {};
}

Result<Response> Connection::Receive(std::size_t max_bytes, std::int64_t deadline_ns,
                                     const TakePart& take) {
  beast::http::response_parser<beast::http::string_body> parser;
  parser.body_limit(max_bytes);
  parser.eager(true);
  std::string bytes;  // bytes that the parser has not taken yet
  std::array<char, kReadBytes> buffer;
  while (!parser.is_done()) {
    const ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      KVCOVE_TRY(Wait(POLLIN, deadline_ns));
      continue;
    }
    if (got < 0) return FailErrno(Code::kUnavailable, "the connection ended");
    beast::error_code error;
    if (got == 0) {
      if (parser.is_header_done()) parser.put_eof(error);  // of a body without a length
      if (error || !parser.is_done()) return Fail(Code::kUnavailable, "the connection ended");
      break;
    }
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
    const std::size_t taken = parser.put(boost::asio::buffer(bytes), error);
    bytes.erase(0, taken);
    if (error && error != beast::http::error::need_more) {
      return Fail(Code::kCorrupt, fmt::format("what came is no HTTP answer: {}", error.message()));
    }
    std::string& body = parser.get().body();
    if (take && !body.empty() && parser.get().result() == beast::http::status::ok) {
      KVCOVE_TRY(take(body));
      body.clear();  // the parser appends what comes next
    }
  }
  // Bytes behind the answer would be taken for the next request's, so they end the connection, too.
  if (!parser.keep_alive() || !bytes.empty()) fd_.Reset();
  const auto& answer = parser.get();
  const auto type = answer[beast::http::field::content_type];
  return Response{.status = static_cast<int>(answer.result_int()),
                  .body = answer.body(),
                  .type = std::string(type.data(), type.size())};
}

Result<Response> Connection::Ask(const RequestOptions& options, std::int64_t deadline_ns) {
  return Stream(options, deadline_ns, nullptr);
}

Result<Response> Connection::Stream(const RequestOptions& options, std::int64_t deadline_ns,
                                    const TakePart& take) {
  ExpectNoLock("an HTTP request");
  if (!usable()) return Fail(Code::kUnavailable, "the connection is closed");
  std::string request = fmt::format(
      "{} {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n",
      options.method, options.target, options.host, options.body.size());
  if (!options.authorization.empty()) {
    request += fmt::format("Authorization: {}\r\n", options.authorization);
  }
  request += "\r\n";
  request += options.body;
  Result<Response> answer = Fail(Code::kUnavailable, "");
  if (const Status sent = Send(request, deadline_ns); !sent) {
    answer = std::unexpected(sent.error());
  } else {
    answer = Receive(kMaxAnswerBytes, deadline_ns, take);
  }
  if (!answer) fd_.Reset();
  return answer;
}

}  // namespace kvcove::http
