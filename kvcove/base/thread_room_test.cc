// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/thread_room.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fake_root.h"

namespace kvcove {
namespace {

using ThreadRoomTest = FakeRootTest;

TEST_F(ThreadRoomTest, TheNarrowestGroupSetsIt) {
  Write("/proc/self/cgroup", "0::/pods/pod\n");
  Write("/proc/self/mountinfo", "30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/pods/pod/pids.max", "max\n");
  Write("/sys/fs/cgroup/pods/pids.max", "64\n");
  Write("/sys/fs/cgroup/pods/pids.current", "60\n");
  const ThreadRoom room = AvailableThreads(root_);
  EXPECT_EQ(room.threads, 4U);
  EXPECT_EQ(room.limit, "control group '/pods' (pids.max 64, 60 in use)");
}

TEST_F(ThreadRoomTest, Version1HasAHierarchyOfItsOwn) {
  Write("/proc/self/cgroup", "7:pids:/jobs\n3:memory:/elsewhere\n");
  Write("/proc/self/mountinfo",
        "31 22 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
        "32 22 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  Write("/sys/fs/cgroup/pids/jobs/pids.max", "10\n");
  Write("/sys/fs/cgroup/pids/jobs/pids.current", "30\n");
  EXPECT_EQ(AvailableThreads(root_).threads, 0U);
}

TEST_F(ThreadRoomTest, AUsersThreadsAreCountedOnce) {
  if (getuid() != 0) GTEST_SKIP() << "not root";
  constexpr uid_t kNobodyElse = 54321;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // the only process of that user; a sanitizer gives it threads of its own
    struct stat own{};
    if (stat("/proc/self/task", &own) != 0) _exit(98);
    const rlim_t most = 9 + (own.st_nlink - 2);
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    const bool set = setuid(kNobodyElse) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0 &&
                     setrlimit(RLIMIT_NPROC, &limit) == 0;
    _exit(set ? static_cast<int>(AvailableThreads(root_).threads) : 99);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 9);
}

TEST_F(ThreadRoomTest, WhatCannotBeReadSetsNoLimit) {
  EXPECT_GT(AvailableThreads(root_).threads, 0U);
}

}  // namespace
}  // namespace kvcove
