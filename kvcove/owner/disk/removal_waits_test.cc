// SPDX-License-Identifier: Apache-2.0
#include "kvcove/owner/disk/removal_waits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "kvcove/base/interrupt_fixture.h"
#include "tests/becomes.h"

namespace kvcove::owner {
namespace {

// Two disks that prove, miss and are struck as the test says.
class RemovalWaitsTest : public testing::Test {
 protected:
  static constexpr std::size_t kDisks = 2;

  ~RemovalWaitsTest() override { strikes_held_ = false; }

  // A removal with a part on the disks `on`.
  static std::shared_ptr<DisksRemoval> RemovalFrom(std::vector<std::size_t> on) {
    auto removal = std::make_shared<DisksRemoval>();
    removal->parts.resize(kDisks);
    for (const std::size_t disk : on) {
      removal->parts[disk] = std::make_shared<TierRemoval>();
      removal->parts[disk]->open = 1;
    }
    return removal;
  }
  // As OwnerDisks::AwaitRemoval.
  Status Look(DisksRemoval& removal) {
    Status outcome;
    removal.strikes.resize(kDisks);
    for (std::size_t i = 0; i < kDisks; ++i) {
      if (removal.parts[i] == nullptr || proven_[i]) continue;
      Status proven = Fail(Code::kTimeout, "open");
      if (missed_[i]) proven = strikes_.Prove(i, removal.strikes[i], /*within_ns=*/0);
      if (proven) removal.parts[i] = nullptr;
      if (!proven) outcome = proven;
    }
    return outcome;
  }
  bool StartStrikes() {
    return strikes_.Start([this](std::size_t disk) { return WriteStrike(disk); }).has_value();
  }
  // The janitor settles waits.
  bool SettlesTo(const std::shared_ptr<std::atomic<int>>& answer, int outcome) {
    return Becomes([&] {
      waits_.Settle();
      return *answer == outcome;
    });
  }
  Status WriteStrike(std::size_t disk) {
    ++begun_;
    while (strikes_held_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++struck_[disk];
    if (note_fails_) return Fail(Code::kUnavailable, "no space");
    return {};
  }
  // Adds a wait, and returns the place of its answer.
  std::shared_ptr<std::atomic<int>> Add(std::shared_ptr<DisksRemoval> removal,
                                        std::int64_t wait_ns = kSecond) {
    auto answer = std::make_shared<std::atomic<int>>(-1);
    waits_.Add(std::move(removal), clock_.NowNs() + wait_ns, [answer](const Status& outcome) {
      EXPECT_EQ(answer->load(), -1) << "answered twice";
      *answer = static_cast<int>(outcome ? Code::kOk : outcome.error().code);
    });
    return answer;
  }
  static constexpr int kWaits = -1;
  static constexpr int kProven = static_cast<int>(Code::kOk);
  static constexpr int kLate = static_cast<int>(Code::kTimeout);
  static constexpr int kGone = static_cast<int>(Code::kUnavailable);

  FakeClock clock_;
  std::atomic<bool> proven_[kDisks] = {false, false};
  std::atomic<bool> missed_[kDisks] = {false, false};
  std::atomic<bool> strikes_held_{false};
  std::atomic<bool> note_fails_{false};
  std::atomic<int> begun_{0};
  std::atomic<int> struck_[kDisks] = {0, 0};
  Strikes strikes_;
  RemovalWaits waits_{[this](DisksRemoval& removal) { return Look(removal); }, clock_};
};

TEST_F(RemovalWaitsTest, ARemovalIsAnsweredOnceAllItsDisksHaveProvenIt) {
  const auto both = Add(RemovalFrom({0, 1}));
  const auto second = Add(RemovalFrom({1}));
  EXPECT_EQ(waits_.size(), 2U);
  proven_[1] = true;
  waits_.Settle();
  EXPECT_EQ(*second, kProven);
  EXPECT_EQ(*both, kWaits);
  proven_[0] = true;
  waits_.Settle();
  EXPECT_EQ(*both, kProven);
  EXPECT_EQ(waits_.size(), 0U);
}

// Its disk was faster than the caller, so no Settle follows.
TEST_F(RemovalWaitsTest, ARemovalThatIsProvenAlreadyIsAnsweredWithinTheCall) {
  proven_[0] = true;
  EXPECT_EQ(*Add(RemovalFrom({0})), kProven);
  EXPECT_EQ(*Add(RemovalFrom({})), kProven);
}

TEST_F(RemovalWaitsTest, AWaitEndsAtItsDeadline) {
  const auto early = Add(RemovalFrom({0}), 10);
  const auto late = Add(RemovalFrom({0}), 20);
  clock_.AdvanceNs(9);
  waits_.Settle();
  EXPECT_EQ(*early, kWaits);
  clock_.AdvanceNs(1);
  waits_.Settle();
  EXPECT_EQ(*early, kLate);
  EXPECT_EQ(*late, kWaits);
}

TEST_F(RemovalWaitsTest, ARemovalThatADiskHasMissedIsProvenOnceTheDiskIsStruck) {
  ASSERT_TRUE(StartStrikes());
  const auto removal = RemovalFrom({0, 1});
  const auto answer = Add(removal);
  missed_[0] = true;
  waits_.Settle();
  ASSERT_TRUE(Becomes([&] { return struck_[0] == 1; }));
  EXPECT_EQ(*answer, kWaits) << "the other disk has not proven its part";
  proven_[1] = true;
  ASSERT_TRUE(SettlesTo(answer, kProven));
  EXPECT_EQ(removal->parts[0], nullptr);
  EXPECT_EQ(struck_[0], 1);
  EXPECT_EQ(struck_[1], 0);
}

TEST_F(RemovalWaitsTest, ADiskThatCannotBeStruckEndsTheWait) {
  ASSERT_TRUE(StartStrikes());
  note_fails_ = true;
  const auto answer = Add(RemovalFrom({1}));
  missed_[1] = true;
  waits_.Settle();
  EXPECT_TRUE(SettlesTo(answer, kGone));
}

// The file system of the note hangs.
TEST_F(RemovalWaitsTest, AStrikeThatHangsHoldsUpNoOtherWait) {
  ASSERT_TRUE(StartStrikes());
  strikes_held_ = true;
  missed_[0] = true;
  const auto missed = Add(RemovalFrom({0}), 100);
  const auto other = Add(RemovalFrom({1}));
  ASSERT_TRUE(Becomes([&] { return begun_ == 1; }));
  proven_[1] = true;
  waits_.Settle();
  EXPECT_EQ(*other, kProven);
  clock_.AdvanceNs(100);
  waits_.Settle();
  EXPECT_EQ(*missed, kLate);
  EXPECT_FALSE(strikes_.AwaitIdle(0));
  strikes_held_ = false;
  EXPECT_TRUE(strikes_.AwaitIdle(60 * kSecond));
}

// A signal ends a call of Python's, however late its deadline is.
TEST_F(RemovalWaitsTest, AnInterruptEndsTheWaitForAStrike) {
  ASSERT_TRUE(StartStrikes());
  strikes_held_ = true;
  std::shared_ptr<const Strike> strike;
  std::atomic<bool> ended{false};
  std::thread caller([&] {
    AskedInterrupt interrupt(/*ends_at=*/1);
    EXPECT_EQ(strikes_.Prove(0, strike, 600 * kSecond).error().code, Code::kTimeout);
    ended = true;
  });
  EXPECT_TRUE(Becomes([&] { return ended.load(); }));
  strikes_held_ = false;
  caller.join();
}

// The note may have named the disk again between the two.
TEST_F(RemovalWaitsTest, AStrikeProvesNoRemovalThatWasMissedLater) {
  ASSERT_TRUE(StartStrikes());
  strikes_held_ = true;
  missed_[0] = true;
  const auto first = Add(RemovalFrom({0}));
  ASSERT_TRUE(Becomes([&] { return begun_ == 1; }));
  const auto second = Add(RemovalFrom({0}));
  strikes_held_ = false;
  EXPECT_TRUE(SettlesTo(first, kProven));
  EXPECT_TRUE(SettlesTo(second, kProven));
  EXPECT_EQ(struck_[0], 2);
}

TEST_F(RemovalWaitsTest, EndAllEndsEachWaitAndLaterOnesWait) {
  const auto answer = Add(RemovalFrom({0}));
  waits_.EndAll();
  EXPECT_EQ(*answer, kLate);
  const auto later = Add(RemovalFrom({0}));
  EXPECT_EQ(*later, kWaits);
  proven_[0] = true;
  waits_.Settle();
  EXPECT_EQ(*later, kProven);
}

// The objects that the callback uses may end right after.
TEST_F(RemovalWaitsTest, EndAllWaitsForAnAnswerThatAnotherThreadGives) {
  std::atomic<bool> answering{false};
  std::atomic<bool> held{true};
  waits_.Add(RemovalFrom({0}), clock_.NowNs() + kSecond, [&](const Status&) {
    answering = true;
    while (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    answering = false;
  });
  proven_[0] = true;
  std::thread disk([&] { waits_.Settle(); });
  ASSERT_TRUE(Becomes([&] { return answering.load(); }));
  std::thread lets([&] { held = false; });
  waits_.EndAll();
  EXPECT_FALSE(answering);
  disk.join();
  lets.join();
}

// Its successor has the note.
TEST_F(RemovalWaitsTest, WhilePausedNothingWaitsAndNothingIsStruck) {
  ASSERT_TRUE(StartStrikes());
  const auto before = Add(RemovalFrom({0}));
  waits_.Pause();
  EXPECT_EQ(*before, kLate);
  missed_[0] = true;
  EXPECT_EQ(*Add(RemovalFrom({0})), kLate);
  EXPECT_TRUE(strikes_.AwaitIdle(0));
  waits_.Resume();
  EXPECT_EQ(begun_, 0);
  const auto after = Add(RemovalFrom({0}));
  EXPECT_TRUE(SettlesTo(after, kProven));
}

// The owner has left the disk behind, so a look at the removal finds no disk that must prove it.
TEST_F(RemovalWaitsTest, ARemovalThatBeginsAfterTheEndIsNotTakenForProven) {
  proven_[0] = true;
  waits_.Stop();
  EXPECT_EQ(*Add(RemovalFrom({0})), kLate);
}

TEST_F(RemovalWaitsTest, ABoundedNumberWaits) {
  for (std::size_t i = 0; i < RemovalWaits::kMost; ++i) {
    ASSERT_FALSE(waits_.Full());
    (void)Add(RemovalFrom({0}));
  }
  EXPECT_TRUE(waits_.Full());
  waits_.EndAll();
  EXPECT_FALSE(waits_.Full());
}

}  // namespace
}  // namespace kvcove::owner
