// SPDX-License-Identifier: Apache-2.0
// The RDMA ports of this host, and the order in which an owner uses them with `--transport auto` or
// `verbs`, and `kvcove doctor` shows them. docs/addresses.md has the order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcove/net/devices/gid.h"
#include "kvcove/net/devices/place.h"
#include "kvcove/net/devices/sysfs.h"

namespace kvcove::net {

struct RdmaPort {
  std::string device;  // mlx5_0
  int number = 1;
  std::string problem;  // why it cannot be used; empty: it can
  LinkLayer layer = LinkLayer::kUnknown;
  std::uint32_t rate_mbps = 0;  // 0: unknown
  Place place;                  // empty for a device in software
  std::vector<Gid> gids;        // those in use, by index

  // "mlx5_0:1".
  std::string Name() const;
};

// All there are, whether they can be used or not, by name. A device without any port is one port
// with a problem.
std::vector<RdmaPort> ReadRdmaPorts(const Sysfs& sysfs);

struct RdmaRequest {
  std::vector<std::string> devices;  // "mlx5_0" or "mlx5_0:2"; empty: all
  std::optional<int> gid_index;
  std::optional<Target> near;
  std::string routed;  // the address that the owner advertises
};

struct RdmaPath {
  RdmaPort port;
  GidChoice gid;
  Nearness nearness = Nearness::kUnknown;
  std::string interface;  // "bond0 over enp1, enp2"; empty on InfiniBand
  std::string why;        // "same PCI switch as the GPU 0000:1a:00.0, 400 Gb/s"
};

struct RdmaChoice {
  std::vector<RdmaPath> paths;        // best first
  std::vector<std::string> left_out;  // "mlx5_3:1: its state is 1: DOWN"
};

// Without devices: no paths, and no error. Errors: kInvalid, for a device that was named and is not
// there or cannot be used, and for a GID index that no port has; with what there is.
Result<RdmaChoice> ChooseRdma(const Sysfs& sysfs, const RdmaRequest& request);

}  // namespace kvcove::net
