// SPDX-License-Identifier: Apache-2.0
#include "kvcove/http/origin.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

namespace kvcove::http {
namespace {

namespace beast = boost::beast;
using beast::http::field;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

template <typename Name>
std::vector<std::string_view> ValuesOf(const beast::http::request_header<>& head, Name name) {
  std::vector<std::string_view> values;
  const auto [begin, end] = head.equal_range(name);
  for (auto at = begin; at != end; ++at) values.push_back(View(at->value()));
  return values;
}

enum class HostKind { kMalformed, kLoopback, kAddress, kName };

bool IsPort(std::string_view text) {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port != 0;
}

HostKind KindOfIpv6(const std::string& host) {
  in6_addr address{};
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return HostKind::kMalformed;
  return IN6_IS_ADDR_LOOPBACK(&address) ? HostKind::kLoopback : HostKind::kAddress;
}

// Returns the kind of `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
HostKind KindOfHost(std::string_view value) {
  const bool six = value.starts_with('[');
  const std::size_t end = six ? value.find(']') : value.find(':');
  if (six && end == std::string_view::npos) return HostKind::kMalformed;
  const std::string host(six ? value.substr(1, end - 1) : value.substr(0, end));
  const std::string_view rest =
      end == std::string_view::npos ? std::string_view() : value.substr(six ? end + 1 : end);
  if (!rest.empty() && (rest[0] != ':' || !IsPort(rest.substr(1)))) return HostKind::kMalformed;
  if (six) return KindOfIpv6(host);
  if (EqualIgnoringCase(host, "localhost")) return HostKind::kLoopback;
  in_addr four{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) {
    return (ntohl(four.s_addr) >> 24) == 127 ? HostKind::kLoopback : HostKind::kAddress;
  }
  const bool name = !host.empty() && std::ranges::all_of(host, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '.' || c == '_';
  });
  return name ? HostKind::kName : HostKind::kMalformed;
}

bool IsJson(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return EqualIgnoringCase(type, "application/json");
}

// Returns whether the request has a header that a page cannot send to another origin: its browser
// asks that origin first (CORS preflight).
bool HasOwnHeader(const beast::http::request_header<>& head) {
  const auto types = ValuesOf(head, field::content_type);
  if (types.size() == 1 && IsJson(types[0])) return true;
  const auto marks = ValuesOf(head, "X-Kvcove-Request");
  return marks.size() == 1 && marks[0] == "1";
}

}  // namespace

Status CheckOrigin(const beast::http::request_header<>& head, bool loopback, bool tls) {
  const auto hosts = ValuesOf(head, field::host);
  const HostKind kind = hosts.size() == 1 ? KindOfHost(hosts[0]) : HostKind::kMalformed;
  if (kind == HostKind::kMalformed) {
    return Fail(Code::kInvalid, "a request needs the header Host once, as ADDRESS:PORT");
  }
  if (loopback && kind != HostKind::kLoopback) {
    return Fail(Code::kDenied,
                "this endpoint answers for loopback addresses and 'localhost' only, not for the "
                "name in the header Host");
  }
  const std::string own = fmt::format("{}://{}", tls ? "https" : "http", hosts[0]);
  const bool foreign =
      std::ranges::any_of(ValuesOf(head, field::origin),
                          [&](auto origin) { return !EqualIgnoringCase(origin, own); }) ||
      std::ranges::any_of(ValuesOf(head, "Sec-Fetch-Site"),
                          [](auto site) { return site != "same-origin" && site != "none"; });
  if (foreign) {
    return Fail(Code::kDenied, "this endpoint does not answer pages of other origins");
  }
  const bool reads =
      head.method() == beast::http::verb::get || head.method() == beast::http::verb::head;
  if (!reads && !HasOwnHeader(head)) {
    return Fail(Code::kDenied,
                "a request that changes something needs the header 'Content-Type: "
                "application/json' or 'X-Kvcove-Request: 1', which pages of other origins cannot "
                "send");
  }
  return {};
}

}  // namespace kvcove::http
