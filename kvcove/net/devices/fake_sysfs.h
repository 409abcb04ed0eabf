// SPDX-License-Identifier: Apache-2.0
// Trees as the kernel makes them, for tests: devices below /sys/devices, and links to them from
// /sys/class and /sys/bus. Sources: Documentation/ABI/stable/sysfs-class-infiniband and
// drivers/infiniband/core/sysfs.c of Linux; links of interfaces: net/core/dev.c.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kvcove/base/text.h"
#include "kvcove/net/devices/sysfs.h"

namespace kvcove::net {

struct FakeGid {
  std::string gid;  // "::ffff:10.0.0.1" as the kernel writes it, see MappedGid
  std::string type;
  std::string netdev;
};

inline std::string MappedGid(int a, int b, int c, int d) {
  return fmt::format("0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}", a, b, c, d);
}
inline const char* const kZeroGid = "0000:0000:0000:0000:0000:0000:0000:0000";
inline const char* const kLinkLocalGid = "fe80:0000:0000:0000:0202:c9ff:fe00:0001";

struct FakePort {
  int number = 1;
  std::string state = "4: ACTIVE";
  std::string physical = "5: LinkUp";
  std::string rate = "200 Gb/sec (4X HDR)";
  std::string layer = "Ethernet";
  std::vector<FakeGid> gids = {};
};

// The four entries that an interface with one IPv4 address has.
inline std::vector<FakeGid> GidsOf(const std::string& mapped, const std::string& netdev) {
  return {{kLinkLocalGid, "IB/RoCE v1", netdev},
          {kLinkLocalGid, "RoCE v2", netdev},
          {mapped, "IB/RoCE v1", netdev},
          {mapped, "RoCE v2", netdev}};
}

class FakeSysfs {
 public:
  FakeSysfs() {
    std::string name = "/tmp/kvcove-sysfs-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  FakeSysfs(const FakeSysfs&) = delete;
  FakeSysfs& operator=(const FakeSysfs&) = delete;
  ~FakeSysfs() { std::filesystem::remove_all(root_); }
  Sysfs Tree() const { return Sysfs(root_); }
  const std::string& root() const { return root_; }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((std::filesystem::path(root_) / path).parent_path());
    std::ofstream(root_ + "/" + path) << text << "\n";
  }
  // A link with a relative target, as all of sysfs's are.
  void Link(const std::string& path, const std::string& target) const {
    const std::filesystem::path from = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(from.parent_path());
    std::filesystem::create_symlink(
        (std::filesystem::path(root_) / target).lexically_relative(from.parent_path()), from);
  }

  // `nodes`: each one's processors and socket, as {"0-31", 0}.
  void Nodes(const std::vector<std::pair<std::string, int>>& nodes) const {
    Write("devices/system/node/online", fmt::format("0-{}", nodes.size() - 1));
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const auto& [processors, socket] = nodes[i];
      Write(fmt::format("devices/system/node/node{}/cpulist", i), processors);
      Write(fmt::format("devices/system/cpu/cpu{}/topology/physical_package_id",
                        LeadingNumber(processors)),
            std::to_string(socket));
    }
  }
  // Of a node, as the kernel writes it: what is free, and what a cache of files holds.
  void Memory(int node, std::uint64_t total_mib, std::uint64_t free_mib,
              std::uint64_t cache_mib = 0) const {
    std::string text;
    for (const auto& [name, mib] :
         {std::pair{"MemTotal", total_mib}, std::pair{"MemFree", free_mib},
          std::pair{"MemUsed", total_mib - free_mib}, std::pair{"Active(anon)", std::uint64_t{7}},
          std::pair{"Inactive(file)", cache_mib}, std::pair{"Active(file)", std::uint64_t{0}}}) {
      text += fmt::format("Node {} {}: {:>14} kB\n", node, name, mib * 1024);
    }
    Write(fmt::format("devices/system/node/node{}/meminfo", node), text);
  }
  // `path`: below devices/, such as "pci0000:16/0000:16:02.0/0000:17:00.0".
  void Pci(const std::string& path, int node, const std::string& kind = "0x020000",
           const std::string& vendor = "0x15b3") const {
    const std::string address = std::filesystem::path(path).filename();
    Write(fmt::format("devices/{}/numa_node", path), std::to_string(node));
    Write(fmt::format("devices/{}/class", path), kind);
    Write(fmt::format("devices/{}/vendor", path), vendor);
    Link("bus/pci/devices/" + address, "devices/" + path);
  }
  void Gpu(const std::string& path, int node) const { Pci(path, node, "0x030200", "0x10de"); }
  // On the PCI device at `path`, which Pci has made; empty: a device in software.
  void Rdma(const std::string& name, const std::string& path,
            const std::vector<FakePort>& ports) const {
    const std::string parent = path.empty() ? "devices/virtual" : "devices/" + path;
    const std::string device = fmt::format("{}/infiniband/{}", parent, name);
    Write(device + "/node_type", "1: CA");
    Link("class/infiniband/" + name, device);
    if (!path.empty()) Link(device + "/device", parent);
    for (const FakePort& port : ports) AddPort(device, port);
  }
  void Interface(const std::string& name, const std::vector<std::string>& lower = {}) const {
    Write(fmt::format("devices/virtual/net/{}/operstate", name), "up");
    Link("class/net/" + name, "devices/virtual/net/" + name);
    for (const std::string& below : lower) {
      Link(fmt::format("devices/virtual/net/{}/lower_{}", name, below),
           "devices/virtual/net/" + below);
    }
  }

 private:
  void AddPort(const std::string& device, const FakePort& port) const {
    const std::string at = fmt::format("{}/ports/{}", device, port.number);
    Write(at + "/state", port.state);
    Write(at + "/phys_state", port.physical);
    Write(at + "/rate", port.rate);
    Write(at + "/link_layer", port.layer);
    // With two entries that are not used.
    for (std::size_t i = 0; i < port.gids.size() + 2; ++i) {
      const bool used = i < port.gids.size() && port.gids[i].gid != kZeroGid;
      Write(fmt::format("{}/gids/{}", at, i), used ? port.gids[i].gid : kZeroGid);
      // Those of an unused entry exist, and reading them fails: as a directory's does.
      const std::string type = fmt::format("{}/gid_attrs/types/{}", at, i);
      const std::string netdev = fmt::format("{}/gid_attrs/ndevs/{}", at, i);
      if (used) {
        Write(type, port.gids[i].type);
        if (!port.gids[i].netdev.empty()) Write(netdev, port.gids[i].netdev);
      } else {
        std::filesystem::create_directories(root_ + "/" + type);
        std::filesystem::create_directories(root_ + "/" + netdev);
      }
    }
  }
  std::string root_;
};

}  // namespace kvcove::net
