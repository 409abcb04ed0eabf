// SPDX-License-Identifier: Apache-2.0
#include "kvcove/connector/scheduler/lookup.h"

#include <gtest/gtest.h>

#include "kvcove/connector/test_store.h"

namespace kvcove::connector {
namespace {

constexpr std::chrono::milliseconds kHold{1000};

class LookupTest : public testing::Test {
 protected:
  void Use(std::vector<GroupShape> groups, std::uint32_t tp = 1) {
    shape_ = {.model = "m", .hash_tokens = 16, .tp = tp};
    shape_.groups = std::move(groups);
    ASSERT_TRUE(shape_.Check());
    keys_.emplace(shape_);
  }
  static std::string Hash(std::uint64_t i) { return "hash" + std::to_string(i); }
  // A chunk of a group, on all shards but `except`.
  void Have(std::uint32_t group, std::uint64_t chunk, std::size_t except = ~std::size_t{0}) {
    const std::uint64_t per = shape_.groups[group].chunk_tokens / shape_.hash_tokens;
    for (std::size_t t = 0; t < keys_->Tags(group).size(); ++t) {
      if (t == except) continue;
      std::string key;
      AppendKey(keys_->Tags(group)[t], Hash((chunk + 1) * per - 1), key);
      pool_.values[key] = "v";
    }
  }
  // A chunk of a group that an engine is saving, on all shards.
  void Coming(std::uint32_t group, std::uint64_t chunk) {
    const std::uint64_t per = shape_.groups[group].chunk_tokens / shape_.hash_tokens;
    for (const std::string& tag : keys_->Tags(group)) {
      std::string key;
      AppendKey(tag, Hash((chunk + 1) * per - 1), key);
      pool_.saves.insert(key);
    }
  }
  std::shared_ptr<Lookup> Ask(std::uint64_t tokens, std::uint64_t from = 0) {
    Lookup::Question question{.from_tokens = from,
                              .limit_tokens = tokens,
                              .drop_tokens = drop_,
                              .wait_until_ns = wait_until_ns_};
    for (std::uint64_t i = 0; i < tokens / 16; ++i) question.hashes.Add(Hash(i));
    return std::make_shared<Lookup>(shape_, *keys_, std::move(question));
  }
  std::uint64_t Hit(std::uint64_t tokens, std::uint64_t from = 0) {
    const auto lookup = Ask(tokens, from);
    EXPECT_TRUE(lookup->Step(store_, clock_, clock_.NowNs() + kSecond, kHold));
    return lookup->hit_tokens();
  }

  EngineShape shape_;
  std::uint64_t drop_ = 0;
  std::int64_t wait_until_ns_ = 0;
  std::optional<Keys> keys_;
  TestPool pool_;
  TestStore store_{pool_};
  FakeClock clock_;
};

TEST_F(LookupTest, TheLeadingRunThatAllShardsHave) {
  Use({{.heads = 8}}, 8);
  for (std::uint64_t c = 0; c < 20; ++c) Have(0, c);
  EXPECT_EQ(Hit(16 * 40), 16 * 20U);
  // One shard of one chunk is missing: what only rank 0 has is no hit.
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 20; ++c) Have(0, c, c == 7 ? 5 : ~std::size_t{0});
  EXPECT_EQ(Hit(16 * 40), 16 * 7U);
  EXPECT_EQ(Hit(16 * 40, 16 * 8), 16 * 20U);
}

TEST_F(LookupTest, StopsAtTheFirstMiss) {
  Use({{.heads = 8}}, 8);
  EXPECT_EQ(Hit(16 * 4096), 0U);
  EXPECT_EQ(pool_.asked, 8U);
}

TEST_F(LookupTest, AsksNothingForLessThanOneChunk) {
  Use({{}});
  EXPECT_EQ(Hit(15), 0U);
  EXPECT_EQ(pool_.asked, 0U);
}

TEST_F(LookupTest, GoesOnWhereItsBudgetEnded) {
  Use({{}});
  for (std::uint64_t c = 0; c < 100; ++c) Have(0, c);
  const auto lookup = Ask(1600);
  pool_.slow = true;
  EXPECT_FALSE(lookup->Step(store_, clock_, clock_.NowNs() + kMillisecond, kHold));
  pool_.slow = false;
  EXPECT_FALSE(lookup->Step(store_, clock_, clock_.NowNs(), kHold));  // no time at all
  EXPECT_TRUE(lookup->Step(store_, clock_, clock_.NowNs() + kMillisecond, kHold));
  EXPECT_EQ(lookup->hit_tokens(), 1600U);
}

TEST_F(LookupTest, ASlidingWindowNeedsItsLastChunksOnly) {
  Use({{.chunk_tokens = 16},
       {.kind = GroupKind::kWindow, .chunk_tokens = 16, .window_tokens = 33}});
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 10; ++c) Have(1, c);
  EXPECT_EQ(Hit(16 * 12), 16 * 10U);
  // A hole in the window: the hit ends where no window covers it.
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 9; ++c) Have(1, c);
  EXPECT_EQ(Hit(16 * 12), 16 * 9U);
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  Have(1, 0);
  Have(1, 1);
  Have(1, 9);
  EXPECT_EQ(Hit(16 * 12), 16 * 2U);
}

