// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/device.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "kvcove/base/text.h"

namespace kvcove::transport::verbs {
namespace {

constexpr std::uint32_t kMostGids = 256;  // an index has 8 bits

bool Used(const Gid& gid) {
  return std::ranges::any_of(gid, [](std::uint8_t byte) { return byte != 0; });
}

// fe80::/10, or 169.254/16 in the form of IPv6.
bool LinkLocal(const Gid& gid) {
  if (gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80) return true;
  const bool mapped =
      gid[10] == 0xff && gid[11] == 0xff &&
      std::all_of(gid.begin(), gid.begin() + 10, [](auto byte) { return byte == 0; });
  return mapped && gid[12] == 169 && gid[13] == 254;
}

int Rank(const GidEntry& entry) { return (entry.v2 ? 2 : 0) + (LinkLocal(entry.gid) ? 0 : 1); }

}  // namespace

std::string PortName::ToString() const {
  return gid_index ? fmt::format("{}:{}/{}", device, port, *gid_index)
                   : fmt::format("{}:{}", device, port);
}

Result<PortName> ParsePortName(std::string_view text) {
  const auto wrong = [&] {
    return Fail(Code::kInvalid, fmt::format("'{}' names no RDMA port; say mlx5_0, mlx5_0:2 for its "
                                            "second port, or mlx5_0:2/3 for GID 3 of that",
                                            text));
  };
  PortName name;
  const std::size_t colon = text.find(':');
  name.device = text.substr(0, colon);
  if (name.device.empty() || name.device.find('/') != std::string::npos) return wrong();
  if (colon == std::string_view::npos) return name;
  std::string_view rest = text.substr(colon + 1);
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    name.gid_index = kvcove::NumberOf<std::uint8_t>(rest.substr(slash + 1));
    if (!name.gid_index) return wrong();
    rest = rest.substr(0, slash);
  }
  const auto port = kvcove::NumberOf<std::uint8_t>(rest);
  if (!port || *port == 0) return wrong();
  name.port = *port;
  return name;
}

Result<std::vector<PortName>> ParsePortNames(std::string_view text) {
  std::vector<PortName> names;
  while (true) {
    const std::size_t comma = text.find(',');
    KVCOVE_ASSIGN(PortName name, ParsePortName(text.substr(0, comma)));
    const auto same = [&](const PortName& other) {
      return other.device == name.device && other.port == name.port;
    };
    if (std::ranges::any_of(names, same)) {
      return Fail(Code::kInvalid,
                  fmt::format("port {} of {} is named twice", name.port, name.device));
    }
    names.push_back(std::move(name));
    if (comma == std::string_view::npos) return names;
    text = text.substr(comma + 1);
  }
}

std::optional<std::uint8_t> BestGid(const std::vector<GidEntry>& table) {
  std::optional<std::uint8_t> best;
  for (std::size_t index = 0; index < std::min<std::size_t>(table.size(), kMostGids); ++index) {
    if (!Used(table[index].gid)) continue;
    if (!best || Rank(table[index]) > Rank(table[*best])) best = static_cast<std::uint8_t>(index);
  }
  return best;
}

Result<std::shared_ptr<Device>> Device::Open(Verbs& verbs, const PortName& name) {
  KVCOVE_ASSIGN(auto context, verbs.Open(name.device));
  return std::shared_ptr<Device>(new Device(name, std::move(context)));
}

// Several threads may each take a part of the reports. The counts are hints for the next lane, so
// their order does not matter: a lane that was made by an old GID fails with its first packet.
void Device::TakeEvents() {
  while (const auto event = context_->TakeEvent()) {
    if (*event == DeviceEvent::kGone) gone_.store(true, std::memory_order_relaxed);
    if (*event == DeviceEvent::kPort) changes_.fetch_add(1, std::memory_order_relaxed);
  }
}

Result<Route> Device::Way() {
  TakeEvents();
  // Loaded before the table is read, and stored with the choice: a change that comes in between
  // makes the choice one of an earlier count, which the next call does not take.
  const std::uint32_t changes = changes_.load(std::memory_order_relaxed);
  if (gone()) return Fail(Code::kUnavailable, name_.device + " was removed, or has failed");
  KVCOVE_ASSIGN(const PortState port, context_->QueryPort(name_.port));
  if (!port.active) {
    return Fail(Code::kUnavailable, fmt::format("port {} of {} is down", name_.port, name_.device));
  }
  Route route{.port = name_.port};
  if (const std::uint64_t known = gid_.load(std::memory_order_relaxed); known >> 8 == changes) {
    route.gid_index = static_cast<std::uint8_t>(known);
    return route;
  }
  KVCOVE_ASSIGN(route.gid_index, ChooseGid(port));
  gid_.store(std::uint64_t{changes} << 8 | route.gid_index, std::memory_order_relaxed);
  return route;
}

Result<std::uint8_t> Device::ChooseGid(const PortState& port) const {
  if (name_.gid_index) {
    KVCOVE_ASSIGN(const GidEntry entry, context_->QueryGid(name_.port, *name_.gid_index));
    if (Used(entry.gid)) return *name_.gid_index;
    return Fail(Code::kUnavailable, fmt::format("{} is not used: see its table in /sys/class/"
                                                "infiniband/{}/ports/{}/gids",
                                                name_.ToString(), name_.device, name_.port));
  }
  if (!port.ethernet) return std::uint8_t{0};
  std::vector<GidEntry> table(std::min(port.gids, kMostGids));
  for (std::size_t index = 0; index < table.size(); ++index) {
    // An entry that was taken away meanwhile cannot be read; it is as good as one that is not used.
    const auto entry = context_->QueryGid(name_.port, static_cast<std::uint8_t>(index));
    if (entry) table[index] = *entry;
  }
  const std::optional<std::uint8_t> best = BestGid(table);
  if (best) return *best;
  return Fail(Code::kUnavailable,
              fmt::format("port {} of {} has no GID: its interface has no address", name_.port,
                          name_.device));
}

}  // namespace kvcove::transport::verbs
