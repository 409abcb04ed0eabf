// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/advertise.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>

namespace kvcove::net {
namespace {

enum class Kind { kName, kWildcard, kLoopback, kLinkLocal, kNobodys, kHost };

struct Parsed {
  Kind kind = Kind::kName;
  bool six = false;
  bool scoped = false;  // names an interface: fe80::1%eth0
};

Kind KindOf4(std::uint32_t address) {
  if (address == 0) return Kind::kWildcard;
  if (address >> 24 == 127) return Kind::kLoopback;
  return address >> 28 >= 14 ? Kind::kNobodys : Kind::kHost;  // multicast, reserved, broadcast
}

// As getaddrinfo reads it, which takes "0" and "127.1" for addresses, too.
Parsed Parse(const std::string& host) {
  if (host == "localhost") return {.kind = Kind::kLoopback};
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &raw) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(raw, &freeaddrinfo);
  if (found->ai_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(found->ai_addr);
    return {.kind = KindOf4(ntohl(four->sin_addr.s_addr))};
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(found->ai_addr);
  const in6_addr& address = six->sin6_addr;
  Parsed parsed{.kind = Kind::kHost, .six = true, .scoped = six->sin6_scope_id != 0};
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    std::uint32_t four = 0;
    std::memcpy(&four, &address.s6_addr[12], sizeof(four));
    return {.kind = KindOf4(ntohl(four))};
  }
  if (IN6_IS_ADDR_UNSPECIFIED(&address)) parsed.kind = Kind::kWildcard;
  if (IN6_IS_ADDR_LOOPBACK(&address)) parsed.kind = Kind::kLoopback;
  if (IN6_IS_ADDR_LINKLOCAL(&address)) parsed.kind = Kind::kLinkLocal;
  if (IN6_IS_ADDR_MULTICAST(&address)) parsed.kind = Kind::kNobodys;
  return parsed;
}

std::string LinkLocalNote(const Parsed& parsed) {
  if (parsed.kind != Kind::kLinkLocal) return {};
  return "; an IPv6 link-local address: only hosts on the same link whose interface has the same "
         "name reach it";
}

// Refuses a host that no peer can connect to, whether an option or the route named it.
Status CheckHost(const std::string& what, const std::string& host, const Parsed& parsed) {
  if (parsed.kind == Kind::kNobodys) {
    return Fail(Code::kInvalid, fmt::format("{}: {} is the address of no host", what, host));
  }
  if (parsed.kind == Kind::kLinkLocal && !parsed.scoped) {
    return Fail(Code::kInvalid,
                fmt::format("{}: the IPv6 link-local address {} needs its interface, as in "
                            "[{}%eth0]; better name a global address",
                            what, host, host));
  }
  if (parsed.kind == Kind::kName && host.find_first_not_of("0123456789.") == std::string::npos) {
    return Fail(Code::kInvalid, fmt::format("{}: '{}' is no IPv4 address", what, host));
  }
  return {};
}

Result<rpc::Route> RouteToMaster(const AdvertiseRequest& request, const RouteFunction& route) {
  Result<rpc::Route> found = Fail(Code::kInvalid, "no master is named");
  for (const rpc::Address& master : request.master.list()) {
    if (found = route(master); found) break;
  }
  return found;
}

Result<Advertised> FromOption(const AdvertiseRequest& request, const RouteFunction& route) {
  KVCOVE_ASSIGN(const rpc::Address address,
                rpc::ParseAddress(request.advertise, request.listen.port));
  const std::string what = "--advertise " + request.advertise;
  if (address.port == 0) {
    return Fail(Code::kInvalid, what + ": nobody can connect to port 0; use host:port");
  }
  const Parsed parsed = Parse(address.host);
  KVCOVE_TRY(CheckHost(what, address.host, parsed));
  if (parsed.kind == Kind::kWildcard) {
    return Fail(Code::kInvalid,
                what + ": this is no address that others can connect to; name one of this host's");
  }
  if (parsed.kind == Kind::kLoopback) {
    const auto to_master = RouteToMaster(request, route);
    if (to_master && Parse(to_master->source).kind != Kind::kLoopback) {
      return Fail(Code::kInvalid,
                  fmt::format("{}: only this host reaches it, and the master {} is reached by "
                              "others; name an address of this host, such as {}",
                              what, request.master.ToString(), to_master->source));
    }
  }
  return Advertised{.address = address, .why = "--advertise says so" + LinkLocalNote(parsed)};
}

// The listen address is one that others can connect to as it stands, or so it seems.
Result<Advertised> FromListen(const AdvertiseRequest& request, const Parsed& parsed,
                              const RouteFunction& route) {
  const rpc::Address& listen = request.listen;
  KVCOVE_TRY(CheckHost("--listen " + listen.ToString(), listen.host, parsed));
  if (parsed.kind != Kind::kLoopback) {
    return Advertised{.address = listen, .why = "it listens there" + LinkLocalNote(parsed)};
  }
  // A master whose name is not known yet says nothing about where it is.
  const auto to_master = RouteToMaster(request, route);
  if (to_master && Parse(to_master->source).kind != Kind::kLoopback &&
      to_master->source != to_master->peer) {
    return Fail(Code::kInvalid,
                fmt::format("--listen {}: only this host reaches it, but the master {} is on "
                            "another one; say --listen {} (or 0.0.0.0 and the port)",
                            listen.ToString(), request.master.ToString(),
                            rpc::Address{to_master->source, listen.port}.ToString()));
  }
  return Advertised{.address = listen, .why = "it listens there, for this host alone"};
}

Result<Advertised> FromRoute(const AdvertiseRequest& request, const Parsed& wildcard,
                             const RouteFunction& route) {
  const std::string listen = request.listen.ToString();
  const std::string master = request.master.ToString();
  const auto to_master = RouteToMaster(request, route);
  if (!to_master) {
    return Fail(to_master.error().code,
                fmt::format("--listen {}: which address to advertise is decided by the route to "
                            "the master: {}; name one with --advertise HOST:PORT",
                            listen, to_master.error().detail));
  }
  const std::string& source = to_master->source;
  const Parsed parsed = Parse(source);
  if (parsed.kind == Kind::kLoopback) {
    return Fail(Code::kInvalid,
                fmt::format("--listen {}: the route to the master {} leaves from {}, which only "
                            "this host reaches: it is no address that others can connect to. Name "
                            "--master by the address that other hosts use, or one of this host's "
                            "with --advertise HOST:PORT",
                            listen, master, source));
  }
  if (parsed.six && !wildcard.six) {
    return Fail(Code::kInvalid,
                fmt::format("--listen {} takes IPv4 only, but the route to the master {} leaves "
                            "from {}; say --listen [::]:{}",
                            listen, master, source, request.listen.port));
  }
  const std::string interface = InterfaceOf(source);
  return Advertised{
      .address = {.host = source, .port = request.listen.port},
      .why = fmt::format("the route to the master {} leaves from it{}{}", master,
                         interface.empty() ? "" : " (" + interface + ")", LinkLocalNote(parsed))};
}

}  // namespace

Result<Advertised> ChooseAdvertised(const AdvertiseRequest& request, const RouteFunction& route) {
  if (!request.advertise.empty()) return FromOption(request, route);
  const Parsed listen = Parse(request.listen.host);
  if (listen.kind == Kind::kWildcard) return FromRoute(request, listen, route);
  return FromListen(request, listen, route);
}

std::string InterfaceOf(const std::string& host) {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(raw, &freeifaddrs);
  for (const ifaddrs* at = all.get(); at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char name[NI_MAXHOST];
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(at->ifa_addr, length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) == 0 &&
        host == name) {
      return at->ifa_name;
    }
  }
  return {};
}

}  // namespace kvcove::net
