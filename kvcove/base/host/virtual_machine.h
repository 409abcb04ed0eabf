// SPDX-License-Identifier: Apache-2.0
// Whether this machine is a virtual one, whose clocks stand still while it is paused or migrated.
#pragma once

#include <optional>
#include <string>

namespace kvcove {

// How that is known, such as "'hypervisor' in /proc/cpuinfo"; nothing: it does not seem to be one.
// A hypervisor may hide itself. `root` stands before /proc and /sys, in tests.
std::optional<std::string> VirtualMachine(const std::string& root = "");

}  // namespace kvcove
