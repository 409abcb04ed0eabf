// SPDX-License-Identifier: Apache-2.0
// Saves under way: what is announced of them, and who waits for them.
#include <atomic>
#include <thread>

#include "kvcove/connector/roles_fixture.h"

namespace kvcove::connector {
namespace {

class SavesUnderWayTest : public RolesTest {
 protected:
  void SetUp() override {
    options_.save_wait = std::chrono::milliseconds(200);
    RolesTest::SetUp();
  }
  // A request computes two chunks; the movers have not begun to save them.
  void ComputeAndDelaySave() {
    Compute("first", 0, 8, 1);
    (void)Step(/*move=*/false);
    scheduler_->Finished("first");
  }
  // The next turn, as another engine's scheduler asks for it.
  Match NextTurn() { return scheduler_->Matched(View("next", 10), 0); }
  // Lets the ranks end their saves, and the scheduler learn of it and tell others.
  void EndSaves() {
    Move();
    (void)Step();
    (void)Step();
    clock_.AdvanceNs(5 * kMillisecond);
  }
};

TEST_F(SavesUnderWayTest, ASaveIsAnnouncedBeforeItsStepIsComputed) {
  Compute("first", 0, 8, 1);
  EXPECT_TRUE(pool_.saves.empty());
  plan_ = scheduler_->BuildPlan(pins_);
  EXPECT_EQ(pool_.saves.size(), 4U) << "two chunks, each of two ranks";
  EXPECT_TRUE(pool_.values.empty());
}

TEST_F(SavesUnderWayTest, TheSavesOfAPlanAreAnnouncedTogether) {
  Compute("first", 0, 8, 1);
  Compute("second", 0, 16, 10);
  (void)Step(/*move=*/false);
  EXPECT_EQ(pool_.announcements, 1);
  EXPECT_EQ(pool_.saves.size(), 8U) << "four chunks, each of two ranks";
}

// A busy engine has another announcement whenever one has been made. The version of a request is
// bound all the same, by the same thread.
TEST_F(SavesUnderWayTest, AnnouncementsDoNotKeepVersionsFromBeingBound) {
  constexpr int kMost = 1000;
  options_.bind_in_thread = true;
  options_.versions = VersionSource::kSalt;
  Start();
  while (scheduler_->Matched(View("r", 10), 0).ask_again) {
  }
  std::atomic<int> announced = 0;
  std::atomic<bool> bound = false;
  std::atomic<bool> stopped = false;
  pool_.on_announce = [&] {
    if (bound || ++announced >= kMost) {
      stopped = true;
      return;
    }
    Compute("r" + std::to_string(announced), 0, 8, 10);
    (void)Step();
  };
  Compute("first", 0, 8, 1);
  std::vector<BlockId> pins;  // from here on that thread has the fixture's workers
  (void)scheduler_->BuildPlan(pins);
  while (announced < 10) std::this_thread::yield();
  while (scheduler_->Matched(View("s", 10, "salt"), 0).ask_again) {
  }
  bound = true;
  while (!stopped) std::this_thread::yield();  // it uses the scheduler until then
  EXPECT_LT(announced, kMost);
  scheduler_.reset();
}

// Savers store the newest request first, but not before what it follows.
TEST_F(SavesUnderWayTest, ASaveNamesTheOneThatItFollows) {
  ComputeAndDelaySave();
  const JobId first = plan_.saves.at(0).job;
  EXPECT_EQ(plan_.saves.at(0).behind, 0U);
  Compute("next", 8, 8, 1);
  (void)Step(/*move=*/false);
  EXPECT_EQ(plan_.saves.at(0).behind, first) << "the engine's own cache had the first turn";
  const JobId next = plan_.saves.at(0).job;
  Compute("next", 16, 4, 1, /*started=*/false);
  (void)Step(/*move=*/false);
  EXPECT_EQ(plan_.saves.at(0).behind, next);
  EndSaves();
  Compute("third", 16, 8, 1);
  (void)Step(/*move=*/false);
  EXPECT_EQ(plan_.saves.at(0).behind, 0U) << "that one has ended";
}

// NIXL, say, brings it from the engine that saves it, and sooner.
TEST_F(SavesUnderWayTest, ARequestThatAnotherConnectorServesDoesNotWait) {
  ComputeAndDelaySave();
  RequestView view = View("next", 10);
  view.waits_for_saves = false;
  const Match match = scheduler_->Matched(view, 0);
  EXPECT_FALSE(match.ask_again);
  EXPECT_EQ(match.tokens, 0U);
  EXPECT_EQ(scheduler_->stats().save_waits, 0U);
}

TEST_F(SavesUnderWayTest, TheNextTurnWaitsForTheSaveOfTheOneBefore) {
  ComputeAndDelaySave();
  EXPECT_TRUE(NextTurn().ask_again);
  EXPECT_TRUE(NextTurn().ask_again);
  EndSaves();
  const Match match = NextTurn();
  EXPECT_FALSE(match.ask_again);
  EXPECT_EQ(match.tokens, 8U);
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.save_waits, 1U);
  EXPECT_EQ(stats.save_wait_tokens, 8U);
  EXPECT_EQ(stats.save_waits_in_vain, 0U);
  EXPECT_EQ(stats.save_wait_ns, static_cast<std::uint64_t>(5 * kMillisecond));
  EXPECT_EQ(stats.lookup_timeouts, 0U);
}

TEST_F(SavesUnderWayTest, WithoutAWaitItIsAMissAsBefore) {
  options_.save_wait = std::chrono::milliseconds(0);
  Start();
  ComputeAndDelaySave();
  const Match match = NextTurn();
  EXPECT_FALSE(match.ask_again);
  EXPECT_EQ(match.tokens, 0U);
  EXPECT_EQ(scheduler_->stats().save_waits, 0U);
}

TEST_F(SavesUnderWayTest, NobodyWaitsForASaveThatWasDropped) {
  ComputeAndDelaySave();
  EXPECT_TRUE(NextTurn().ask_again);
  pool_.full = true;
  EndSaves();
  EXPECT_TRUE(pool_.saves.empty()) << "withdrawn with the step after the report";
  const Match match = NextTurn();
  EXPECT_FALSE(match.ask_again);
  EXPECT_EQ(match.tokens, 0U);
  EXPECT_EQ(scheduler_->stats().save_waits_in_vain, 1U);
}

TEST_F(SavesUnderWayTest, NobodyWaitsLongerThanItsTime) {
  ComputeAndDelaySave();
  EXPECT_TRUE(NextTurn().ask_again);
  clock_.AdvanceNs(199 * kMillisecond);
  EXPECT_TRUE(NextTurn().ask_again);
  clock_.AdvanceNs(kMillisecond);
  const Match match = NextTurn();
  EXPECT_FALSE(match.ask_again);
  EXPECT_EQ(match.tokens, 0U);
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.save_waits_in_vain, 1U);
  EXPECT_EQ(stats.lookup_timeouts, 0U) << "it was answered";
}

