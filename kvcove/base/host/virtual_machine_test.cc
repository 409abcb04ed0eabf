// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/virtual_machine.h"

#include <gtest/gtest.h>

#include "tests/fake_root.h"

namespace kvcove {
namespace {

using VirtualMachineTest = FakeRootTest;

TEST_F(VirtualMachineTest, AMachineThatSaysNothingIsNone) {
  EXPECT_EQ(VirtualMachine(root_), std::nullopt);
  Write("/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: hypervisor\nflags\t\t: fpu sse2 nohypervisor\n");
  Write("/sys/class/dmi/id/sys_vendor", "Dell Inc.\n");
  Write("/sys/class/dmi/id/product_name", "PowerEdge R760\n");
  EXPECT_EQ(VirtualMachine(root_), std::nullopt);
}

TEST_F(VirtualMachineTest, TheProcessorSaysIt) {
  Write("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu hypervisor sse2\n\nprocessor\t: 1\n");
  EXPECT_EQ(VirtualMachine(root_), "'hypervisor' in /proc/cpuinfo");
}

TEST_F(VirtualMachineTest, FirmwareSaysItWhereTheProcessorDoesNot) {
  Write("/sys/class/dmi/id/sys_vendor", "Microsoft Corporation\n");
  EXPECT_EQ(VirtualMachine(root_), std::nullopt) << "they make tablets, too";
  Write("/sys/class/dmi/id/product_name", "Virtual Machine\n");
  EXPECT_EQ(VirtualMachine(root_), "'Virtual Machine' in /sys/class/dmi/id/product_name");
  Write("/sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
  EXPECT_EQ(VirtualMachine(root_), "'Amazon EC2' in /sys/class/dmi/id/sys_vendor");
  Write("/proc/device-tree/hypervisor/compatible", "linux,kvm");
  EXPECT_EQ(VirtualMachine(root_), "/proc/device-tree/hypervisor");
}

}  // namespace
}  // namespace kvcove
