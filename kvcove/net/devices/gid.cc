// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/gid.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace kvcove::net {
namespace {

using Bytes = std::array<std::uint8_t, 16>;

constexpr int kMostIndexes = 4096;  // tables of today have up to 256 entries

bool IsMapped(const Bytes& bytes) {  // an IPv4 address
  return std::all_of(bytes.begin(), bytes.begin() + 10, [](auto b) { return b == 0; }) &&
         bytes[10] == 0xff && bytes[11] == 0xff;
}

std::optional<Bytes> GidOfAddress(const std::string& address) {
  Bytes bytes{};
  if (inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), bytes.data()) == 1) {
    return bytes;
  }
  if (inet_pton(AF_INET, address.c_str(), &bytes[12]) != 1) return std::nullopt;
  bytes[10] = bytes[11] = 0xff;
  return bytes;
}

std::string Describe(const Gid& gid) {
  return fmt::format("{} ({} {}{}{})", gid.index, gid.v2 ? "v2" : "v1", gid.Address(),
                     gid.netdev.empty() ? "" : " of ", gid.netdev);
}

std::string All(const std::vector<Gid>& gids) {
  std::string text;
  for (const Gid& gid : gids) text.append(text.empty() ? "" : ", ").append(Describe(gid));
  return text.empty() ? "none" : text;
}

// Lower is better. Peers speak v2 unless told otherwise, so it goes before v1, which no router
// passes on.
int RankOf(const Gid& gid, const std::optional<Bytes>& routed) {
  if (gid.v2 && gid.bytes == routed) return 0;
  const bool same_family = !routed || IsMapped(gid.bytes) == IsMapped(*routed);
  if (gid.v2 && !gid.link_local()) return same_family ? 1 : 2;
  if (gid.v2) return 3;
  return gid.link_local() ? 5 : 4;
}

constexpr const char* kReasons[] = {"RoCE v2 of the address to advertise",
                                    "RoCE v2, the first of a global address",
                                    "RoCE v2, the first of a global address (of the other family)",
                                    "RoCE v2 of a link-local address: there is no global one",
                                    "RoCE v1: there is no v2",
                                    "RoCE v1 of a link-local address: there is no other"};

}  // namespace

std::string Gid::Address() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (IsMapped(bytes)) {
    inet_ntop(AF_INET, &bytes[12], text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, bytes.data(), text, sizeof(text));
  }
  return text;
}

bool Gid::link_local() const {
  if (IsMapped(bytes)) return bytes[12] == 169 && bytes[13] == 254;
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

std::optional<Bytes> ParseGid(const std::string& text) {
  Bytes bytes{};
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) != 1 || bytes == Bytes{}) return std::nullopt;
  return bytes;
}

Result<GidChoice> ChooseGid(LinkLayer layer, const std::vector<Gid>& gids,
                            const std::string& routed, std::optional<int> wanted) {
  const bool infiniband = layer == LinkLayer::kInfiniBand;
  const auto choice = [&](const Gid& gid, std::string why) {
    return GidChoice{
        .gid = gid, .why = std::move(why), .routable = infiniband || (gid.v2 && !gid.link_local())};
  };
  if (wanted || infiniband) {
    const int index = wanted.value_or(0);
    const auto found = std::ranges::find(gids, index, &Gid::index);
    if (found != gids.end()) {
      return choice(*found, wanted ? "the index that was named" : "InfiniBand: the port's own");
    }
    return Fail(Code::kInvalid,
                fmt::format("it has no GID with the index {}; there are: {}", index, All(gids)));
  }
  if (gids.empty()) {
    return Fail(Code::kInvalid, "it has no GID: does its interface have an address, and is it up?");
  }
  const std::optional<Bytes> address = GidOfAddress(routed);
  const auto best = std::ranges::min_element(
      gids, {}, [&](const Gid& gid) { return std::pair(RankOf(gid, address), gid.index); });
  return choice(*best, kReasons[RankOf(*best, address)]);
}

Result<std::optional<int>> ParseGidIndex(const std::string& what, const std::string& text) {
  if (text.empty()) return std::nullopt;
  int index = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size() || index < 0 ||
      index >= kMostIndexes) {
    return Fail(Code::kInvalid,
                fmt::format("{}: '{}' is no GID index, such as 3; /sys/class/infiniband/DEVICE/"
                            "ports/PORT/gids has those of a port",
                            what, text));
  }
  return index;
}

}  // namespace kvcove::net
