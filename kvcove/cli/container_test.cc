// SPDX-License-Identifier: Apache-2.0
#include "kvcove/cli/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "kvcove/base/size.h"
#include "tests/fake_root.h"

namespace kvcove::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class ContainerTest : public FakeRootTest {
 protected:
  void SetUp() override {
    FakeRootTest::SetUp();
    unsetenv("KUBERNETES_SERVICE_HOST");
    Write("/proc/meminfo",
          "MemTotal:  33554432 kB\nMemAvailable:   16777216 kB\nHugepagesize:       2048 kB\n");
    Write("/proc/self/mountinfo", kMounts);
    Link("pid", "pid:[4026531836]");
    Link("user", "user:[4026531837]");
    Link("net", "net:[4026532000]");
  }
  void Link(const std::string& kind, const std::string& to) const {
    const std::string link = root_ + "/proc/self/ns/" + kind;
    std::filesystem::create_directories(std::filesystem::path(link).parent_path());
    std::filesystem::remove(link);
    std::filesystem::create_symlink(to, link);
  }
  ContainerFacts Facts() const { return ContainerFacts::Read(root_); }
  // A container that has all that an owner wants.
  ContainerFacts Good() const {
    ContainerFacts facts = Facts();
    facts.how = "/.dockerenv";
    facts.own_pids = true;
    facts.names_peers = true;
    facts.locked_bytes = ~0ULL;
    facts.shm_bytes = 64 * kMiB;
    facts.memory_limited = true;
    facts.memory.most_bytes = 8 * kGiB;
    return facts;
  }
  static ContainerUse OwnerUse() {
    return {.role = Role::kOwner,
            .memory_bytes = 4 * kGiB,
            .socket = "/run/kvcove-of-test/kvcove.sock",
            .disks = {"/var/lib/kvcove/disk"},
            .host_id = "node-1"};
  }
  static Finding FindingOf(const ContainerFacts& facts, const ContainerUse& use,
                           const std::string& what) {
    const std::vector<Finding> all = ContainerFindings(facts, use);
    const auto at = std::ranges::find(all, what, &Finding::what);
    return at == all.end() ? Finding{.what = "missing: " + what} : *at;
  }

  // As containerd has it, with a volume for the socket and one whose path has a blank.
  static constexpr const char* kMounts =
      "1 0 0:30 / / rw - overlay overlay rw,lowerdir=/a\n"
      "2 1 0:31 / /proc rw - proc proc rw\n"
      "3 1 8:1 /volumes/run /run/kvcove-of-test rw - ext4 /dev/sda1 rw\n"
      "4 1 8:1 /volumes/disk /var/lib/kvcove/disk rw - ext4 /dev/sda1 rw\n"
      "5 1 8:1 /volumes/more /srv/with\\040blank rw - ext4 /dev/sda1 rw\n";
};

TEST_F(ContainerTest, NothingShowsAContainerOnAHost) {
  EXPECT_THAT(Facts().how, IsEmpty());
  EXPECT_EQ(Facts().own_pids, false);
  EXPECT_EQ(Facts().own_users, false);
  EXPECT_EQ(FindingOf(Facts(), OwnerUse(), "container").verdict, Verdict::kNote);
}

TEST_F(ContainerTest, ANamespaceOrARuntimesMarkerShowsIt) {
  Link("pid", "pid:[4026532400]");
  EXPECT_EQ(Facts().how, "a PID namespace of its own");
  EXPECT_EQ(Facts().own_pids, true);
  Write("/run/.containerenv", "");
  EXPECT_EQ(Facts().how, "/run/.containerenv");
  Write("/.dockerenv", "");
  EXPECT_EQ(Facts().how, "/.dockerenv");
}

TEST_F(ContainerTest, WithoutProcItIsNotKnown) {
  std::filesystem::remove_all(root_ + "/proc");
  EXPECT_EQ(Facts().own_pids, std::nullopt);
  EXPECT_FALSE(Facts().IsInLayer("/run/kvcove-of-test"));
  EXPECT_FALSE(Facts().memory_limited);
}

TEST_F(ContainerTest, OnlyAVolumeOutlivesTheContainer) {
  const ContainerFacts facts = Facts();
  EXPECT_FALSE(facts.IsInLayer("/run/kvcove-of-test/kvcove.sock"));
  EXPECT_FALSE(facts.IsInLayer("/run/kvcove-of-test"));
  EXPECT_FALSE(facts.IsInLayer("/srv/with blank/disk"));
  EXPECT_TRUE(facts.IsInLayer("/run/kvcove-of-test-other/kvcove.sock"))
      << "the name only begins so";
  EXPECT_TRUE(facts.IsInLayer("/run/kvcove-of-test/../other"));
  Write("/proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n");
  EXPECT_FALSE(Facts().IsInLayer("/anywhere")) << "the root of a machine stays";
}

