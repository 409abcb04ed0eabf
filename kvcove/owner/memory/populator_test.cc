// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/memory/populator.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "kvcove/base/posix.h"

namespace kvcove::owner {
namespace {

constexpr std::uint64_t kSlice = 64 * kKiB;

class PopulatorTest : public testing::Test {
 protected:
  void Map(std::uint64_t size) {
    file_ = *CreateMemoryFile("kvcove-test", size);
    mapping_ = *Mapping::Map(file_.get(), size, Mapping::Access::kReadWrite);
  }
  std::span<std::byte> memory() { return {mapping_.data(), mapping_.size()}; }
  std::uint64_t PresentBytes() {
    std::uint64_t bytes = 0;
    for (const auto& [offset, size] : PresentRuns(mapping_.data(), mapping_.size())) bytes += size;
    return bytes;
  }
  // Counts the slices, and fails at `fail_at`.
  Populator::Options Counting(std::uint64_t fail_at = ~0ULL) {
    return {.slice_bytes = kSlice,
            .populate = [this, fail_at](std::byte* data, std::uint64_t size) -> Status {
              const auto offset = static_cast<std::uint64_t>(data - mapping_.data());
              if (offset == fail_at) return Fail(Code::kUnavailable, "no page is left");
              const std::lock_guard lock(mutex_);
              populated_.emplace_back(offset, size);
              return {};
            }};
  }
  static void AwaitDone(const Populator& populator, std::uint64_t bytes) {
    while (populator.done_bytes() < bytes) std::this_thread::yield();
  }

  UniqueFd file_;
  Mapping mapping_;
  std::mutex mutex_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> populated_;
};

TEST_F(PopulatorTest, PopulatesAllFromTheBottomAndKeepsContents) {
  Map(kSlice * 3 + 8 * kKiB);
  mapping_.data()[kSlice + 5] = std::byte{42};
  Populator populator(memory(), {.slice_bytes = kSlice});
  populator.Start();
  AwaitDone(populator, mapping_.size());
  populator.Stop();
  EXPECT_EQ(PresentBytes(), mapping_.size());
  EXPECT_EQ(mapping_.data()[kSlice + 5], std::byte{42});
}

TEST_F(PopulatorTest, EnsurePopulatesTheSlicesOfARangeOnce) {
  Map(kSlice * 8);
  Populator populator(memory(), Counting());
  ASSERT_TRUE(populator.Ensure(kSlice - 64, 128));
  ASSERT_TRUE(populator.Ensure(kSlice, 64)) << "which is there already";
  ASSERT_TRUE(populator.Ensure(0, 0));
  EXPECT_EQ(populated_,
            (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, kSlice}, {kSlice, kSlice}}));
  EXPECT_EQ(populator.done_bytes(), 0U) << "only the thread's progress counts";
}

TEST_F(PopulatorTest, TheThreadPassesOverWhatPutsHavePopulated) {
  Map(kSlice * 4);
  Populator populator(memory(), Counting());
  ASSERT_TRUE(populator.Ensure(kSlice, kSlice * 2));
  populator.Start();
  AwaitDone(populator, kSlice * 4);
  populator.Stop();
  EXPECT_EQ(populated_.size(), 4U);
}

TEST_F(PopulatorTest, AFailureEndsTheThreadAndLeavesWhatIsDone) {
  Map(kSlice * 4);
  Populator populator(memory(), Counting(kSlice * 2));
  populator.Start();
  AwaitDone(populator, kSlice * 2);
  populator.Stop();
  EXPECT_EQ(populator.done_bytes(), kSlice * 2);
  EXPECT_EQ(populator.Ensure(kSlice * 2, 1).error().code, Code::kUnavailable);
  EXPECT_TRUE(populator.Ensure(kSlice * 3, 1));
}

TEST_F(PopulatorTest, StopsInTheMiddleAndGoesOn) {
  Map(kSlice * 64);
  Populator populator(memory(), Counting());
  populator.Start();
  AwaitDone(populator, kSlice);
  populator.Stop();
  const std::uint64_t done = populator.done_bytes();
  EXPECT_EQ(populated_.size() * kSlice, done);
  populator.Start();
  AwaitDone(populator, kSlice * 64);
  populator.Stop();
  EXPECT_EQ(populated_.size(), 64U);
}

}  // namespace
}  // namespace kvcove::owner
