// SPDX-License-Identifier: Apache-2.0
#include "kvcove/transport/verbs/reaper.h"

#include <gtest/gtest.h>

#include <atomic>

#include "kvcove/transport/verbs/fake_verbs.h"
#include "kvcove/transport/verbs/lane_fixture.h"

namespace kvcove::transport::verbs {
namespace {

constexpr std::size_t kBytes = 1 << 20;

class ReaperTest : public ::testing::Test {
 protected:
  void Start(bool thread, std::chrono::milliseconds close = std::chrono::milliseconds(5000)) {
    auto started = Reaper::Start({.close = close, .thread = thread}, clock);
    ASSERT_TRUE(started);
    reaper = std::move(*started);
  }
  std::function<void()> Notify() {
    return [this] { quiet.fetch_add(1); };
  }

  FakeVerbs verbs;
  FakeClock clock;
  std::atomic<int> quiet{0};
  std::unique_ptr<Reaper> reaper;
};

TEST_F(ReaperTest, AnIdleLaneIsQuietWithTheFirstLook) {
  Start(/*thread=*/false);
  LaneEnds ends(verbs, "fake0", "fake1");
  reaper->Take(std::move(ends.requester), Notify());
  EXPECT_EQ(quiet, 0);
  EXPECT_EQ(reaper->stats().dying, 1U);
  EXPECT_TRUE(reaper->Advance());
  EXPECT_EQ(quiet, 1);
  EXPECT_EQ(reaper->stats().dying, 0U);
  EXPECT_EQ(reaper->stats().gone, 1U);
  EXPECT_EQ(verbs.counts().pairs, 1U);
  EXPECT_FALSE(reaper->Advance());
}

// P5: neither time nor the state ERR frees a buffer.
TEST_F(ReaperTest, ABufferStaysBusyUntilTheDeviceHasEndedTheLane) {
  Start(/*thread=*/false);
  LaneEnds ends(verbs, "fake0", "fake1");
  TestMemory source(ends.owner_context, kBytes, Access::kLocal, 1);
  TestMemory target(ends.requester_context, kBytes, Access::kRemote, 2);
  verbs.HoldAfter(100);
  ASSERT_TRUE(ends.owner->Post(MoveOf(Operation::kWrite, source, target, kBytes)));
  verbs.RefuseDestroys(true);
  // The caller uses the buffer again once the reaper notifies it.
  reaper->Take(std::move(ends.requester), [&] {
    std::fill(target.data.begin(), target.data.end(), std::byte{7});
    quiet.fetch_add(1);
  });
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(reaper->Advance());
    clock.AdvanceNs(3600 * kSecond);
  }
  EXPECT_EQ(quiet, 0);
  EXPECT_EQ(reaper->stats().stuck, 1U);
  verbs.RefuseDestroys(false);
  EXPECT_TRUE(reaper->Advance());
  EXPECT_EQ(reaper->stats().stuck, 0U);
  EXPECT_EQ(quiet, 1);
  verbs.Land();
  EXPECT_EQ(target.Count(7), kBytes);
}

TEST_F(ReaperTest, ALaneThatIsStuckHoldsUpNoOther) {
  Start(/*thread=*/false);
  LaneEnds stuck(verbs, "fake0", "fake1");
  LaneEnds other(verbs, "fake0", "fake1");
  TestMemory source(stuck.owner_context, kBytes, Access::kLocal, 1);
  TestMemory target(stuck.requester_context, kBytes, Access::kRemote, 2);
  verbs.HoldAfter(100);
  ASSERT_TRUE(stuck.owner->Post(MoveOf(Operation::kWrite, source, target, kBytes)));
  std::atomic<int> later{0};
  reaper->Take(std::move(stuck.owner), [&] { later.fetch_add(1); });
  reaper->Take(std::move(other.owner), Notify());
  EXPECT_TRUE(reaper->Advance());
  EXPECT_EQ(quiet, 1);
  EXPECT_EQ(later, 0);
  EXPECT_EQ(reaper->stats().dying, 1U);
  verbs.Land();
  EXPECT_TRUE(reaper->Advance());
  EXPECT_EQ(later, 1);
}

TEST_F(ReaperTest, OneThatIsNotifiedMayGiveTheNextLane) {
  Start(/*thread=*/false);
  LaneEnds ends(verbs, "fake0", "fake1");
  reaper->Take(std::move(ends.requester), [&] { reaper->Take(std::move(ends.owner), Notify()); });
  EXPECT_TRUE(reaper->Advance());
  EXPECT_EQ(quiet, 0);
  EXPECT_TRUE(reaper->Advance());
  EXPECT_EQ(quiet, 1);
}

TEST_F(ReaperTest, ItsThreadEndsLanes) {
  Start(/*thread=*/true);
  for (int i = 0; i < 20; ++i) {
    LaneEnds ends(verbs, "fake0", "fake1");
    reaper->Take(std::move(ends.requester), Notify());
    reaper->Take(std::move(ends.owner), nullptr);
  }
  while (reaper->stats().gone < 40) std::this_thread::yield();
  reaper.reset();
  EXPECT_EQ(quiet, 20);
  EXPECT_EQ(verbs.counts().pairs, 0U);
}

TEST_F(ReaperTest, ItsEndWaitsForLanes) {
  Start(/*thread=*/true);
  LaneEnds ends(verbs, "fake0", "fake1");
  reaper->Take(std::move(ends.requester), Notify());
  reaper.reset();
  EXPECT_EQ(quiet, 1);
}

TEST(ReaperEndTest, MemoryOfALaneThatDoesNotEndIsKept) {
  // Never destroyed, as the lane that is kept uses them.
  auto& verbs = *new FakeVerbs();
  static auto* const reachable = &verbs;
  (void)reachable;
  const FakeClock clock;
  auto reaper = Reaper::Start({.close = std::chrono::milliseconds(1), .thread = false}, clock);
  ASSERT_TRUE(reaper);
  const auto buffer = std::make_shared<int>(1);
  {
    LaneEnds ends(verbs, "fake0", "fake1");
    verbs.RefuseDestroys(true);
    (*reaper)->Take(std::move(ends.requester), [buffer] {});
    reaper->reset();
    EXPECT_EQ(buffer.use_count(), 2);
    EXPECT_EQ(verbs.counts().pairs, 2U);
    verbs.RefuseDestroys(false);
  }
  EXPECT_EQ(verbs.counts().pairs, 1U);
}

}  // namespace
}  // namespace kvcove::transport::verbs
