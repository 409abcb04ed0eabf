// SPDX-License-Identifier: Apache-2.0
#include "kvcove/net/devices/place.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace kvcove::net {
namespace {

constexpr const char* kDevices = "bus/pci/devices";

bool IsHex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// 0000:17:00.0; the domain may be longer.
bool IsPciAddress(std::string_view name) {
  const std::size_t size = name.size();
  return size >= 12 && name[size - 8] == ':' && name[size - 5] == ':' && name[size - 2] == '.' &&
         IsHex(name.substr(0, size - 8)) && IsHex(name.substr(size - 7, 2)) &&
         IsHex(name.substr(size - 4, 2)) && IsHex(name.substr(size - 1));
}

// As the kernel writes it: lower case, with a domain of four digits or more.
std::string KernelAddress(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (IsPciAddress("0000:" + text)) return "0000:" + text;
  while (text.size() > 12 && text.front() == '0') text.erase(0, 1);
  return text;
}

std::set<int> ProcessorsOf(const Sysfs& sysfs, int node) {
  return ParseList(sysfs.Line(fmt::format("devices/system/node/node{}/cpulist", node)));
}

std::set<int> Nodes(const Sysfs& sysfs) {
  return ParseList(sysfs.Line("devices/system/node/online"));
}

// -1 and the like mean that the firmware does not say.
void SetNode(const Sysfs& sysfs, std::optional<int> node, Place& place) {
  if (!node || *node < 0) return;
  place.node = node;
  const std::set<int> processors = ProcessorsOf(sysfs, *node);
  if (processors.empty()) return;
  const std::optional<int> socket = sysfs.Number(
      fmt::format("devices/system/cpu/cpu{}/topology/physical_package_id", *processors.begin()));
  if (socket && *socket >= 0) place.socket = socket;
}

Target TargetOfNode(const Sysfs& sysfs, int node) {
  Target target{.name = fmt::format("NUMA node {}", node), .place = {}};
  SetNode(sysfs, node, target.place);
  return target;
}

}  // namespace

std::string DescribeNearness(Nearness nearness, const Target& target) {
  if (nearness == Nearness::kSameNode && target.place.path.empty()) return "on " + target.name;
  constexpr std::string_view kTexts[] = {"same PCI switch as",
                                         "same PCI root port as",
                                         "same host bridge as",
                                         "on the NUMA node of",
                                         "on the socket, but not the NUMA node of",
                                         "on another socket than",
                                         "at an unknown distance from"};
  return fmt::format("{} {}", kTexts[static_cast<std::size_t>(nearness)], target.name);
}

Place PlaceOf(const Sysfs& sysfs, const std::string& path) {
  Place place;
  for (const std::string& part : sysfs.Parts(path)) {
    const bool bridge = place.path.empty() && part.starts_with("pci");
    if (bridge || (!place.path.empty() && IsPciAddress(part))) place.path.push_back(part);
  }
  if (place.path.size() < 2) {
    place.path.clear();
    return place;
  }
  SetNode(sysfs, sysfs.Number(fmt::format("{}/{}/numa_node", kDevices, place.path.back())), place);
  return place;
}

Nearness NearnessOf(const Place& a, const Place& b) {
  const auto shared = std::ranges::mismatch(a.path, b.path).in1 - a.path.begin();
  // Host bridge, root port, then the upper end of a switch.
  if (shared >= 3) return Nearness::kSameSwitch;
  if (shared == 2) return Nearness::kSameRootPort;
  if (shared == 1) return Nearness::kSameHostBridge;
  if (!a.node || !b.node) return Nearness::kUnknown;
  if (*a.node == *b.node) return Nearness::kSameNode;
  if (a.socket && a.socket == b.socket) return Nearness::kSameSocket;
  return Nearness::kOtherSocket;
}

Result<Target> FindTarget(const Sysfs& sysfs, const std::string& text) {
  if (text.starts_with("numa:")) {
    const std::string_view digits = std::string_view(text).substr(5);
    int node = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), node);
    const std::set<int> nodes = Nodes(sysfs);
    if (error == std::errc() && end == digits.data() + digits.size() && nodes.contains(node)) {
      return TargetOfNode(sysfs, node);
    }
    return Fail(Code::kInvalid, fmt::format("'{}' is no NUMA node of this host; there are: {}",
                                            text, fmt::join(nodes, ", ")));
  }
  const std::string address = KernelAddress(text);
  if (IsPciAddress(address) && sysfs.Exists(fmt::format("{}/{}", kDevices, address))) {
    return Target{.name = address,
                  .place = PlaceOf(sysfs, fmt::format("{}/{}", kDevices, address))};
  }
  const std::vector<std::string> gpus = Gpus(sysfs);
  return Fail(Code::kInvalid,
              fmt::format("'{}' is neither numa:N nor the PCI address of a device here; GPUs: {}",
                          text, gpus.empty() ? "none" : fmt::format("{}", fmt::join(gpus, ", "))));
}

std::optional<Target> NodeOfThisProcess(const Sysfs& sysfs) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::nullopt;
  std::optional<int> found;
  for (const int node : Nodes(sysfs)) {
    const std::set<int> processors = ProcessorsOf(sysfs, node);
    if (std::ranges::none_of(processors, [&](int i) { return CPU_ISSET(i, &allowed); })) continue;
    if (found) return std::nullopt;
    found = node;
  }
  if (!found) return std::nullopt;
  return TargetOfNode(sysfs, *found);
}

std::vector<std::string> Gpus(const Sysfs& sysfs) {
  std::vector<std::string> gpus;
  for (const std::string& address : sysfs.List(kDevices)) {
    const std::string device = fmt::format("{}/{}/", kDevices, address);
    const std::string kind = sysfs.Line(device + "class");
    const std::string vendor = sysfs.Line(device + "vendor");
    // PCI classes: 03 display (00 VGA, 02 3D, 80 other), 12 processing accelerator. Most VGA
    // controllers of servers are those of their consoles.
    const bool compute =
        kind.starts_with("0x0302") || kind.starts_with("0x0380") || kind.starts_with("0x12");
    const bool big = vendor == "0x10de" || vendor == "0x1002";  // NVIDIA, AMD
    if (compute || (big && kind.starts_with("0x0300"))) gpus.push_back(address);
  }
  return gpus;
}

}  // namespace kvcove::net
