// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/control/generation_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "kvcove/base/log.h"
#include "kvcove/master/store/fake_store.h"

namespace kvcove::master {
namespace {

constexpr std::int64_t kStart = kSecond;  // of the fake clock

// Owners that acknowledge when the test says so.
class FakeSink final : public GenerationSink {
 public:
  void Publish(const Id128& now, const std::vector<Generations::Published>& updates,
               Deferred& after) override {
    incarnation = now;
    ++publications;
    if (then) after.Add(then);
    for (const Generations::Published& published : updates) {
      if (!starts) {
        EXPECT_GE(published.revision, latest) << "an older generation follows a newer one";
      }
      latest = std::max(latest, published.revision);
      generations[published.update.slot] = published.update.generation;
    }
  }
  void SetUnnamed(std::vector<SlotId> slots, Deferred& after) override {
    unnamed = std::move(slots);
    if (then) after.Add(then);
  }
  void Await(std::int64_t deadline_ns, Reply<void> proven) override {
    if (acknowledges) return proven({});
    waiting.emplace_back(deadline_ns, std::move(proven));
  }
  void Acknowledge(Result<void> outcome = {}) {
    for (auto& [deadline, proven] : std::exchange(waiting, {})) proven(outcome);
  }

  bool starts = false;  // a master publishes all, in the order of their slots
  bool acknowledges = true;
  Id128 incarnation;
  std::size_t publications = 0;
  std::function<void()> then;  // what each publication leads to
  std::uint64_t latest = 0;
  std::map<SlotId, Generation> generations;
  std::vector<SlotId> unnamed;
  std::vector<std::pair<std::int64_t, Reply<void>>> waiting;
};

class GenerationKeeperTest : public testing::Test {
 protected:
  GenerationKeeperTest() { Make(0); }
  void Make(std::int64_t proven_from_ns) {
    StoredState state = Decode(store_.facts).value();
    if (!state.pool)
      state.pool = PoolFact{.pool = {.high = 1, .low = 1}, .incarnation = {.high = 2, .low = 2}};
    state.pool->unknown_leases = proven_from_ns != 0;
    keeper_ = std::make_unique<GenerationKeeper>(
        GenerationKeeper::Options{
            .generations = {}, .proven_from_ns = proven_from_ns, .log_resets = true},
        state, commits_, sink_, clock_);
    keeper_->Start();
  }
  // The call's answer, once it has come. An answer that comes twice fails the test.
  template <typename T>
  using Answer = std::shared_ptr<std::optional<Result<T>>>;
  template <typename T>
  static Reply<T> Into(const Answer<T>& answer) {
    return [answer](Result<T> result) {
      EXPECT_FALSE(answer->has_value()) << "answered twice";
      *answer = std::move(result);
    };
  }
  template <typename T>
  static Answer<T> New() {
    return std::make_shared<std::optional<Result<T>>>();
  }
  Answer<Registration> Register(const std::string& name, std::int64_t for_ns = kSecond) {
    const auto answer = New<Registration>();
    keeper_->Register({.name = name, .engine = "e", .follow_always = true}, clock_.NowNs() + for_ns,
                      Into(answer));
    return answer;
  }
  Answer<ResetOutcome> Reset(std::uint64_t id, const std::string& engine = "e", bool late = false,
                             std::int64_t for_ns = kSecond) {
    const auto answer = New<ResetOutcome>();
    keeper_->Reset(
        {.name = "m", .engine = engine, .version = {}, .id = {.high = 1, .low = id}, .late = late},
        clock_.NowNs() + for_ns, Into(answer));
    return answer;
  }
  void RegisterVersion(const std::string& version) {
    keeper_->Register({.name = "m", .version = version, .engine = "e"}, clock_.NowNs() + kSecond,
                      [](const Result<Registration>&) {});
  }
  Answer<PruneOutcome> Prune(const std::string& before, std::int64_t for_ns = kSecond) {
    const auto answer = New<PruneOutcome>();
    keeper_->Prune({.name = "m", .before = before}, clock_.NowNs() + for_ns, Into(answer));
    return answer;
  }
  void Pass(std::int64_t ns) {
    clock_.AdvanceNs(ns);
    keeper_->Tick();
  }
  static bool Ok(const auto& answer) { return answer->has_value() && answer->value().has_value(); }
  static Code CodeOf(const auto& answer) {
    if (!answer->has_value()) return Code::kInProgress;
    return answer->value() ? Code::kOk : answer->value().error().code;
  }

