// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/mounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvcove/base/control_group.h"
#include "tests/fake_root.h"

namespace kvcove {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

using MountsTest = FakeRootTest;

TEST_F(MountsTest, BlanksAndBackslashesOfPathsAreAsTheyWere) {
  Write("/proc/self/mountinfo",
        "29 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "36 29 98:0 /a\\040b /mnt/cold\\040data\\134 rw,noatime - xfs /dev/b rw,quota\n"
        "cut off\n");
  const auto mounts = Mounts(root_);
  EXPECT_THAT(mounts,
              ElementsAre(Field(&Mount::point, "/"), Field(&Mount::point, "/mnt/cold data\\")));
  EXPECT_EQ(mounts.back().root, "/a b");
  EXPECT_EQ(mounts.back().type, "xfs");
  EXPECT_EQ(mounts.back().options, "rw,quota");
}

TEST_F(MountsTest, NothingIsReadWhereThereIsNoProc) { EXPECT_THAT(Mounts(root_), IsEmpty()); }

// systemd and container runtimes take a group's name from a user's.
TEST_F(MountsTest, TheLimitOfAGroupWithABlankInItsNameIsFound) {
  Write("/proc/self/cgroup", "0::/jobs/night run/task\n");
  Write("/proc/self/mountinfo",
        "30 22 0:26 /jobs/night\\040run /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/task/memory.max", "4096\n");
  const auto groups = ControlGroups("memory", root_);
  ASSERT_FALSE(groups.empty());
  EXPECT_EQ(groups.front().Number("memory.max", 0), 4096U);
}

}  // namespace
}  // namespace kvcove
