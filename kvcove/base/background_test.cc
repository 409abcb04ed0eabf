// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/background.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace kvcove {
namespace {

constexpr std::int64_t kHour = 3'600'000'000'000;

TEST(BackgroundWorkTest, RunsStepsUntilOneSaysDone) {
  std::atomic<int> steps{0};
  BackgroundWork work;
  ASSERT_TRUE(
      work.Start("test", Priority::kLow, [&] { return ++steps < 5 ? 0 : BackgroundWork::kDone; }));
  while (steps < 5) std::this_thread::yield();
  work.Stop();
  EXPECT_EQ(steps, 5);
}

TEST(BackgroundWorkTest, StopEndsARestAndNoStepBeginsAfterIt) {
  std::atomic<int> steps{0};
  BackgroundWork work;
  ASSERT_TRUE(work.Start("test", Priority::kIdle, [&] { return ++steps, kHour; }));
  while (steps == 0) std::this_thread::yield();
  work.Stop();
  work.Stop();
  EXPECT_EQ(steps, 1);
}

TEST(BackgroundWorkTest, StopBeforeStartAndStartAgain) {
  BackgroundWork work;
  work.Stop();
  std::atomic<int> steps{0};
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(work.Start("test", Priority::kLow, [&] { return ++steps, BackgroundWork::kDone; }));
  }
  while (steps == 0) std::this_thread::yield();
  work.Stop();
  EXPECT_GE(steps, 1);
}

TEST(BackgroundWorkTest, StopWithinDoesNotWaitForALongStepThatIsTheLastOne) {
  constexpr std::int64_t kWait = 20'000'000;
  std::atomic<int> steps{0};
  std::atomic<bool> go_on{false};
  BackgroundWork work;
  ASSERT_TRUE(work.Start("test", Priority::kIdle, [&] {
    ++steps;
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  }));
  while (steps == 0) std::this_thread::yield();
  EXPECT_FALSE(work.StopWithin(kWait));
  go_on = true;
  EXPECT_TRUE(work.StopWithin(kHour));
  EXPECT_TRUE(work.StopWithin(0));
  EXPECT_EQ(steps, 1);
}

// Policies by the names of this process's threads.
std::map<std::string, int> Policies() {
  std::map<std::string, int> policies;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    policies[name] = sched_getscheduler(std::stoi(task.path().filename().string()));
  }
  return policies;
}

TEST(BackgroundWorkTest, RunsAtThePriorityAndTheProcessorsThatWereAsked) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<unsigned>(cpu), &allowed)) ++cpu;
  std::atomic<int> policy{-1};
  std::atomic<int> nice{-1};
  std::atomic<int> cpus{-1};
  const auto look = [&] {
    cpu_set_t set;
    sched_getaffinity(0, sizeof(set), &set);
    cpus = CPU_COUNT(&set);
    nice = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
    policy = sched_getscheduler(0);
    return kHour;
  };
  BackgroundWork idle;
  ASSERT_TRUE(idle.Start("test", Priority::kIdle, look, {cpu}));
  while (policy == -1) std::this_thread::yield();
  EXPECT_EQ(policy, SCHED_BATCH) << "what a step holds, a thread of idle priority would keep";
  EXPECT_EQ(Policies()["kvcove-idle"], SCHED_IDLE);
  idle.Stop();
  EXPECT_FALSE(Policies().contains("kvcove-idle"));
  EXPECT_EQ(cpus, 1);
  policy = -1;
  BackgroundWork low;
  ASSERT_TRUE(low.Start("test", Priority::kLow, look));
  while (policy == -1) std::this_thread::yield();
  EXPECT_FALSE(Policies().contains("kvcove-idle"));
  low.Stop();
  EXPECT_EQ(policy, SCHED_BATCH);
  EXPECT_EQ(nice, 10);
}

TEST(BackgroundWorkTest, TheGateEndsWithTheWork) {
  BackgroundWork work;
  ASSERT_TRUE(work.Start("test", Priority::kIdle, [] { return BackgroundWork::kDone; }));
  while (Policies().contains("kvcove-idle")) std::this_thread::yield();
}

}  // namespace
}  // namespace kvcove