  FakeClock clock_;
  FakeStore store_;
  OrderedCommits commits_{store_, 0};
  FakeSink sink_;
  std::unique_ptr<GenerationKeeper> keeper_;
};

TEST_F(GenerationKeeperTest, NobodyLearnsOfAGenerationBeforeItIsStored) {
  store_.hangs = true;
  const auto answer = Register("m");
  EXPECT_FALSE(answer->has_value());
  EXPECT_TRUE(sink_.generations.empty());
  store_.Release();
  ASSERT_TRUE(Ok(answer));
  EXPECT_EQ(sink_.generations[(**answer)->slot], (**answer)->generation);
  EXPECT_EQ(Decode(store_.facts)->slots[0].fact.generation, (**answer)->generation);
}

TEST_F(GenerationKeeperTest, AResetIsTrueOnlyWhenOwnersHaveAcknowledged) {
  Register("m");
  sink_.acknowledges = false;
  const auto proven = Reset(1);
  EXPECT_FALSE(proven->has_value());
  sink_.Acknowledge();
  EXPECT_TRUE(Ok(proven));
  const auto late = Reset(2);
  sink_.Acknowledge(Fail(Code::kTimeout, "an owner is silent"));
  EXPECT_EQ(CodeOf(late), Code::kNotProven);
}

// how long it took, where the engine's log is not at hand.
TEST_F(GenerationKeeperTest, AProvenResetIsLoggedWithItsDuration) {
  Register("m");
  sink_.acknowledges = false;
  SetLogLevel(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  const auto proven = Reset(1);
  clock_.AdvanceNs(20 * kMillisecond);
  EXPECT_FALSE(proven->has_value());
  sink_.Acknowledge();
  EXPECT_TRUE(Ok(proven));
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::HasSubstr("reset of 'm' by engine 'e': proven in 20.0 ms; 1 generations ended"));
  SetLogLevel(LogLevel::kWarn);
}

TEST_F(GenerationKeeperTest, AResetThatRaisesNothingWaitsForOwnersToo) {
  Register("m");
  Reset(1);
  sink_.acknowledges = false;
  const auto shared = Reset(2);
  EXPECT_FALSE(shared->has_value());
  sink_.Acknowledge();
  ASSERT_TRUE(Ok(shared));
  EXPECT_EQ((**shared)->raised, 0U);
}

TEST_F(GenerationKeeperTest, ResetsThatWaitShareOneRaise) {
  Register("m");
  store_.hangs = true;
  const auto first = Register("other");  // keeps the store busy
  std::vector<Answer<ResetOutcome>> resets;
  for (std::uint64_t id = 1; id <= 8; ++id) resets.push_back(Reset(id));
  const std::size_t before = store_.commits;
  store_.Release();
  store_.Release();
  EXPECT_EQ(store_.commits, before + 1);
  for (const auto& reset : resets) EXPECT_TRUE(Ok(reset));
}

TEST_F(GenerationKeeperTest, ALateResetSharesNoRaiseAlsoWhenItWaitsWithOthers) {
  Register("m");
  store_.hangs = true;
  const auto first = Register("other");
  const auto newer = Reset(1, "newer");
  const auto late = Reset(2, "older", /*late=*/true);
  const auto another = Reset(3, "another");
  store_.hangs = false;
  store_.Release();
  for (const auto& reset : {newer, late, another}) EXPECT_TRUE(Ok(reset));
  EXPECT_EQ((**late)->raised, 1U) << "others may have raised it for newer weights";
}

TEST_F(GenerationKeeperTest, ARepetitionSaysForHowLongNobodyHasComeToShareItsGeneration) {
  Register("m");
  EXPECT_TRUE(Ok(Reset(1)));
  sink_.acknowledges = false;
  Pass(100 * kMillisecond);
  const auto again = Reset(1, "e", /*late=*/true);
  Pass(50 * kMillisecond);
  sink_.Acknowledge();
  ASSERT_TRUE(Ok(again));
  EXPECT_EQ((**again)->unshared_ms, 150U);
  const auto alone = Reset(2, "e", /*late=*/true);
  const auto repeated = Reset(2, "e", /*late=*/true);
  sink_.Acknowledge();
  for (const auto& answer : {alone, repeated}) {
    ASSERT_TRUE(Ok(answer));
    EXPECT_EQ((**answer)->unshared_ms, ResetOutcome::kUnsharedMs);
  }
}

TEST_F(GenerationKeeperTest, AStoreThatHangsHoldsNoCallBeyondItsDeadline) {
  Register("m");
  const Generation before = sink_.generations[0];
  store_.hangs = true;
  const auto storing = Reset(1);
  const auto waiting = Reset(2, "e", false, kSecond / 2);
  const auto registering = Register("other", kSecond / 2);
  Pass(kSecond / 2);
  EXPECT_FALSE(storing->has_value());
  EXPECT_EQ(CodeOf(waiting), Code::kNotProven);
  EXPECT_EQ(CodeOf(registering), Code::kTimeout);
  Pass(kSecond / 2);
  EXPECT_EQ(CodeOf(storing), Code::kNotProven);
  EXPECT_EQ(sink_.generations[0], before);
  store_.Release();
  EXPECT_NE(sink_.generations[0], before) << "what was being stored is carried out all the same";
  store_.hangs = false;
  const auto again = Reset(1);
  ASSERT_TRUE(Ok(again));
  EXPECT_EQ((**again)->raised, 0U) << "this id has raised";
}

TEST_F(GenerationKeeperTest, AfterAFailedCommitNothingHasChangedAndAllWorksAgain) {
  Register("m");
  const Generation before = sink_.generations[0];
  store_.failures = 2;
  const auto reset = Reset(1);
  EXPECT_EQ(CodeOf(reset), Code::kNotProven);
  const auto registered = Register("other");
  EXPECT_EQ(CodeOf(registered), Code::kUnavailable);
  EXPECT_FALSE(keeper_->Knows("other", ""));
  EXPECT_EQ(sink_.generations[0], before);
  const auto same = Reset(1);
  ASSERT_TRUE(Ok(same));
  EXPECT_EQ((**same)->raised, 1U) << "a reset that failed may be repeated under its id";
  EXPECT_TRUE(Ok(Register("other")));
}

TEST_F(GenerationKeeperTest, AResetWaitsForLeasesOfAMasterThatNobodyKnows) {
  Make(kStart + 2 * kSecond);
  Register("m");
  const auto patient = Reset(1, "e", false, 10 * kSecond);
  const auto hasty = Reset(2, "e", false, kSecond);
  EXPECT_EQ(CodeOf(hasty), Code::kNotProven);
  Pass(2 * kSecond - 1);
  EXPECT_FALSE(patient->has_value());
  Pass(1);
  EXPECT_TRUE(Ok(patient));
}

TEST_F(GenerationKeeperTest, OnceWaitedForUnknownLeasesAreNotWaitedForByTheNextMaster) {
  Make(kStart + 2 * kSecond);
  EXPECT_TRUE(keeper_->pool().unknown_leases);
  Pass(kSecond);
  EXPECT_TRUE(keeper_->pool().unknown_leases);
  store_.failures = 1;
  Pass(kSecond);
  Pass(kSecond);
  EXPECT_FALSE(keeper_->pool().unknown_leases);
  EXPECT_FALSE(Decode(store_.facts)->pool->unknown_leases);
}

TEST_F(GenerationKeeperTest, EndingCleanlyWaitsForNothingThatIsUnknown) {
  Make(kStart + 2 * kSecond);
  const auto done = New<void>();
  keeper_->EndCleanly(Into(done));
  ASSERT_TRUE(Ok(done));
  const PoolFact stored = *Decode(store_.facts)->pool;
  EXPECT_TRUE(stored.clean_end);
  EXPECT_TRUE(stored.unknown_leases) << "they may still run";
}

// ---- dead versions

TEST_F(GenerationKeeperTest, VersionsAreDeadOnlyOnceThatIsStoredAndOwnersHaveAcknowledged) {
  RegisterVersion("v1");
  RegisterVersion("v2");
  const std::map<SlotId, Generation> before = sink_.generations;
  store_.hangs = true;
  sink_.acknowledges = false;
  const auto pruned = Prune("v2");
  EXPECT_EQ(sink_.generations, before);
  EXPECT_TRUE(Decode(store_.facts)->pruned.empty());
  store_.Release();
  EXPECT_FALSE(pruned->has_value()) << "an owner may still show values";
  EXPECT_EQ(Decode(store_.facts)->pruned.size(), 1U);
  EXPECT_NE(sink_.generations[0], before.at(0));
  EXPECT_EQ(sink_.generations[1], before.at(1));
  sink_.Acknowledge();
  ASSERT_TRUE(Ok(pruned));
  EXPECT_EQ((**pruned)->versions, 1U);
  EXPECT_EQ(keeper_->versions().known, 2U);
  EXPECT_EQ(keeper_->versions().dead, 1U);
}

TEST_F(GenerationKeeperTest, ARegistrationThatWaitsBehindAPruneIsRefused) {
  RegisterVersion("v1");
  RegisterVersion("v2");
  store_.hangs = true;
  const auto pruned = Prune("v2");
  const auto late = New<Registration>();
  keeper_->Register({.name = "m", .version = "v1", .engine = "late"}, clock_.NowNs() + kSecond,
                    Into(late));
  store_.hangs = false;
  store_.Release();
  EXPECT_TRUE(Ok(pruned));
  EXPECT_EQ(CodeOf(late), Code::kDenied);
}

TEST_F(GenerationKeeperTest, APruneThatIsNotProvenMayBeRepeated) {
  RegisterVersion("v1");
  RegisterVersion("v2");
  store_.failures = 1;
  EXPECT_EQ(CodeOf(Prune("v2")), Code::kNotProven);
  EXPECT_EQ(keeper_->versions().dead, 0U);
  sink_.acknowledges = false;
  const auto silent = Prune("v2");
  sink_.Acknowledge(Fail(Code::kTimeout, "an owner is silent"));
  EXPECT_EQ(CodeOf(silent), Code::kNotProven);
  const std::size_t commits = store_.commits;
  const auto again = Prune("v2");
  EXPECT_FALSE(again->has_value()) << "a repetition waits for owners, too";
  sink_.Acknowledge();
  ASSERT_TRUE(Ok(again));
  EXPECT_EQ((**again)->versions, 0U);
  EXPECT_EQ(store_.commits, commits);
}

TEST_F(GenerationKeeperTest, TheNextMasterProvesAPruneWhoseAnswerWasLost) {
  RegisterVersion("v1");
  RegisterVersion("v2");
  sink_.acknowledges = false;
  const auto lost = Prune("v2");
  EXPECT_FALSE(lost->has_value());
  sink_.waiting.clear();
  sink_.acknowledges = true;
  sink_.starts = true;
  Make(kStart + 2 * kSecond);
  sink_.starts = false;
  EXPECT_EQ(CodeOf(Prune("v2")), Code::kNotProven) << "leases of before are running";
  const auto patient = Prune("v2", 10 * kSecond);
  Pass(2 * kSecond);
  EXPECT_TRUE(Ok(patient));
  EXPECT_EQ(keeper_->versions().dead, 1U);
}

TEST_F(GenerationKeeperTest, APruneThatNobodyMayMakeCostsNoCommit) {
  RegisterVersion("v1");
  const std::size_t before = store_.commits;
  for (const char* version : {"", "v2", "a\nb"}) {
    EXPECT_EQ(CodeOf(Prune(version)), Code::kInvalid) << version;
  }
  EXPECT_EQ(store_.commits, before);
}

TEST_F(GenerationKeeperTest, AStoreThatHangsHoldsNoPruneBeyondItsDeadline) {
  RegisterVersion("v1");
  RegisterVersion("v2");
  store_.hangs = true;
  const auto storing = Prune("v2");
  const auto waiting = Prune("v2", kSecond / 2);
  Pass(kSecond / 2);
  EXPECT_EQ(CodeOf(waiting), Code::kNotProven);
  Pass(kSecond / 2);
  EXPECT_EQ(CodeOf(storing), Code::kNotProven);
  store_.Release();
  EXPECT_EQ(keeper_->versions().dead, 1U) << "what was being stored is carried out all the same";
}

TEST_F(GenerationKeeperTest, AProvenPruneIsLogged) {
  RegisterVersion("v1");
  RegisterVersion("v2");
  SetLogLevel(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Ok(Prune("v2")));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("prune of 'm' before version 'v2': proven in 0.0 ms; 1 versions "
                                 "died, 1 generations ended"));
  SetLogLevel(LogLevel::kWarn);
}

// ---- the pool

TEST_F(GenerationKeeperTest, ANewIncarnationFreesEverySlot) {
  const auto before = Register("m");
  const auto done = New<void>();
  store_.hangs = true;
  keeper_->BeginIncarnation(1'000'000, Into(done));
  EXPECT_EQ(keeper_->pool().incarnation, (Id128{.high = 2, .low = 2})) << "it is not stored yet";
  store_.hangs = false;
  store_.Release();
  ASSERT_TRUE(Ok(done));
  EXPECT_NE(sink_.incarnation, (Id128{.high = 2, .low = 2}));
  EXPECT_EQ(keeper_->pool().incarnation, sink_.incarnation);
  EXPECT_EQ(Decode(store_.facts)->pool->incarnation, sink_.incarnation);
  EXPECT_EQ(sink_.generations[(**before)->slot], 0U);
  const auto after = Register("m");
  EXPECT_GT(Generations::CounterOf((**after)->generation), 1'000'000U);
  EXPECT_EQ((**after)->incarnation, sink_.incarnation);
}

TEST_F(GenerationKeeperTest, OwnersHearOfANewIncarnationAlsoWhenThereIsNoSlot) {
  const auto done = New<void>();
  keeper_->BeginIncarnation(0, Into(done));
  ASSERT_TRUE(Ok(done));
  EXPECT_EQ(sink_.incarnation, keeper_->pool().incarnation);
  EXPECT_NE(sink_.incarnation, (Id128{.high = 2, .low = 2}));
}

TEST_F(GenerationKeeperTest, AnIncarnationThatCouldNotBeStoredLeavesNoTrace) {
  Register("m");
  store_.hangs = true;
  const auto voided = New<void>();
  const auto adopted = New<void>();
  keeper_->BeginIncarnation(0, Into(voided));
  keeper_->AdoptPool({.high = 9, .low = 9}, Into(adopted));
  store_.RefuseOne();
  store_.hangs = false;
  store_.Release();
  EXPECT_EQ(CodeOf(voided), Code::kUnavailable);
  ASSERT_TRUE(Ok(adopted));
  const auto stored = Decode(store_.facts);
  EXPECT_EQ(stored->pool->pool, (Id128{.high = 9, .low = 9}));
  EXPECT_EQ(stored->pool->incarnation, (Id128{.high = 2, .low = 2})) << "its slots count still";
  EXPECT_EQ(keeper_->pool(), *stored->pool);
  EXPECT_FALSE(stored->slots[0].fact.free);
}

TEST_F(GenerationKeeperTest, APoolIdThatCouldNotBeStoredIsNotTaken) {
  store_.failures = 1;
  const auto adopted = New<void>();
  keeper_->AdoptPool({.high = 9, .low = 9}, Into(adopted));
  EXPECT_EQ(CodeOf(adopted), Code::kUnavailable);
  EXPECT_EQ(keeper_->pool().pool, (Id128{.high = 1, .low = 1}));
}

// ---- bounds and refusals

TEST_F(GenerationKeeperTest, TooManyWaitingCallsAreRefused) {
  store_.hangs = true;
  Register("first");
  for (int i = 0; i < 65536; ++i) Reset(static_cast<std::uint64_t>(i) + 1);
  EXPECT_EQ(CodeOf(Register("one more")), Code::kLimit);
  store_.hangs = false;
  store_.Release();
  EXPECT_TRUE(Ok(Register("again")));
}

TEST_F(GenerationKeeperTest, ARequestThatNobodyMayMakeCostsNoCommit) {
  const std::size_t before = store_.commits;
  EXPECT_EQ(CodeOf(Register("a\nb")), Code::kInvalid);
  const auto reset = New<ResetOutcome>();
  keeper_->Reset({.name = "m", .engine = "a\nb", .version = {}, .id = {.high = 1, .low = 1}},
                 clock_.NowNs() + kSecond, Into(reset));
  EXPECT_EQ(CodeOf(reset), Code::kInvalid);
  EXPECT_EQ(store_.commits, before);
}

TEST_F(GenerationKeeperTest, ARegistrationThatNeedsNoSlotCostsNoCommit) {
  Register("m");
  const std::size_t before = store_.commits;
  EXPECT_TRUE(Ok(Register("m")));
  EXPECT_EQ(store_.commits, before);
}

TEST_F(GenerationKeeperTest, WhatOwnersAreToldLeadsToRunsWithoutTheKeepersLock) {
  int runs = 0;
  sink_.then = [&] {
    ++runs;
    EXPECT_GE(keeper_->registrations(), 0U);  // takes the lock
  };
  ASSERT_TRUE(Ok(Register("m")));
  EXPECT_EQ(runs, 2) << "a slot, and its name";
  ASSERT_TRUE(Ok(Reset(1)));
  EXPECT_EQ(runs, 3);
  keeper_->EndEngine("m", "e", {});
  EXPECT_EQ(runs, 4);
}

TEST_F(GenerationKeeperTest, OwnersHearWhichVersionsNobodyUses) {
  const auto answer = New<Registration>();
  keeper_->Register({.name = "m", .version = "v", .engine = "e", .holder = {.high = 5, .low = 5}},
                    clock_.NowNs() + kSecond, Into(answer));
  Pass(Registrations::kHolderNs / 2);
  keeper_->Heard({.high = 5, .low = 5});
  for (int i = 0; i < 3; ++i) {
    Pass(Registrations::kHolderNs / 2);
    keeper_->Heard({.high = 5, .low = 5});
  }
  EXPECT_TRUE(sink_.unnamed.empty());
  Pass(Registrations::kHolderNs);
  EXPECT_EQ(sink_.unnamed, std::vector<SlotId>{(**answer)->slot});
  EXPECT_EQ(keeper_->registrations(), 0U);
}

}  // namespace
}  // namespace kvcove::master
