// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/local/warmer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "kvcove/base/pages.h"
#include "kvcove/base/posix.h"

namespace kvcove::requester {
namespace {

constexpr std::uint64_t kSlice = WarmWalk::kSlice;

// A memory file as an owner and a requester map it.
struct Shared {
  explicit Shared(std::uint64_t size)
      : fd(*CreateMemoryFile("kvcove-test", size)),
        owner(*Mapping::Map(fd.get(), size, Mapping::Access::kReadWrite)),
        reader(*Mapping::Map(fd.get(), size, Mapping::Access::kReadOnly)) {}
  WarmWalk::File file() const { return {.fd = fd.get(), .memory = {reader.data(), reader.size()}}; }
  void Populate(std::uint64_t offset, std::uint64_t size) const {
    ASSERT_TRUE(PopulatePages(owner.data() + offset, size, Populate::kWrite));
  }
  std::uint64_t Allocated() const {
    std::uint64_t bytes = 0;
    for (const auto& [offset, size] : PresentRuns(owner.data(), owner.size())) bytes += size;
    return bytes;
  }
  UniqueFd fd;
  Mapping owner;
  Mapping reader;
};

// What this process's page tables map of the range, from /proc/self/pagemap.
std::uint64_t MappedBytes(const Mapping& mapping) {
  const UniqueFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const std::uint64_t page = SystemPageBytes();
  std::vector<std::uint64_t> entries(mapping.size() / page);
  const auto first = reinterpret_cast<std::uintptr_t>(mapping.data()) / page;
  EXPECT_EQ(pread(pagemap.get(), entries.data(), entries.size() * 8, static_cast<off_t>(first * 8)),
            static_cast<ssize_t>(entries.size() * 8));
  return page * static_cast<std::uint64_t>(
                    std::ranges::count_if(entries, [](auto entry) { return (entry >> 63) != 0; }));
}

// Until a round is over (a long rest) or all is done. Returns the steps.
int RunRound(WarmWalk& walk, bool* done = nullptr) {
  for (int steps = 1;; ++steps) {
    const std::int64_t rest = walk.Step();
    if (done != nullptr) *done = rest == BackgroundWork::kDone;
    if (rest < 0 || rest >= WarmWalk::kFirstRoundNs) return steps;
  }
}

TEST(WarmWalkTest, MapsAllThatIsPopulatedInOrderAndEnds) {
  const Shared index(kSlice);
  const Shared payload(kSlice * 4);
  index.Populate(0, kSlice);
  payload.Populate(0, kSlice * 4);
  WarmWalk walk({index.file(), payload.file()}, {.bytes_per_second = ~0ULL});
  walk.Step();
  EXPECT_EQ(MappedBytes(index.reader), kSlice) << "the index comes first";
  EXPECT_EQ(MappedBytes(payload.reader), 0U);
  bool done = false;
  EXPECT_EQ(RunRound(walk, &done), 5) << "one slice a step, and the end";
  EXPECT_TRUE(done);
  EXPECT_EQ(MappedBytes(payload.reader), kSlice * 4);
  EXPECT_EQ(walk.warmed_bytes(), kSlice * 5);
}

// A page that the walk allocated would be charged to the engine's control group.
TEST(WarmWalkTest, AllocatesNothing) {
  const Shared file(kSlice * 64);
  const std::uint64_t page = SystemPageBytes();
  file.Populate(kSlice * 10 + page, page * 3);
  file.Populate(kSlice * 40, kSlice);
  const std::uint64_t before = file.Allocated();
  WarmWalk walk({file.file()}, {.bytes_per_second = ~0ULL});
  const int steps = RunRound(walk);
  EXPECT_EQ(file.Allocated(), before);
  EXPECT_EQ(before, kSlice + page * 3);
  EXPECT_EQ(MappedBytes(file.reader), before);
  EXPECT_LE(steps, 4) << "holes cost no step";
}

TEST(WarmWalkTest, WhatTheOwnerPopulatesLaterIsMappedInALaterRound) {
  const Shared file(kSlice * 8);
  file.Populate(0, kSlice * 2);
  WarmWalk walk({file.file()}, {.bytes_per_second = ~0ULL});
  EXPECT_EQ(RunRound(walk), 3);
  EXPECT_EQ(walk.Step(), WarmWalk::kFirstRoundNs * 2) << "nothing is new: the next look is later";
  file.Populate(kSlice * 2, kSlice * 6);
  bool done = false;
  RunRound(walk, &done);
  EXPECT_TRUE(done);
  EXPECT_EQ(MappedBytes(file.reader), kSlice * 8);
}

TEST(WarmWalkTest, LooksLessAndLessOftenWhileNothingChanges) {
  const Shared file(kSlice * 2);
  WarmWalk walk({file.file()}, {});
  std::int64_t rest = 0;
  for (int i = 0; i < 20; ++i) rest = walk.Step();
  EXPECT_EQ(rest, WarmWalk::kLongestRoundNs);
}

TEST(WarmWalkTest, KeepsToItsBudget) {
  const Shared file(kSlice * 8);
  file.Populate(0, kSlice * 8);
  WarmWalk walk({file.file()}, {.budget_bytes = kSlice * 3, .bytes_per_second = ~0ULL});
  bool done = false;
  RunRound(walk, &done);
  EXPECT_TRUE(done);
  EXPECT_EQ(walk.warmed_bytes(), kSlice * 3);
  EXPECT_LT(MappedBytes(file.reader), kSlice * 4) << "the kernel maps a few neighbours, too";
}

TEST(WarmWalkTest, RestsAsItsRateAsks) {
  const Shared file(kSlice * 2);
  file.Populate(0, kSlice);
  WarmWalk walk({file.file()}, {.bytes_per_second = kSlice});
  EXPECT_GT(walk.Step(), kSecond / 2) << "a second a slice, less what the slice took";
}

TEST(WarmerTest, StopsInTheMiddleAndBeforeItStarts) {
  const Shared file(kSlice * 256);
  file.Populate(0, kSlice * 256);
  Warmer warmer;
  warmer.Stop();
  warmer.Start({file.file()}, {.bytes_per_second = kSlice * 100});
  while (MappedBytes(file.reader) == 0) std::this_thread::yield();
  warmer.Stop();
  const std::uint64_t mapped = MappedBytes(file.reader);
  EXPECT_LT(mapped, file.reader.size());
  warmer.Stop();
  EXPECT_EQ(MappedBytes(file.reader), mapped);
}

TEST(WarmerTest, OffMapsNothing) {
  const Shared file(kSlice);
  file.Populate(0, kSlice);
  Warmer warmer;
  warmer.Start({file.file()}, {.budget_bytes = 0});
  warmer.Stop();
  EXPECT_EQ(MappedBytes(file.reader), 0U);
}

// A child that is forked while pages are mapped has neither the thread nor the mapping, and ends as
// any other; the parent goes on. So slow a walk is under way until Stop().
TEST(WarmerTest, AForkInTheMiddleHarmsNeither) {
  const Shared file(kSlice * 256);
  file.Populate(0, kSlice * 256);
  Warmer warmer;
  warmer.Start({file.file()}, {.bytes_per_second = kSlice * 2});
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(7);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  }
  const std::uint64_t mapped = MappedBytes(file.reader);
  while (MappedBytes(file.reader) == mapped) std::this_thread::yield();
  warmer.Stop();
}

TEST(ParseWarmTest, TakesOffAllAndSizes) {
  EXPECT_EQ(ParseWarm("warm", "off")->budget_bytes, 0U);
  EXPECT_EQ(ParseWarm("warm", "0")->budget_bytes, 0U);
  EXPECT_EQ(ParseWarm("warm", "all")->budget_bytes, ~0ULL);
  EXPECT_EQ(ParseWarm("warm", "8GiB")->budget_bytes, 8 * kGiB);
  const auto wrong = ParseWarm("warm", "yes");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, Code::kInvalid);
  EXPECT_NE(wrong.error().detail.find("warm='yes'"), std::string::npos) << wrong.error().detail;
}

}  // namespace
}  // namespace kvcove::requester
