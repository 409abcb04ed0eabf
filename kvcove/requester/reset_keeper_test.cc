// SPDX-License-Identifier: Apache-2.0
#include "kvcove/requester/reset_keeper.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "kvcove/base/interrupt_fixture.h"
#include "kvcove/base/log.h"
#include "kvcove/base/posix.h"
#include "kvcove/base/random.h"

namespace kvcove::requester {
namespace {

using std::chrono::milliseconds;
using Outcome = Result<wire::ResetOutcome>;

// A master as a session's resets see it: it can be cut off, and proves everything else.
class ResetMaster {
 public:
  Outcome Reset(const wire::ResetRequest& request, std::int64_t deadline_ns) {
    const MutexLock lock(mutex_);
    ++asked_;
    if (code_ != Code::kOk) return Fail(code_, "as told");
    if (SystemClock::Instance().NowNs() >= deadline_ns) return Fail(Code::kTimeout, "too late");
    proven_.push_back(request);
    return {};
  }
  void Answer(bool answers) { AnswerWith(answers ? Code::kOk : Code::kUnavailable); }
  void AnswerWith(Code code) {
    const MutexLock lock(mutex_);
    code_ = code;
  }
  int asked() const {
    const MutexLock lock(mutex_);
    return asked_;
  }
  std::vector<wire::ResetRequest> proven() const {
    const MutexLock lock(mutex_);
    return proven_;
  }
  // Everything of the namespace was voided for an engine that has other weights now.
  bool VoidedAll() const {
    return std::ranges::any_of(proven(), [](const wire::ResetRequest& request) {
      return request.version.value_or("").empty() && !request.engine.empty();
    });
  }

 private:
  mutable Mutex mutex_;
  Code code_ KVCOVE_GUARDED_BY(mutex_) = Code::kOk;
  int asked_ KVCOVE_GUARDED_BY(mutex_) = 0;
  std::vector<wire::ResetRequest> proven_ KVCOVE_GUARDED_BY(mutex_);
};

wire::ResetRequest EngineReset(std::optional<std::string> version = std::nullopt) {
  return {.name = "n", .engine = "e", .version = std::move(version), .id = RandomId()};
}

class ResetKeeperTest : public testing::Test {
 protected:
  bool OpensAgain() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (keeper_.closed() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return !keeper_.closed();
  }

  // Returns when the master has been asked `more` times from now on; the test's own limit ends it.
  void AwaitAsked(int more) {
    const int until = master_.asked() + more;
    while (master_.asked() < until) std::this_thread::yield();
  }
  // Returns when a reset that is repeated would have been, three times.
  static void AwaitRepetitions() {
    ResetMaster silent;
    silent.Answer(false);
    ResetKeeper other(
        "other",
        [&](const wire::ResetRequest& request, std::int64_t deadline_ns) {
          return silent.Reset(request, deadline_ns);
        },
        SystemClock::Instance());
    EXPECT_FALSE(other.Reset(EngineReset(), milliseconds(10)));
    while (silent.asked() < 4) std::this_thread::yield();  // the test's own limit ends it
  }