TEST_F(LookupTest, AStateIsNeededAtTheEndAlone) {
  Use({{.chunk_tokens = 16}, {.kind = GroupKind::kState, .chunk_tokens = 64}});
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  Have(1, 1);  // at 128 tokens
  EXPECT_EQ(Hit(16 * 16), 128U);
  Have(1, 3);
  EXPECT_EQ(Hit(16 * 16), 256U);
  pool_.values.erase(pool_.values.begin(), pool_.values.end());
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  EXPECT_EQ(Hit(16 * 16), 0U);
}

// A draft model that looks ahead has written into the last chunk of a prefix what follows another.
TEST_F(LookupTest, AHitEndsBeforeWhatADraftModelSpoiled) {
  Use({{}, {.kind = GroupKind::kWindow, .window_tokens = 32}});
  drop_ = 16;
  for (std::uint64_t c = 0; c < 10; ++c) Have(0, c);
  // The window's chunks are those of the end that is left, 144 tokens, not of 160.
  for (const std::uint64_t c : {7, 8}) Have(1, c);
  EXPECT_EQ(Hit(16 * 10), 16 * 9U);
  EXPECT_EQ(Hit(16 * 10, 16 * 9), 16 * 9U) << "nothing more";
  EXPECT_EQ(Hit(16), 0U);
}

