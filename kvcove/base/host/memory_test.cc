// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kvcove/base/size.h"

namespace kvcove {
namespace {

namespace fs = std::filesystem;

// /proc and the mounts of control groups as a process sees them.
class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / "kvcove-groups-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    Write("/proc/meminfo", "MemTotal:  33554432 kB\nMemAvailable:   16777216 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Version2(const std::string& group, const std::string& mount_root = "/") const {
    Write("/proc/self/cgroup", "0::" + group + "\n");
    Write("/proc/self/mountinfo",
          "22 1 0:21 / /proc rw - proc proc rw\n"
          "30 22 0:26 " +
              mount_root + " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void Group2(const std::string& group, const std::string& limit, std::uint64_t used,
              std::uint64_t cache = 0) const {
    const std::string at = "/sys/fs/cgroup" + group;
    Write(at + "/memory.max", limit + "\n");
    Write(at + "/memory.current", std::to_string(used) + "\n");
    Write(at + "/memory.stat", "anon 5\ninactive_file " + std::to_string(cache) + "\n");
  }
  MemoryRoom Available() const { return AvailableMemory(root_); }
  std::string root_;
};

TEST_F(MemoryTest, WithoutGroupsTheHostSetsIt) {
  EXPECT_EQ(Available().bytes, 16 * kGiB);
  EXPECT_EQ(Available().limit, "this host (MemAvailable 16GiB)");
}

TEST_F(MemoryTest, Version2LimitsItsOwnGroupAndItsFileCacheIsFree) {
  Version2("/pod/engine");
  Group2("/pod/engine", std::to_string(4 * kGiB), 3 * kGiB, 2 * kGiB);
  EXPECT_EQ(Available().bytes, 3 * kGiB);
  EXPECT_EQ(Available().limit, "control group '/pod/engine' (memory.max 4GiB, 1GiB in use)");
}

TEST_F(MemoryTest, TheLesserOfMaxAndHighCountsAndHighIsNamed) {
  Version2("/pod");
  Group2("/pod", std::to_string(4 * kGiB), kGiB);
  Write("/sys/fs/cgroup/pod/memory.high", std::to_string(3 * kGiB) + "\n");
  Write("/sys/fs/cgroup/pod/memory.swap.max", "0\n");
  EXPECT_EQ(Available().bytes, 2 * kGiB);
  EXPECT_TRUE(Available().throttles);
  EXPECT_EQ(Available().limit,
            "control group '/pod' (memory.high 3GiB, 1GiB in use, memory.swap.max 0B)");
  Write("/sys/fs/cgroup/pod/memory.high", std::to_string(8 * kGiB) + "\n");
  EXPECT_EQ(Available().bytes, 3 * kGiB);
  EXPECT_FALSE(Available().throttles);
  Write("/sys/fs/cgroup/pod/memory.high", "max\n");
  EXPECT_EQ(Available().bytes, 3 * kGiB);
}

// What could be had once everything in use is free again.
TEST_F(MemoryTest, TheMostIsTheLeastOfAllLimits) {
  Version2("/pods/pod");
  Group2("/pods/pod", std::to_string(4 * kGiB), 4 * kGiB);
  Group2("/pods", std::to_string(8 * kGiB), 4 * kGiB);
  EXPECT_EQ(Available().bytes, 0U);
  EXPECT_EQ(Available().most_bytes, 4 * kGiB);
  Version2("/none");
  EXPECT_EQ(Available().most_bytes, 32 * kGiB);
}

TEST_F(MemoryTest, AnAncestorsLimitCounts) {
  Version2("/pods/pod/engine");
  Group2("/pods/pod/engine", "max", kGiB);
  Group2("/pods/pod", std::to_string(8 * kGiB), kGiB);
  Group2("/pods", std::to_string(8 * kGiB), 6 * kGiB);
  EXPECT_EQ(Available().bytes, 2 * kGiB);
  EXPECT_NE(Available().limit.find("'/pods'"), std::string::npos) << Available().limit;
}

TEST_F(MemoryTest, AGroupOverItsLimitGivesNothing) {
  Version2("/pod");
  Group2("/pod", std::to_string(kGiB), 2 * kGiB);
  EXPECT_EQ(Available().bytes, 0U);
}

// A container with a namespace of its own for groups: its group is the top.
TEST_F(MemoryTest, InAContainerTheTopIsItsOwnGroup) {
  Version2("/");
  Group2("", std::to_string(2 * kGiB), kGiB);
  EXPECT_EQ(Available().bytes, kGiB);
}

// Without such a namespace, the mount shows the container's group, and /proc the host's path.
TEST_F(MemoryTest, AMountThatShowsOneGroupAsItsTop) {
  Version2("/docker/abc/inner", "/docker/abc");
  Group2("", std::to_string(2 * kGiB), kGiB);
  Group2("/inner", "max", 0);
  EXPECT_EQ(Available().bytes, kGiB);
  Version2("/docker/other", "/docker/abc");
  EXPECT_EQ(Available().bytes, kGiB) << "what is mounted is all that can be seen";
}

TEST_F(MemoryTest, Version1AndItsAncestors) {
  Write("/proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/jobs/one\n1:cpu:/\n0::/\n");
  Write("/proc/self/mountinfo",
        "31 22 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "32 22 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n"
        "33 22 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  const std::string memory = "/sys/fs/cgroup/memory";
  for (const std::string group : {"", "/jobs", "/jobs/one"}) {
    Write(memory + group + "/memory.limit_in_bytes", "9223372036854771712\n");
    Write(memory + group + "/memory.usage_in_bytes", std::to_string(3 * kGiB));
  }
  EXPECT_EQ(Available().bytes, 16 * kGiB) << "no group has a limit";
  Write(memory + "/jobs/memory.limit_in_bytes", std::to_string(5 * kGiB));
  Write(memory + "/jobs/memory.stat", "cache 7\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(Available().bytes, 3 * kGiB);
  EXPECT_EQ(Available().limit, "control group '/jobs' (memory.limit_in_bytes 5GiB, 2GiB in use)");
}

TEST_F(MemoryTest, WhatCannotBeReadSetsNoLimit) {
  Version2("/gone");
  Write("/proc/self/cgroup", "garbage\n0:\n:::\n0::relative\n0::/gone\n");
  EXPECT_EQ(Available().bytes, 16 * kGiB);
}

}  // namespace
}  // namespace kvcove