  ResetMaster master_;
  ResetKeeper keeper_{"n",
                      [this](const wire::ResetRequest& request, std::int64_t deadline_ns) {
                        return master_.Reset(request, deadline_ns);
                      },
                      SystemClock::Instance()};
};

TEST_F(ResetKeeperTest, AResetThatWasNotProvenIsRepeatedUnderItsId) {
  master_.Answer(false);
  const wire::ResetRequest request = EngineReset();
  EXPECT_EQ(keeper_.Reset(request, milliseconds(10)).error().code, Code::kNotProven);
  EXPECT_TRUE(keeper_.closed());
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_EQ(master_.proven().front().id, request.id);
}

// Nothing was voided, so the session is not as it was; and the answer would be the same again.
TEST_F(ResetKeeperTest, AResetThatIsRefusedClosesTheSessionAndIsNotRepeated) {
  for (const Code refused : {Code::kDenied, Code::kInvalid}) {
    master_.AnswerWith(refused);
    const int before = master_.asked();
    EXPECT_EQ(keeper_.Reset(EngineReset(), milliseconds(10)).error().code, refused);
    EXPECT_TRUE(keeper_.closed());
    AwaitRepetitions();
    EXPECT_EQ(master_.asked(), before + 1);
    master_.Answer(true);
    EXPECT_TRUE(keeper_.Reset(EngineReset(), milliseconds(30'000)));
    EXPECT_FALSE(keeper_.closed());
  }
}

// The token was changed meanwhile.
TEST_F(ResetKeeperTest, ARepetitionThatIsRefusedIsTheLastOne) {
  SetLogLevel(LogLevel::kOff);
  master_.Answer(false);
  EXPECT_EQ(keeper_.Reset(EngineReset(), milliseconds(10)).error().code, Code::kNotProven);
  master_.AnswerWith(Code::kDenied);
  const int before = master_.asked();
  while (master_.asked() == before) std::this_thread::yield();  // the test's own limit ends it
  AwaitRepetitions();
  EXPECT_LE(master_.asked(), before + 2) << "one may have been under way";
  EXPECT_TRUE(keeper_.closed());
  EXPECT_EQ(keeper_.Reset(EngineReset("v2"), milliseconds(10)).error().code, Code::kDenied);
  master_.Answer(true);
  EXPECT_TRUE(keeper_.Reset(EngineReset(), milliseconds(30'000)));
  EXPECT_FALSE(keeper_.closed());
  SetLogLevel(LogLevel::kWarn);
}

TEST_F(ResetKeeperTest, ALaterResetOfEverythingCoversAnEarlierOne) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset("v1"), milliseconds(10)));
  const wire::ResetRequest all = EngineReset();
  EXPECT_FALSE(keeper_.Reset(all, milliseconds(10)));
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

// A change of version erases nothing: what the earlier reset meant to void would still be found.
TEST_F(ResetKeeperTest, AChangeOfVersionThatIsProvenDoesNotStandForAnEarlierReset) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  master_.Answer(true);
  EXPECT_TRUE(keeper_.Reset(EngineReset("v2"), milliseconds(30'000)));
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

TEST_F(ResetKeeperTest, AChangeOfVersionThatIsNotProvenDoesNotReplaceAnEarlierReset) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  EXPECT_FALSE(keeper_.Reset(EngineReset("v2"), milliseconds(10)));
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

// Other engines follow an operator's reset at once, with whatever weights they have.
TEST_F(ResetKeeperTest, AnOperatorsResetDoesNotStandForAnEngines) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  master_.Answer(true);
  EXPECT_TRUE(keeper_.Reset({.name = "n", .engine = {}, .version = {}, .id = RandomId()},
                            milliseconds(30'000)));
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.VoidedAll());
}

// The master is there again within the caller's time.
TEST_F(ResetKeeperTest, ACallerWaitsForTheProofWhileNoMasterAnswers) {
  master_.Answer(false);
  const wire::ResetRequest request = EngineReset();
  std::thread caller([&] { EXPECT_TRUE(keeper_.Reset(request, milliseconds(600'000))); });
  AwaitAsked(3);
  EXPECT_TRUE(keeper_.closed());
  master_.Answer(true);
  caller.join();
  EXPECT_FALSE(keeper_.closed());
  ASSERT_EQ(master_.proven().size(), 1U);
  EXPECT_EQ(master_.proven().front().id, request.id);
  EXPECT_FALSE(master_.proven().front().late) << "resets for the same weights share a generation";
}

// Other engines may have newer weights by now.
TEST_F(ResetKeeperTest, ARepetitionIsLateOnceItsCallerHasGivenUp) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  AwaitAsked(2);  // the first of them may have begun before
  master_.Answer(true);
  ASSERT_TRUE(OpensAgain());
  EXPECT_TRUE(master_.proven().front().late);
}

// The earlier caller's time is over, not that of the later one.
TEST_F(ResetKeeperTest, ALaterCallerThatWaitsHasItsOwnTime) {
  master_.Answer(false);
  EXPECT_FALSE(keeper_.Reset(EngineReset(), milliseconds(10)));
  std::thread caller([&] { EXPECT_TRUE(keeper_.Reset(EngineReset(), milliseconds(600'000))); });
  AwaitAsked(4);
  master_.Answer(true);
  caller.join();
  EXPECT_FALSE(keeper_.closed());
}

// The master was reached: asking it again at once promises nothing.
TEST_F(ResetKeeperTest, ACallerDoesNotWaitAfterOtherErrors) {
  for (const Code code : {Code::kNotProven, Code::kTimeout, Code::kLimit}) {
    master_.AnswerWith(code);
    EXPECT_EQ(keeper_.Reset(EngineReset(), milliseconds(600'000)).error().code, Code::kNotProven);
  }
}

TEST_F(ResetKeeperTest, CallersThatWaitTogetherHaveOneProofOfWhatBothVoid) {
  master_.Answer(false);
  std::thread all([&] { EXPECT_TRUE(keeper_.Reset(EngineReset(), milliseconds(600'000))); });
  AwaitAsked(2);
  std::thread one([&] { EXPECT_TRUE(keeper_.Reset(EngineReset("v2"), milliseconds(600'000))); });
  AwaitAsked(3);
  master_.Answer(true);
  all.join();
  one.join();
  EXPECT_FALSE(keeper_.closed());
  EXPECT_TRUE(master_.VoidedAll());
}

TEST_F(ResetKeeperTest, ACallerThatWaitsIsAnsweredWithTheRefusal) {
  SetLogLevel(LogLevel::kOff);
  master_.Answer(false);
  std::thread caller([&] {
    EXPECT_EQ(keeper_.Reset(EngineReset(), milliseconds(600'000)).error().code, Code::kDenied);
  });
  AwaitAsked(3);
  master_.AnswerWith(Code::kDenied);
  caller.join();
  EXPECT_TRUE(keeper_.closed());
  SetLogLevel(LogLevel::kWarn);
}

// Calls Reset once, while the first attempt fails and the next one waits for a master that is away.
// True: when the call had its answer, an attempt that is not late was under way.
bool IsOutlived(milliseconds timeout) {
  std::atomic<int> asked{0};
  std::atomic<bool> sharing{false};
  ResetKeeper keeper(
      "n",
      [&](const wire::ResetRequest& request, std::int64_t deadline_ns) -> Outcome {
        if (++asked == 1) return Fail(Code::kUnavailable, "an election");
        sharing = !request.late;
        while (LeftNs(deadline_ns, SystemClock::Instance()) > 0) SleepNs(kMillisecond);
        sharing = false;
        return Fail(Code::kTimeout, "nobody answers");
      },
      SystemClock::Instance());
  EXPECT_EQ(keeper.Reset(EngineReset(), timeout).error().code, Code::kNotProven);
  return sharing;
}

// It would share a generation that others have raised for newer weights by then.
TEST(ResetKeeperAttemptTest, NoAttemptThatIsNotLateOutlivesItsCaller) {
  EXPECT_FALSE(IsOutlived(milliseconds(50)));
  const AskedInterrupt interrupt(/*ends_at=*/1);
  EXPECT_FALSE(IsOutlived(milliseconds(600'000)));
}

// The later call's reset is proven, so its engine may load newer weights.
TEST(ResetKeeperAttemptTest, NoAttemptThatIsNotLateOutlivesALaterCallThatProvesIt) {
  std::atomic<int> asked{0};
  std::atomic<bool> sharing{false};
  // Only the thread's attempt, the second one, waits for a master that is away.
  ResetKeeper keeper(
      "n",
      [&](const wire::ResetRequest& request, std::int64_t deadline_ns) -> Outcome {
        const int number = ++asked;
        if (number == 1) return Fail(Code::kUnavailable, "an election");
        if (number >= 3) return {};
        sharing = !request.late;
        while (LeftNs(deadline_ns, SystemClock::Instance()) > 0) SleepNs(kMillisecond);
        sharing = false;
        return Fail(Code::kTimeout, "nobody answers");
      },
      SystemClock::Instance());
  std::thread earlier([&] {
    EXPECT_TRUE(keeper.Reset(EngineReset(), milliseconds(600'000)));
    EXPECT_FALSE(sharing);
  });
  while (!sharing) std::this_thread::yield();
  EXPECT_TRUE(keeper.Reset(EngineReset(), milliseconds(600'000)));
  EXPECT_FALSE(sharing);
  earlier.join();
  EXPECT_FALSE(keeper.closed());
}

// A call joins while an earlier one gives up: the thread's next attempt is for the later call.
TEST(ResetKeeperAttemptTest, ACallThatGivesUpDoesNotWaitForAttemptsOfLaterOnes) {
  std::atomic<int> asked{0};
  std::atomic<bool> answered{false};
  std::atomic<bool> outlived{false};
  std::atomic<bool> begun{false};
  std::thread later;
  ResetKeeper* resets = nullptr;
  ResetKeeper keeper(
      "n",
      [&](const wire::ResetRequest& request, std::int64_t deadline_ns) -> Outcome {
        const auto wait = [&] {
          while (LeftNs(deadline_ns, SystemClock::Instance()) > 0 && !answered) {
            SleepNs(kMillisecond);
          }
        };
        switch (++asked) {
          case 1:  // the earlier call's, and the later one's
          case 3:
            return Fail(Code::kUnavailable, "an election");
          case 2:
            wait();
            // The pauses let the earlier call begin to give up, and the later one join. The test
            // passes with others, too.
            SleepNs(20 * kMillisecond);
            later = std::thread(
                [&] { EXPECT_TRUE(resets->Reset(EngineReset(), milliseconds(600'000))); });
            while (asked < 3) std::this_thread::yield();
            begun = true;
            SleepNs(20 * kMillisecond);
            return Fail(Code::kTimeout, "nobody answers");
          default:
            wait();
            if (!answered && !request.late) outlived = true;
            if (answered) return {};
            return Fail(Code::kTimeout, "nobody answers");
        }
      },
      SystemClock::Instance());
  resets = &keeper;
  EXPECT_EQ(keeper.Reset(EngineReset(), milliseconds(50)).error().code, Code::kNotProven);
  answered = true;
  while (!begun) std::this_thread::yield();
  later.join();
  EXPECT_FALSE(outlived) << "the call waited for the attempt of another one";
}

struct Repeated {
  std::vector<wire::ResetRequest> asked;
  std::vector<std::uint64_t> taken;  // unshared_ms of the proofs that were taken
};

// Resets once, while the first attempt reaches no master that answers. The repetition is proven
// under a generation that nobody has come to share for as long as `unshared_ms`, and one under
// another id under a generation that nobody shares.
Repeated RepeatedAfter(std::uint64_t unshared_ms) {
  Repeated repeated;
  std::vector<wire::ResetRequest>& asked = repeated.asked;
  std::atomic<bool> answered{false};
  ResetKeeper keeper(
      "n",
      [&](const wire::ResetRequest& request, std::int64_t) -> Outcome {
        asked.push_back(request);
        if (asked.size() == 1) return Fail(Code::kTimeout, "the master is frozen");
        // Else the caller might still take the proof.
        while (!answered) std::this_thread::yield();
        const bool same = request.id == asked.front().id;
        return wire::ResetOutcome{.unshared_ms =
                                      same ? unshared_ms : wire::ResetOutcome::kUnsharedMs};
      },
      SystemClock::Instance(),
      [&](const wire::ResetOutcome& outcome) {
        EXPECT_TRUE(keeper.closed());
        repeated.taken.push_back(outcome.unshared_ms);
      });
  EXPECT_EQ(keeper.Reset(EngineReset(), milliseconds(10)).error().code, Code::kNotProven);
  answered = true;
  while (keeper.closed()) std::this_thread::yield();  // the test's own limit ends it
  keeper.Stop();
  return repeated;
}

// The master was frozen, and carried the first attempt out long after its caller had an answer.
TEST(ResetKeeperAttemptTest, ALateProofOfAGenerationThatOthersMayShareIsNotTaken) {
  SetLogLevel(LogLevel::kOff);
  const auto [asked, taken] = RepeatedAfter(1);
  ASSERT_EQ(asked.size(), 3U);
  EXPECT_EQ(asked[1].id, asked[0].id) << "the master must know this one as decided";
  EXPECT_NE(asked[2].id, asked[0].id);
  EXPECT_TRUE(asked[2].late);
  EXPECT_EQ(taken, std::vector{wire::ResetOutcome::kUnsharedMs})
      << "the session would register under a generation of other weights";
  SetLogLevel(LogLevel::kWarn);
}

// The master decided while the caller waited, and the answer was lost.
TEST(ResetKeeperAttemptTest, ALateProofOfAGenerationThatNobodySharesSinceIsTaken) {
  SetLogLevel(LogLevel::kOff);
  EXPECT_EQ(RepeatedAfter(3'600'000).asked.size(), 2U);
  EXPECT_EQ(RepeatedAfter(0).asked.size(), 2U) << "a master of an earlier build does not say";
  SetLogLevel(LogLevel::kWarn);
}

// One of the callers tries to start the thread, at a moment when the others may look for it.
TEST(ResetKeeperAttemptTest, NoCallerWaitsForAThreadThatCannotBeStarted) {
  constexpr milliseconds kTimeout(30'000);
  SetLogLevel(LogLevel::kOff);
  RefuseThreadsAfter(0);
  for (int round = 0; round < 300 && !testing::Test::HasFailure(); ++round) {
    std::atomic<int> asked{0};
    ResetKeeper keeper(
        "n",
        [&](const wire::ResetRequest&, std::int64_t) -> Outcome {
          ++asked;
          while (asked < 4) std::this_thread::yield();
          return Fail(Code::kUnavailable, "an election");
        },
        SystemClock::Instance());
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        const auto until = std::chrono::steady_clock::now() + kTimeout;
        EXPECT_EQ(keeper.Reset(EngineReset(), kTimeout).error().code, Code::kNotProven);
        EXPECT_LT(std::chrono::steady_clock::now(), until) << "it has waited for its whole time";
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  RefuseThreadsAfter(-1);
  SetLogLevel(LogLevel::kWarn);
}

TEST(ResetKeeperAttemptTest, StopEndsAnAttemptThatIsUnderWay) {
  std::atomic<int> asked{0};
  std::atomic<bool> interrupted{false};
  // Proves nothing to the caller; waits for a master that is away when the thread asks.
  ResetKeeper keeper(
      "n",
      [&](const wire::ResetRequest&, std::int64_t deadline_ns) -> Outcome {
        if (++asked == 1) return Fail(Code::kNotProven, "not yet");
        while (LeftNs(deadline_ns, SystemClock::Instance()) > 0) SleepNs(kMillisecond);
        interrupted = Interrupt::Ended();
        return Fail(Code::kTimeout, "nobody answers");
      },
      SystemClock::Instance());
  EXPECT_FALSE(keeper.Reset(EngineReset(), milliseconds(10)));
  while (asked < 2) std::this_thread::yield();
  keeper.Stop();
  EXPECT_TRUE(interrupted) << "the session waited for the attempt's deadline";
}

}  // namespace
}  // namespace kvcove::requester
