// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/virtual_machine.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace kvcove {
namespace {

// What firmware of virtual machines says about itself. Processors other than x86 do not say it.
constexpr const char* kVendors[] = {"QEMU",    "KVM",   "VMware",    "Xen",
                                    "innotek", "Bochs", "Amazon EC2"};
constexpr const char* kProducts[] = {"Virtual Machine",        // Hyper-V, Azure
                                     "Google Compute Engine",  // whose vendor makes laptops, too
                                     "KVM", "OpenStack"};

std::string FirstLine(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

bool HasFlag(const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word == "hypervisor") return true;
    }
    return false;  // the other processors have the same
  }
  return false;
}

bool StartsWithOneOf(const std::string& text, const auto& names) {
  return std::ranges::any_of(names, [&](const char* name) { return text.starts_with(name); });
}

}  // namespace

std::optional<std::string> VirtualMachine(const std::string& root) {
  if (HasFlag(root + "/proc/cpuinfo")) return "'hypervisor' in /proc/cpuinfo";
  if (std::ifstream(root + "/proc/device-tree/hypervisor/compatible").is_open()) {
    return "/proc/device-tree/hypervisor";
  }
  for (const char* path : {"/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"}) {
    const std::string name = FirstLine(root + path);
    if (StartsWithOneOf(name, kVendors) || StartsWithOneOf(name, kProducts)) {
      return fmt::format("'{}' in {}", name, path);
    }
  }
  return std::nullopt;
}

}  // namespace kvcove
