// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/rdma.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

namespace kvcove::net {
namespace {

constexpr const char* kClass = "class/infiniband";
constexpr int kActive = 4;  // of `state`: "4: ACTIVE"
constexpr int kLinkUp = 5;  // of `phys_state`: "5: LinkUp"

// "200 Gb/sec (4X HDR)", "2.5 Gb/sec (1X SDR)".
std::uint32_t RateOf(const std::string& text) {
  double gigabits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gigabits);
  if (error != std::errc() || !std::string_view(end).starts_with(" Gb/sec")) return 0;
  if (!(gigabits > 0 && gigabits < 1e6)) return 0;
  return static_cast<std::uint32_t>(std::lround(gigabits * 1000));
}

LinkLayer LayerOf(const std::string& text) {
  if (text == "InfiniBand") return LinkLayer::kInfiniBand;
  return text == "Ethernet" ? LinkLayer::kEthernet : LinkLayer::kUnknown;
}

std::vector<Gid> ReadGids(const Sysfs& sysfs, const std::string& port, LinkLayer layer) {
  std::vector<Gid> gids;
  for (const std::string& name : sysfs.List(port + "/gids")) {
    const auto index = ParseGidIndex("", name);
    const auto bytes = ParseGid(sysfs.Line(fmt::format("{}/gids/{}", port, name)));
    if (!index || !*index || !bytes) continue;
    Gid gid{.index = **index, .bytes = *bytes, .netdev = {}};
    const std::string type = sysfs.Line(fmt::format("{}/gid_attrs/types/{}", port, name));
    gid.v2 = type == "RoCE v2";
    // An entry that is emptied meanwhile has no type any more.
    if (layer == LinkLayer::kEthernet && !gid.v2 && type != "IB/RoCE v1") continue;
    gid.netdev = sysfs.Line(fmt::format("{}/gid_attrs/ndevs/{}", port, name));
    gids.push_back(std::move(gid));
  }
  return gids;
}

std::string ProblemOf(const Sysfs& sysfs, const std::string& device, const std::string& port,
                      LinkLayer layer) {
  const std::string type = sysfs.Line(device + "/node_type");
  if (!type.empty() && type != "1: CA") {
    return fmt::format("its type is '{}': neither InfiniBand nor RoCE", type);
  }
  const std::string state = sysfs.Line(port + "/state");
  if (state.empty()) return "its state cannot be read";
  if (sysfs.Number(port + "/state") != kActive) return fmt::format("its state is '{}'", state);
  const std::string physical = sysfs.Line(port + "/phys_state");
  if (!physical.empty() && sysfs.Number(port + "/phys_state") != kLinkUp) {
    return fmt::format("its link is '{}'", physical);
  }
  if (layer == LinkLayer::kUnknown) return "its link layer is neither InfiniBand nor Ethernet";
  return {};
}

// A bond or a VLAN is over others.
std::string DescribeInterface(const Sysfs& sysfs, const std::string& name) {
  constexpr std::string_view kLower = "lower_";
  std::string lower;
  if (name.empty()) return {};
  for (const std::string& entry : sysfs.List("class/net/" + name)) {
    if (!entry.starts_with(kLower)) continue;
    lower.append(lower.empty() ? " over " : ", ").append(entry.substr(kLower.size()));
  }
  return name + lower;
}

std::string RateText(std::uint32_t rate_mbps) {
  if (rate_mbps == 0) return "unknown speed";
  return rate_mbps % 1000 == 0 ? fmt::format("{} Gb/s", rate_mbps / 1000)
                               : fmt::format("{:.1f} Gb/s", rate_mbps / 1000.0);
}

std::string Describe(const RdmaPort& port) {
  return port.problem.empty() ? port.Name() : fmt::format("{} ({})", port.Name(), port.problem);
}

std::string All(const std::vector<RdmaPort>& ports) {
  std::string text;
  for (const RdmaPort& port : ports) text.append(text.empty() ? "" : ", ").append(Describe(port));
  return text.empty() ? "none" : text;
}

Result<RdmaPath> PathOf(const Sysfs& sysfs, const RdmaPort& port, const RdmaRequest& request) {
  if (!port.problem.empty()) return Fail(Code::kInvalid, port.problem);
  RdmaPath path{.port = port, .gid = {}, .interface = {}, .why = {}};
  KVCOVE_ASSIGN(path.gid, ChooseGid(port.layer, port.gids, request.routed, request.gid_index));
  if (request.near) {
    path.nearness = NearnessOf(port.place, request.near->place);
    path.why = DescribeNearness(path.nearness, *request.near) + ", ";
  }
  path.why += RateText(port.rate_mbps);
  path.interface = DescribeInterface(sysfs, path.gid.gid.netdev);
  return path;
}

// A path that only its own link can use is the last resort, however near it is. The number of
// shared bridges tells a near switch from one further up.
auto OrderOf(const RdmaPath& path, const RdmaRequest& request) {
  std::ptrdiff_t shared = 0;
  if (request.near) {
    const auto at = std::ranges::mismatch(path.port.place.path, request.near->place.path);
    shared = at.in1 - path.port.place.path.begin();
  }
  const bool routed = path.gid.gid.Address() == request.routed;
  return std::tuple(!path.gid.routable, path.nearness, -shared,
                    -static_cast<std::int64_t>(path.port.rate_mbps), !routed);
}

Result<RdmaChoice> ChooseNamed(const Sysfs& sysfs, const std::vector<RdmaPort>& ports,
                               const RdmaRequest& request) {
  RdmaChoice choice;
  for (const std::string& name : request.devices) {
    std::string problem = "there is no such RDMA device";
    std::optional<RdmaPath> best;
    for (const RdmaPort& port : ports) {
      if (port.device != name && port.Name() != name) continue;
      auto path = PathOf(sysfs, port, request);
      if (!path) {
        problem = path.error().detail;
      } else if (!best || OrderOf(*path, request) < OrderOf(*best, request)) {
        best = std::move(*path);
      }
    }
    if (!best) {
      return Fail(Code::kInvalid, fmt::format("the RDMA device '{}': {}; this host has: {}", name,
                                              problem, All(ports)));
    }
    const bool again = std::ranges::any_of(choice.paths, [&](const RdmaPath& other) {
      return other.port.Name() == best->port.Name();
    });
    if (again)
      return Fail(Code::kInvalid, fmt::format("the RDMA device '{}' is named twice", name));
    best->why = "it was named; " + best->why;
    choice.paths.push_back(std::move(*best));
  }
  return choice;
}

}  // namespace

