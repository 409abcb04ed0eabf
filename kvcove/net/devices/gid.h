// SPDX-License-Identifier: Apache-2.0
// The GIDs of an RDMA port, and which one a connection uses. On Ethernet (RoCE) each address of the
// port's interface, its VLANs and its bond has one GID for version 1 and one for version 2; the
// index is what both sides of a connection are configured with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/result.h"

namespace kvcove::net {

enum class LinkLayer { kUnknown, kInfiniBand, kEthernet };

struct Gid {
  int index = 0;
  std::array<std::uint8_t, 16> bytes{};
  bool v2 = false;     // RoCE v2; else "IB/RoCE v1"
  std::string netdev;  // that has the address; empty on InfiniBand

  // "10.0.0.1", "fd00::1"; of InfiniBand: the GID in IPv6's form.
  std::string Address() const;
  // fe80::/10 and 169.254/16: only hosts on the same link reach it.
  bool link_local() const;
};

// "0000:0000:0000:0000:0000:ffff:0a00:0001", the kernel's form. Nothing for another form, and for
// zeros, an entry that is not used.
std::optional<std::array<std::uint8_t, 16>> ParseGid(const std::string& text);

struct GidChoice {
  Gid gid;
  std::string why;
  bool routable = false;  // others than those on the same link reach it
};

// `routed`: the address that the owner advertises, numeric or not. `wanted`: an index that somebody
// named, which wins. Errors: kInvalid, when there is no such index or no GID, with those there are.
Result<GidChoice> ChooseGid(LinkLayer layer, const std::vector<Gid>& gids,
                            const std::string& routed, std::optional<int> wanted);

// What an option or MC_GID_INDEX says; `text` empty: nothing. Errors: kInvalid.
Result<std::optional<int>> ParseGidIndex(const std::string& what, const std::string& text);

}  // namespace kvcove::net