TEST_F(ContainerTest, AGoodContainerGivesAnOwnerNothingToChange) {
  for (const Finding& finding : ContainerFindings(Good(), OwnerUse())) {
    EXPECT_EQ(finding.verdict, Verdict::kOk) << finding.what << ": " << finding.seen;
    EXPECT_THAT(finding.change, IsEmpty()) << finding.what;
    EXPECT_FALSE(finding.seen.empty()) << finding.what;
  }
}

TEST_F(ContainerTest, EachRoleIsToldAboutTheSameSubjects) {
  for (const Role role : {Role::kServe, Role::kOwner, Role::kMaster, Role::kEngine}) {
    ContainerUse use = OwnerUse();
    use.role = role;
    for (const char* what :
         {"/dev/shm", "memory that may be locked", "huge pages of the container",
          "memory of the container", "PID namespace", "network namespace", "user"}) {
      EXPECT_EQ(FindingOf(Good(), use, what).what, what) << RoleName(role);
    }
  }
}

TEST_F(ContainerTest, OnlyAnEngineNeedsSharedMemoryFiles) {
  ContainerUse use = OwnerUse();
  EXPECT_EQ(FindingOf(Good(), use, "/dev/shm").verdict, Verdict::kOk);
  use.role = Role::kEngine;
  const Finding small = FindingOf(Good(), use, "/dev/shm");
  EXPECT_EQ(small.verdict, Verdict::kWarn);
  EXPECT_THAT(small.change, HasSubstr("--shm-size"));
  ContainerFacts facts = Good();
  facts.shm_bytes = 8 * kGiB;
  EXPECT_EQ(FindingOf(facts, use, "/dev/shm").verdict, Verdict::kOk);
}

TEST_F(ContainerTest, RdmaLocksAllOfTheMemory) {
  ContainerFacts facts = Good();
  facts.locked_bytes = 64 * kKiB;
  ContainerUse use = OwnerUse();
  EXPECT_EQ(FindingOf(facts, use, "memory that may be locked").verdict, Verdict::kNote);
  use.rdma = true;
  const Finding finding = FindingOf(facts, use, "memory that may be locked");
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_THAT(finding.seen, HasSubstr("RDMA locks all of --memory, 4GiB"));
  EXPECT_THAT(finding.change, HasSubstr("--ulimit memlock=-1"));
  use.role = Role::kMaster;
  EXPECT_EQ(FindingOf(facts, use, "memory that may be locked").verdict, Verdict::kOk);
}

TEST_F(ContainerTest, TheGroupsLimitOfHugePagesCounts) {
  const std::string pool = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  Write(pool + "nr_hugepages", "4096\n");
  Write(pool + "free_hugepages", "4096\n");
  Write("/proc/self/cgroup", "0::/pod\n");
  Write("/proc/self/mountinfo",
        std::string(kMounts) + "6 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  ContainerFacts facts = Facts();
  EXPECT_THAT(FindingOf(facts, OwnerUse(), "huge pages of the container").seen,
              HasSubstr("no limit"));
  Write("/sys/fs/cgroup/pod/hugetlb.2MB.max", "0\n");
  facts = Facts();
  EXPECT_EQ(facts.huge_limit_bytes, 0U);
  const Finding finding = FindingOf(facts, OwnerUse(), "huge pages of the container");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.seen, HasSubstr("control group '/pod' permits 0B in pages of 2MiB"));
  EXPECT_THAT(finding.change, HasSubstr("hugepages-2Mi of 4GiB"));
  Write("/sys/fs/cgroup/pod/hugetlb.2MB.max", std::to_string(4 * kGiB) + "\n");
  EXPECT_EQ(FindingOf(Facts(), OwnerUse(), "huge pages of the container").verdict, Verdict::kOk);
}

TEST_F(ContainerTest, TheMemoryLimitHasRoomForMoreThanTheValues) {
  ContainerFacts facts = Good();
  facts.memory.most_bytes = 4 * kGiB;
  const Finding finding = FindingOf(facts, OwnerUse(), "memory of the container");
  EXPECT_EQ(finding.verdict, Verdict::kWarn);
  EXPECT_THAT(finding.change, HasSubstr("a limit of 4."));
  facts.memory_limited = false;
  EXPECT_EQ(FindingOf(facts, OwnerUse(), "memory of the container").verdict, Verdict::kNote);
}

TEST_F(ContainerTest, AnEngineOnlyPaysForPageTables) {
  ContainerUse use = OwnerUse();
  use.role = Role::kEngine;
  use.memory_bytes = 64 * kGiB;
  ContainerFacts facts = Good();
  facts.memory.most_bytes = 4 * kGiB;
  EXPECT_EQ(FindingOf(facts, use, "memory of the container").verdict, Verdict::kOk);
  facts.memory.most_bytes = 100 * kMiB;
  EXPECT_EQ(FindingOf(facts, use, "memory of the container").verdict, Verdict::kWarn);
}

