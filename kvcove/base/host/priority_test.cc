// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/host/priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

namespace kvcove {
namespace {

int Nice() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

int NiceOfANewThread() {
  int nice = 0;
  std::thread([&] { nice = Nice(); }).join();
  return nice;
}

TEST(RaisedPriorityTest, ItEndsWithTheObjectAndIsNotInherited) {
  std::thread([] {  // so that the flag stays with this thread
    const int before = Nice();
    const int of_new_threads = NiceOfANewThread();
    {
      const RaisedPriority raised;
      if (raised.raised()) {
        EXPECT_LT(Nice(), before);
        EXPECT_GE(NiceOfANewThread(), of_new_threads);
      } else {
        EXPECT_EQ(Nice(), before);  // a host that does not allow it
      }
    }
    EXPECT_EQ(Nice(), before);
    EXPECT_GE(NiceOfANewThread(), of_new_threads);
  })
      .join();
}

TEST(RaisedPriorityTest, RootMayRaiseIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NICE, &limit), 0);
  std::thread([] {
    const RaisedPriority raised;
    if (!raised.raised()) GTEST_SKIP() << "root without CAP_SYS_NICE";
    EXPECT_EQ(Nice(), -10);
  }).join();
}

}  // namespace
}  // namespace kvcove
