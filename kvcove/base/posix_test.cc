// SPDX-License-Identifier: Apache-2.0
#include "kvcove/base/posix.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace kvcove {
namespace {

// The line "VmFlags:" that the kernel shows of the mapping at `data`.
std::string FlagsOf(const std::byte* data) {
  const std::string begin = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(data));
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    found = found || line.starts_with(begin);
    if (found && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

TEST(MappingTest, NeitherCoreDumpsNorForkedChildrenHaveIt) {
  const auto file = CreateMemoryFile("test", 1 << 16);
  ASSERT_TRUE(file);
  const auto mapping = Mapping::Map(file->get(), 1 << 16, Mapping::Access::kReadWrite);
  ASSERT_TRUE(mapping);
  const std::string flags = FlagsOf(mapping->data());
  EXPECT_NE(flags.find(" dd "), std::string::npos) << flags;
  EXPECT_NE(flags.find(" dc "), std::string::npos) << flags;
}

// A daemon may be started with its standard streams closed. What a library prints must not land in
// whatever file gets their numbers.
TEST(StandardStreamsTest, NoDescriptorOfOursIsOneOfThem) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int fd : {0, 1, 2}) close(fd);
    int wrong = 0;
    {
      const auto file = CreateMemoryFile("test", 4096);
      if (!file || file->get() <= 2 || fcntl(file->get(), F_GETFD) != FD_CLOEXEC) wrong |= 1;
      const UniqueFd kept(dup(file->get()));
      if (kept.get() <= 2 || fcntl(kept.get(), F_GETFD) != 0) wrong |= 2;
    }
    OpenStandardStreams();
    for (const int fd : {0, 1, 2}) {
      struct stat status{};
      if (fstat(fd, &status) != 0 || !S_ISCHR(status.st_mode)) wrong |= 4;
      if (fcntl(fd, F_GETFD) != 0) wrong |= 8;
    }
    if (write(2, "a line", 6) != 6) wrong |= 16;
    _exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The signals that this thread blocks.
std::string Blocked() {
  std::ifstream status("/proc/thread-self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:")) return line;
  }
  return {};
}

TEST(StartThreadTest, ARefusedThreadIsAnErrorAndLeavesTheSignalsAsTheyWere) {
  const std::string before = Blocked();
  RefuseThreadsAfter(1);
  auto first = StartThread("first", [] {});
  const auto second = StartThread("second", [] {});
  RefuseThreadsAfter(-1);
  ASSERT_TRUE(first);
  first->join();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::kLimit);
  EXPECT_EQ(Blocked(), before);
}

// The kernel's limit of a user's threads. It does not count for root, so a child takes another
// user.
TEST(StartThreadTest, TheLimitThatRefusesIsNamed) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    std::string text;
    const std::string before = Blocked();
    // A user of no other process: the limit counts all of a user's threads.
    if (getuid() == 0 && setuid(64321) != 0) _exit(1);
    const rlimit none{.rlim_cur = 1, .rlim_max = 1};
    setrlimit(RLIMIT_NPROC, &none);
    const auto thread = StartThread("kvcove-test", [] {});
    text = thread ? "a thread" : thread.error().ToString();
    if (Blocked() != before) text += "; signals are blocked";
    (void)!write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  char text[1000] = {};
  const ssize_t got = read(ends[0], text, sizeof(text) - 1);
  close(ends[0]);
  waitpid(pid, nullptr, 0);
  ASSERT_GT(got, 0);
  EXPECT_THAT(text, testing::ContainsRegex("no thread 'kvcove-test' can be started: user [0-9]+ "
                                           "\\(ulimit -u 1, [0-9]+ in use\\)"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("blocked")));
}

}  // namespace
}  // namespace kvcove