TEST_F(SavesUnderWayTest, AResetEndsTheWaitAndTheSave) {
  ComputeAndDelaySave();
  EXPECT_TRUE(NextTurn().ask_again);
  ASSERT_TRUE(scheduler_->Reset());
  Match match = NextTurn();
  for (int i = 0; i < 3 && match.ask_again; ++i) {  // its version is bound anew
    (void)Step(/*move=*/false);
    match = NextTurn();
  }
  EXPECT_FALSE(match.ask_again);
  EXPECT_EQ(match.tokens, 0U);
  EndSaves();
  EXPECT_EQ(NextTurn().tokens, 0U);
  EXPECT_TRUE(pool_.values.empty()) << "the pool refused what was computed before";
}

// A wait in vain must not cost more than half of what computing costs anyway.
TEST_F(SavesUnderWayTest, AWaitIsNoLongerThanHalfOfComputing) {
  options_.load_when = LoadWhen::kFaster;
  options_.costs.least_step_tokens = 4;
  Start();
  Compute("first", 0, 16, 1);
  plan_ = scheduler_->BuildPlan(pins_);
  for (auto& worker : workers_) worker->Begin(plan_);
  clock_.AdvanceNs(16 * kMillisecond);  // a millisecond a token
  for (auto& worker : workers_) worker->FinishStep({});
  for (auto& worker : workers_) scheduler_->OnReport(worker->TakeReport());
  ASSERT_EQ(scheduler_->stats().costs.token_ns, static_cast<std::uint64_t>(kMillisecond));
  EXPECT_TRUE(NextTurn().ask_again);
  clock_.AdvanceNs(4 * kMillisecond);  // it would compute 8 tokens
  EXPECT_FALSE(NextTurn().ask_again);
  EXPECT_EQ(scheduler_->stats().save_waits_in_vain, 1U);
}

}  // namespace
}  // namespace kvcove::connector