TEST_F(ContainerTest, AMastersDirectoryFitsOrIsBounded) {
  ContainerUse use{.role = Role::kMaster, .data = "/var/lib/kvcove/master"};
  ContainerFacts facts = Good();
  facts.memory.most_bytes = 2 * kGiB;
  const Finding finding = FindingOf(facts, use, "memory of the container");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.change, HasSubstr("--max-entries 20"));
  facts.memory.most_bytes = 64 * kGiB;
  EXPECT_EQ(FindingOf(facts, use, "memory of the container").verdict, Verdict::kOk);
}

TEST_F(ContainerTest, AnOldKernelNeedsOnePidNamespace) {
  ContainerFacts facts = Good();
  facts.names_peers = false;
  EXPECT_EQ(FindingOf(facts, OwnerUse(), "PID namespace").verdict, Verdict::kWarn);
  facts.own_pids = false;
  EXPECT_EQ(FindingOf(facts, OwnerUse(), "PID namespace").verdict, Verdict::kOk);
  ContainerUse use = OwnerUse();
  use.role = Role::kMaster;
  facts.own_pids = true;
  EXPECT_EQ(FindingOf(facts, use, "PID namespace").verdict, Verdict::kOk);
}

TEST_F(ContainerTest, OneNameOfTheHostJoinsNetworks) {
  ContainerUse use = OwnerUse();
  use.host_id.clear();
  const Finding finding = FindingOf(Good(), use, "network namespace");
  EXPECT_EQ(finding.verdict, Verdict::kNote);
  EXPECT_THAT(finding.seen, HasSubstr("net:[4026532000]"));
  EXPECT_THAT(finding.change, HasSubstr("KVCOVE_HOST_ID"));
  use.role = Role::kServe;
  EXPECT_EQ(FindingOf(Good(), use, "network namespace").verdict, Verdict::kOk);
}

TEST_F(ContainerTest, AUserNamespaceOfItsOwnIsNamed) {
  ContainerFacts facts = Good();
  facts.own_users = true;
  EXPECT_THAT(FindingOf(facts, OwnerUse(), "user").change, HasSubstr("65534"));
}

TEST_F(ContainerTest, WhatIsInTheLayerIsLostOrNotSeen) {
  Write("/proc/self/mountinfo", "1 0 0:30 / / rw - overlay overlay rw\n");
  ContainerFacts facts = Good();
  const Finding socket = FindingOf(facts, OwnerUse(), "socket /run/kvcove-of-test/kvcove.sock");
  EXPECT_EQ(socket.verdict, Verdict::kWarn);
  EXPECT_THAT(socket.change, HasSubstr("-v kvcove-run:/run/kvcove-of-test"));
  EXPECT_EQ(FindingOf(facts, OwnerUse(), "disk /var/lib/kvcove/disk").verdict, Verdict::kWarn);
  const Finding data = FindingOf(facts, {.role = Role::kMaster, .data = "/var/lib/kvcove/master"},
                                 "data directory /var/lib/kvcove/master");
  EXPECT_EQ(data.verdict, Verdict::kWarn);
  EXPECT_THAT(data.seen, HasSubstr("another pool"));
}

TEST_F(ContainerTest, ADirectoryThatIsOpenToOthersIsNoPlaceForASocket) {
  ContainerUse use = OwnerUse();
  use.socket = root_ + "/kvcove.sock";
  EXPECT_NE(FindingOf(Good(), use, "socket " + use.socket).verdict, Verdict::kFail);
  std::filesystem::permissions(root_, std::filesystem::perms::all);  // an emptyDir
  const Finding finding = FindingOf(Good(), use, "socket " + use.socket);
  EXPECT_EQ(finding.verdict, Verdict::kFail);
  EXPECT_THAT(finding.change, HasSubstr("KVCOVE_SOCKET=" + root_ + "/pool/kvcove.sock"));
}

TEST_F(ContainerTest, AnEngineLooksForTheOwnersSocket) {
  ContainerUse use = OwnerUse();
  use.role = Role::kEngine;
  use.socket = root_ + "/kvcove.sock";
  EXPECT_EQ(FindingOf(Good(), use, "socket " + use.socket).seen, "is not there");
  Write("/kvcove.sock", "");
  EXPECT_NE(FindingOf(Good(), use, "socket " + use.socket).seen, "is not there");
}

TEST_F(ContainerTest, RolesAreRead) {
  EXPECT_EQ(ParseRole("--role", "engine").value_or(Role::kOwner), Role::kEngine);
  EXPECT_THAT(ParseRole("--role", "pod").error().detail,
              HasSubstr("--role pod: give one of serve, owner, master, engine"));
}

}  // namespace
}  // namespace kvcove::cli