TEST_F(LookupTest, AThreadGoesOnWhenTheBudgetIsSpent) {
  Use({{}});
  for (std::uint64_t c = 0; c < 100; ++c) Have(0, c);
  const auto runner =
      *RunInThread(store_, SystemClock::Instance(), kHold, std::chrono::milliseconds(200));
  pool_.slow = true;
  const auto lookup = Ask(1600);
  // It is not answered: given up after its timeout, and never waited for longer than the budget.
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; ++i) {
    ended = runner->Run(lookup, std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(ended);
  EXPECT_FALSE(lookup->done());
  pool_.slow = false;
  const auto again = Ask(1600);
  for (int i = 0; i < 1000 && !again->done(); ++i) {
    (void)runner->Run(again, std::chrono::milliseconds(5));
  }
  EXPECT_EQ(again->hit_tokens(), 1600U);
}

class LookupWaitTest : public LookupTest {
 protected:
  LookupWaitTest() { wait_until_ns_ = clock_.NowNs() + 200 * kMillisecond; }
  bool Step(Lookup& lookup) { return lookup.Step(store_, clock_, clock_.NowNs() + kSecond, kHold); }
  // Goes to the time at which it asks again, and lets it.
  bool StepAgain(Lookup& lookup) {
    EXPECT_GT(lookup.again_ns(), clock_.NowNs());
    clock_.AdvanceNs(lookup.again_ns() - clock_.NowNs());
    return Step(lookup);
  }
};

TEST_F(LookupWaitTest, AChunkThatIsBeingSavedIsWaitedFor) {
  Use({{.heads = 2}}, 2);
  for (std::uint64_t c = 0; c < 5; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 20; ++c) Coming(0, c);
  const auto lookup = Ask(16 * 40);
  EXPECT_FALSE(Step(*lookup));
  const std::uint64_t asked = pool_.asked;
  EXPECT_FALSE(Step(*lookup));
  EXPECT_EQ(pool_.asked, asked) << "not at once";
  for (std::uint64_t c = 5; c < 9; ++c) Have(0, c);
  EXPECT_FALSE(StepAgain(*lookup)) << "some have come";
  for (std::uint64_t c = 9; c < 20; ++c) Have(0, c);
  EXPECT_TRUE(StepAgain(*lookup));
  EXPECT_EQ(lookup->hit_tokens(), 16 * 20U);
  EXPECT_EQ(lookup->tiers()[static_cast<std::size_t>(Tier::kMemory)], 2 * 20U) << "each key once";
  EXPECT_EQ(lookup->waited().tokens, 16 * 15U);
  EXPECT_GE(lookup->waited().ns, 10 * kMillisecond);
}

TEST_F(LookupWaitTest, NothingIsWaitedForThatDoesNotCome) {
  Use({{.heads = 2}}, 2);
  for (std::uint64_t c = 0; c < 5; ++c) Have(0, c);
  EXPECT_EQ(Hit(16 * 10), 16 * 5U) << "nobody saves it";
  Coming(0, 5);
  pool_.saves.erase(pool_.saves.begin());  // of one shard: its rank has given up
  EXPECT_EQ(Hit(16 * 10), 16 * 5U);
  Coming(0, 5);
  const auto dropped = Ask(16 * 10);
  EXPECT_FALSE(Step(*dropped));
  pool_.saves.clear();
  EXPECT_TRUE(StepAgain(*dropped));
  EXPECT_EQ(dropped->hit_tokens(), 16 * 5U);
  EXPECT_EQ(dropped->waited().tokens, 0U);
  EXPECT_GT(dropped->waited().ns, 0);
}

TEST_F(LookupWaitTest, AWaitEndsAtItsTimeWithWhatThereIs) {
  Use({{}});
  for (std::uint64_t c = 0; c < 5; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 20; ++c) Coming(0, c);
  const auto lookup = Ask(16 * 20);
  EXPECT_FALSE(Step(*lookup));
  Have(0, 5);
  std::size_t questions = 1;
  while (questions < 1000 && !StepAgain(*lookup)) ++questions;
  EXPECT_EQ(clock_.NowNs(), wait_until_ns_);
  EXPECT_EQ(lookup->hit_tokens(), 16 * 6U);
  EXPECT_LT(questions, 20U) << "pauses get longer while nothing comes";
  wait_until_ns_ = 0;
  EXPECT_EQ(Hit(16 * 20), 16 * 6U) << "one that may not wait";
}

TEST_F(LookupWaitTest, AWindowAndAStateAreWaitedForToo) {
  Use({{.chunk_tokens = 16}, {.kind = GroupKind::kState, .chunk_tokens = 64}});
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  Have(1, 1);
  Coming(1, 3);
  const auto lookup = Ask(16 * 16);
  EXPECT_FALSE(Step(*lookup));
  Have(1, 3);
  EXPECT_TRUE(StepAgain(*lookup));
  EXPECT_EQ(lookup->hit_tokens(), 256U);
  // In vain: the hit ends at the state before it.
  pool_.values.clear();
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  Have(1, 1);
  const auto vain = Ask(16 * 16);
  while (!Step(*vain))
    clock_.AdvanceNs(std::max<std::int64_t>(vain->again_ns() - clock_.NowNs(), 1));
  EXPECT_EQ(vain->hit_tokens(), 128U);
}

// A busy pool must not make the wait longer than it may be, nor take what was found before.
TEST_F(LookupWaitTest, AWaitEndsAtItsTimeAlsoWithoutAnAnswer) {
  Use({{}});
  for (std::uint64_t c = 0; c < 5; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 20; ++c) Coming(0, c);
  pool_.on_slow = [&](std::chrono::milliseconds timeout) {
    clock_.AdvanceNs(timeout.count() * kMillisecond);
  };
  const auto lookup = Ask(16 * 20);
  EXPECT_FALSE(Step(*lookup));
  pool_.slow = true;
  EXPECT_TRUE(StepAgain(*lookup));
  EXPECT_EQ(clock_.NowNs(), wait_until_ns_);
  EXPECT_TRUE(lookup->done());
  EXPECT_EQ(lookup->hit_tokens(), 16 * 5U);
  EXPECT_EQ(lookup->waited().ns, 200 * kMillisecond);
}

// Of a window or a state it is not known whether the hit's end has it.
TEST_F(LookupWaitTest, AWaitWithoutAnAnswerFindsNothingThatOtherGroupsNeed) {
  Use({{.chunk_tokens = 16}, {.kind = GroupKind::kState, .chunk_tokens = 64}});
  for (std::uint64_t c = 0; c < 16; ++c) Have(0, c);
  Have(1, 1);
  Coming(1, 3);
  pool_.on_slow = [&](std::chrono::milliseconds timeout) {
    clock_.AdvanceNs(timeout.count() * kMillisecond);
  };
  const auto lookup = Ask(16 * 16);
  EXPECT_FALSE(Step(*lookup));
  pool_.slow = true;
  EXPECT_TRUE(StepAgain(*lookup));
  EXPECT_EQ(lookup->hit_tokens(), 0U);
}

// The runner would give it up, and with it what was found.
TEST_F(LookupWaitTest, AQuestionWithoutAnAnswerIsAskedAgain) {
  Use({{}});
  for (std::uint64_t c = 0; c < 5; ++c) Have(0, c);
  for (std::uint64_t c = 5; c < 20; ++c) Coming(0, c);
  const auto lookup = Ask(16 * 20);
  EXPECT_FALSE(Step(*lookup));
  pool_.slow = true;
  EXPECT_FALSE(StepAgain(*lookup));
  EXPECT_GT(lookup->again_ns(), clock_.NowNs());
  pool_.slow = false;
  for (std::uint64_t c = 5; c < 20; ++c) Have(0, c);
  EXPECT_TRUE(StepAgain(*lookup));
  EXPECT_EQ(lookup->hit_tokens(), 16 * 20U);
}

// Its last question is answered in time: it begins as long before the end as answers take, twice.
TEST_F(LookupWaitTest, TheLastQuestionLeavesTimeForItsAnswer) {
  Use({{}});
  Have(0, 0);
  for (std::uint64_t c = 1; c < 20; ++c) Coming(0, c);
  pool_.clock = &clock_;
  pool_.exists_ns = 30 * kMillisecond;
  const auto lookup = Ask(16 * 20);
  EXPECT_FALSE(Step(*lookup));
  std::size_t questions = 1;
  while (questions < 100 && !StepAgain(*lookup)) ++questions;
  EXPECT_LE(clock_.NowNs(), wait_until_ns_);
  EXPECT_GT(clock_.NowNs(), wait_until_ns_ - 60 * kMillisecond);
  EXPECT_EQ(lookup->hit_tokens(), 16U);
}

// The wait is over, and each answer still finds more: nothing is being waited for.
TEST_F(LookupWaitTest, WhatIsThereIsFoundToItsEndAlsoAfterTheWait) {
  Use({{}});
  Have(0, 0);
  for (std::uint64_t c = 1; c < 400; ++c) Coming(0, c);
  pool_.clock = &clock_;
  pool_.exists_ns = 10 * kMillisecond;
  pool_.on_exists = [&](std::chrono::milliseconds timeout) {
    return timeout >= std::chrono::milliseconds(10);
  };
  const auto lookup = Ask(16 * 400);
  EXPECT_FALSE(Step(*lookup));
  // The last question of the wait finds all of its window.
  while (lookup->again_ns() + 20 * kMillisecond < wait_until_ns_) {
    ASSERT_FALSE(StepAgain(*lookup));
  }
  for (std::uint64_t c = 1; c < 400; ++c) Have(0, c);
  EXPECT_TRUE(StepAgain(*lookup));
  EXPECT_GT(clock_.NowNs(), wait_until_ns_);
  EXPECT_EQ(lookup->hit_tokens(), 16 * 400U);
}

// The requests of a step share its time, and most answers to a look-up that waits are "not yet".
TEST_F(LookupWaitTest, ALookUpThatWaitsTakesLittleOfAStep) {
  Use({{}});
  Have(0, 0);
  Coming(0, 1);
  const auto runner = RunHere(store_, clock_, kHold);
  const auto lookup = Ask(16 * 2);
  EXPECT_FALSE(runner->Run(lookup, std::chrono::milliseconds(5)));
  EXPECT_EQ(pool_.exists_timeout, std::chrono::milliseconds(4));
  clock_.AdvanceNs(lookup->again_ns() - clock_.NowNs());
  EXPECT_FALSE(runner->Run(lookup, std::chrono::milliseconds(5)));
  EXPECT_EQ(pool_.exists_timeout, std::chrono::milliseconds(1));
}

TEST_F(LookupWaitTest, AThreadsSchedulerIsNotHeldWhileALookUpWaits) {
  Use({{}});
  Coming(0, 0);
  const Clock& clock = SystemClock::Instance();
  wait_until_ns_ = clock.NowNs() + 600 * kSecond;
  const auto runner = *RunInThread(store_, clock, kHold, std::chrono::milliseconds(600'000));
  const auto lookup = Ask(16);
  const auto waits = [&] {
    const MutexLock lock(pool_.mutex);
    return pool_.asked;
  };
  // Each call looks for an answer that is there, or returns: no call waits for the budget.
  // A scheduler computes between two steps; without a pause the thread would hardly get the lock.
  while (waits() < 3) {
    ASSERT_FALSE(runner->Run(lookup, std::chrono::milliseconds(600'000)));
    SleepNs(kMillisecond);
  }
  {
    const MutexLock lock(pool_.mutex);
    Have(0, 0);
  }
  while (!runner->Run(lookup, std::chrono::milliseconds(1))) SleepNs(kMillisecond);
  EXPECT_TRUE(lookup->done());
  EXPECT_EQ(lookup->hit_tokens(), 16U);
}

}  // namespace
}  // namespace kvcove::connector