std::string RdmaPort::Name() const { return fmt::format("{}:{}", device, number); }

std::vector<RdmaPort> ReadRdmaPorts(const Sysfs& sysfs) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : sysfs.List(kClass)) {
    const std::string path = fmt::format("{}/{}", kClass, device);
    const Place place = PlaceOf(sysfs, path + "/device");
    const std::size_t before = ports.size();
    for (const std::string& name : sysfs.List(path + "/ports")) {
      RdmaPort port{.device = device, .problem = {}, .place = place, .gids = {}};
      const auto [end, error] =
          std::from_chars(name.data(), name.data() + name.size(), port.number);
      if (error != std::errc() || end != name.data() + name.size() || port.number < 1) continue;
      const std::string at = fmt::format("{}/ports/{}", path, name);
      port.layer = LayerOf(sysfs.Line(at + "/link_layer"));
      port.rate_mbps = RateOf(sysfs.Line(at + "/rate"));
      port.problem = ProblemOf(sysfs, path, at, port.layer);
      if (port.problem.empty()) port.gids = ReadGids(sysfs, at, port.layer);
      ports.push_back(std::move(port));
    }
    if (ports.size() == before) {
      ports.push_back({.device = device, .problem = "it has no port", .place = place, .gids = {}});
    }
  }
  return ports;
}

Result<RdmaChoice> ChooseRdma(const Sysfs& sysfs, const RdmaRequest& request) {
  const std::vector<RdmaPort> ports = ReadRdmaPorts(sysfs);
  if (!request.devices.empty()) return ChooseNamed(sysfs, ports, request);
  RdmaChoice choice;
  bool index_failed = false;
  for (const RdmaPort& port : ports) {
    auto path = PathOf(sysfs, port, request);
    if (path) {
      // Behind its equals: ReadRdmaPorts has them by name.
      const auto at =
          std::ranges::upper_bound(choice.paths, OrderOf(*path, request), {},
                                   [&](const RdmaPath& known) { return OrderOf(known, request); });
      choice.paths.insert(at, std::move(*path));
      continue;
    }
    index_failed = index_failed || (port.problem.empty() && request.gid_index);
    choice.left_out.push_back(fmt::format("{}: {}", port.Name(), path.error().detail));
  }
  if (choice.paths.empty() && index_failed) {
    std::string text;
    for (const std::string& line : choice.left_out) text.append("; ").append(line);
    return Fail(Code::kInvalid,
                fmt::format("no RDMA device has the GID index {}{}", *request.gid_index, text));
  }
  return choice;
}

}  // namespace kvcove::net
