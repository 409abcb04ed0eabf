// SPDX-License-Identifier: Apache-2.0
// Where devices are in a host, and how far from each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kvcove/base/result.h"
#include "kvcove/net/devices/sysfs.h"

namespace kvcove::net {

struct Place {
  // From the host bridge down to the device: pci0000:16, 0000:16:02.0, 0000:17:00.0. Empty: it is
  // no PCI device.
  std::vector<std::string> path;
  std::optional<int> node;    // NUMA
  std::optional<int> socket;  // of that node's processors
};

// Nearest first.
enum class Nearness {
  kSameSwitch,      // they share a PCI switch: traffic between them passes no processor
  kSameRootPort,    // they share a processor's port only
  kSameHostBridge,  // they share a group of ports
  kSameNode,
  kSameSocket,  // of a processor with several NUMA nodes
  kOtherSocket,
  kUnknown,
};
// A GPU, or a NUMA node, to which a device shall be near.
struct Target {
  std::string name;  // for messages: "0000:1a:00.0", "NUMA node 1"
  Place place;
};
// "same PCI switch as 0000:1a:00.0".
std::string DescribeNearness(Nearness nearness, const Target& target);

// The place of the device behind `path`, such as "class/infiniband/mlx5_0/device".
Place PlaceOf(const Sysfs& sysfs, const std::string& path);
Nearness NearnessOf(const Place& a, const Place& b);

// `text`: a PCI address, also as nvidia-smi has it (00000000:1A:00.0), or "numa:1". Errors:
// kInvalid, with what there is.
Result<Target> FindTarget(const Sysfs& sysfs, const std::string& text);
// The one NUMA node whose processors this process may use; nothing when they are of several.
std::optional<Target> NodeOfThisProcess(const Sysfs& sysfs);
// PCI addresses of graphics and compute devices, in their order.
std::vector<std::string> Gpus(const Sysfs& sysfs);

}  // namespace kvcove::net
