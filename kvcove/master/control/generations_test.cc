// SPDX-License-Identifier: Apache-2.0
// Which generation a namespace has, and which engines may work under it. Slots:
// generations_slots_test.cc.
#include "kvcove/master/control/generations.h"

#include <gtest/gtest.h>

#include "kvcove/master/control/generations_fixture.h"

namespace kvcove::master {
namespace {

class GenerationsTest : public GenerationsFixture {};

// ---- as an operator sees them

TEST_F(GenerationsTest, AnEngineThatFindsAndStoresIsListedAsOpen) {
  const auto open = [&] {
    std::map<std::string, bool> engines;
    for (const EngineDescription& engine : generations_->Engines(10)) {
      engines[engine.engine] = engine.open;
    }
    return engines;
  };
  Register("versioned", "v1");
  Register("follower", "", /*follow=*/true);
  Register("a");
  Register("b");
  EXPECT_EQ(open(), (std::map<std::string, bool>{
                        {"versioned", true}, {"follower", true}, {"a", true}, {"b", true}}));
  Reset("a");
  EXPECT_TRUE(open()["a"]);
  EXPECT_FALSE(open()["b"]) << "a's reset closed it, whether it has asked since or not";
  EXPECT_TRUE(open()["versioned"]);
  EXPECT_TRUE(open()["follower"]);
  EXPECT_EQ(generations_->Engines(2).size(), 2U);
}

// ---- resets that share a raise

TEST_F(GenerationsTest, AResetGivesAUsedNamespaceAnotherGeneration) {
  const Generation before = Register("a").generation;
  EXPECT_EQ(Reset("a"), 1U);
  const Registration after = Register("a");
  EXPECT_NE(after.generation, before);
  EXPECT_TRUE(after.open);
}

TEST_F(GenerationsTest, EnginesThatResetBeforeAnyWorksShareOneGeneration) {
  for (const char* engine : {"a", "b", "c"}) Register(engine);
  EXPECT_EQ(Reset("a"), 1U);
  EXPECT_EQ(Reset("b"), 0U);
  EXPECT_EQ(Reset("c"), 0U);
  const Generation shared = Register("a").generation;
  for (const char* engine : {"b", "c"}) {
    EXPECT_TRUE(Register(engine).open);
    EXPECT_EQ(Register(engine).generation, shared);
  }
}

TEST_F(GenerationsTest, OnceWorkBeganUnderItAGenerationIsRaisedAgain) {
  Register("a");
  Register("b");
  Reset("a");
  Register("a");  // schedules work: the new generation is used
  EXPECT_EQ(Reset("b"), 1U);
  EXPECT_FALSE(Register("a").open) << "b's weights may differ from a's";
}

TEST_F(GenerationsTest, UsedIsForEverEvenWhenTheEngineEnds) {
  Register("a");
  generations_->EndEngine("model", "a", {});
  EXPECT_EQ(Reset(""), 1U);
}

TEST_F(GenerationsTest, ALateResetSharesNoGenerationThatOthersRaised) {
  EXPECT_TRUE(Register("a").open);
  EXPECT_EQ(Reset("a"), 1U);
  const Generation raised = Current();
  EXPECT_EQ(Reset("b"), 0U);  // shared
  EXPECT_EQ(Reset("c", std::nullopt, 0, /*late=*/true), 1U);
  EXPECT_NE(Current(), raised);
  EXPECT_EQ(Reset("d"), 1U);
  EXPECT_FALSE(Register("c").open);
  EXPECT_EQ(Reset("c", std::nullopt, 0, /*late=*/true), 1U);
  EXPECT_FALSE(Register("a").open);
  EXPECT_TRUE(Register("c").open);
}

// ---- closed and open

TEST_F(GenerationsTest, AnotherEnginesResetClosesASessionUntilItResetsToo) {
  Register("a");
  Register("b");
  Reset("a");
  EXPECT_FALSE(Register("b").open);
  EXPECT_FALSE(Register("b").open);
  Reset("b");
  EXPECT_TRUE(Register("b").open);
}

TEST_F(GenerationsTest, AClosedRegistrationDoesNotUseAGeneration) {
  Register("a");
  Register("b");
  Reset("a");
  EXPECT_FALSE(Register("b").open);
  EXPECT_EQ(Reset("b"), 0U);
}

TEST_F(GenerationsTest, AnOperatorsResetIsFollowedAtOnce) {
  const Generation before = Register("a").generation;
  Register("b");
  EXPECT_EQ(Reset(""), 1U);
  EXPECT_TRUE(Register("a").open);
  EXPECT_TRUE(Register("b").open);
  EXPECT_NE(Register("a").generation, before);
}

TEST_F(GenerationsTest, AnEnginesResetClosesOthersAlsoWhenItSharesAnOperatorsRaise) {
  Register("a");
  Register("b");
  EXPECT_EQ(Reset(""), 1U);
  EXPECT_EQ(Reset("a"), 0U) << "nobody has worked under it";
  EXPECT_TRUE(Register("a").open);
  EXPECT_FALSE(Register("b").open) << "it would store values of other weights beside a's";
}

TEST_F(GenerationsTest, AFollowerIsNeverClosed) {
  Register("a");
  Register("b", "", /*follow=*/true);
  Reset("a");
  EXPECT_TRUE(Register("b", "", /*follow=*/true).open);
}

TEST_F(GenerationsTest, ANewEngineOnANamespaceThatEnginesResetStartsClosed) {
  Register("a");
  Reset("a");
  EXPECT_FALSE(Register("new").open);
  EXPECT_TRUE(Register("vouching", "", false, /*assume=*/true).open);
  Reset("new");
  EXPECT_TRUE(Register("new").open);
}

TEST_F(GenerationsTest, ARepeatedResetDoesNotOpenWhatAnotherEnginesResetHasClosed) {
  EXPECT_TRUE(Register("a").open);
  EXPECT_TRUE(Register("b").open);
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);  // its answer is lost
  EXPECT_TRUE(Register("b").open);
  EXPECT_EQ(Reset("a"), 1U);  // newer weights
  EXPECT_TRUE(Register("a").open);
  EXPECT_EQ(Reset("b", std::nullopt, 77, /*late=*/true), 0U);
  EXPECT_FALSE(Register("b").open);
}

// A master that was frozen carries out a reset whose caller has an answer already.
TEST_F(GenerationsTest, ARepetitionLearnsThatAStaleAttemptShares) {
  Register("a");
  Register("b");
  EXPECT_EQ(Reset("a"), 1U);  // newer weights
  now_ += kSecond;
  EXPECT_EQ(Reset("b", std::nullopt, 77), 0U);  // stale
  now_ += kSecond;
  const ResetRequest again = Request("b", std::nullopt, 77, /*late=*/true);
  EXPECT_EQ(generations_->SharedNs(again), now_ - kSecond);
  EXPECT_EQ(ResetAll({again}), 0U);
  EXPECT_EQ(Reset("b", std::nullopt, 78, /*late=*/true), 1U) << "so the session asks for its own";
  EXPECT_TRUE(Register("b").open);
  EXPECT_FALSE(Register("a").open);
  const ResetRequest own = Request("b", std::nullopt, 78, /*late=*/true);
  EXPECT_EQ(generations_->SharedNs(own), Generations::kUnshared);
}

TEST_F(GenerationsTest, ARepetitionLearnsWhenAnotherEngineCameToShareItsGeneration) {
  Register("a");
  Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);  // its answer is lost
  const ResetRequest again = Request("b", std::nullopt, 77, /*late=*/true);
  EXPECT_EQ(generations_->SharedNs(again), now_);
  now_ += kSecond;
  EXPECT_EQ(Reset(""), 0U);
  EXPECT_EQ(generations_->SharedNs(again), now_ - kSecond) << "an operator has no weights";
  EXPECT_EQ(Reset("a"), 0U);
  EXPECT_EQ(generations_->SharedNs(again), now_);
  Register("a");
  now_ += kSecond;
  EXPECT_EQ(Reset("a"), 1U);
  EXPECT_EQ(generations_->SharedNs(again), Generations::kUnshared) << "b is closed, and stays so";
}

// It says nothing about weights, and all engines that share its generation follow it.
TEST_F(GenerationsTest, AnOperatorsRepetitionMindsNobodyWhoSharesItsGeneration) {
  Register("a");
  EXPECT_EQ(Reset("", std::nullopt, 77), 1U);
  EXPECT_EQ(Reset("a"), 0U);
  const ResetRequest again = Request("", std::nullopt, 77, /*late=*/true);
  EXPECT_EQ(generations_->SharedNs(again), Generations::kUnshared);
  EXPECT_EQ(ResetAll({again}), 0U);
  EXPECT_EQ(Reset("b"), 0U) << "others may share it still";
}

TEST_F(GenerationsTest, NobodyComesToShareAGenerationThatALateRepetitionHasProven) {
  Register("a");
  Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  EXPECT_EQ(Reset("b", std::nullopt, 77, /*late=*/true), 0U);
  EXPECT_EQ(Reset("a"), 1U);
  EXPECT_FALSE(Register("b").open);
}

TEST_F(GenerationsTest, AfterARestartAnyGenerationMayHaveBeenSharedUntilThen) {
  Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  now_ += kSecond;
  Restart();
  EXPECT_EQ(generations_->SharedNs(Request("b", std::nullopt, 77, /*late=*/true)), now_);
}

// The engine's registration for a version says nothing about its session without one.
TEST_F(GenerationsTest, AfterARestartAVersionDoesNotHideThatAGenerationMayHaveBeenShared) {
  Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  now_ += kSecond;
  Restart();
  Register("b", "v1");
  EXPECT_EQ(generations_->SharedNs(Request("b", std::nullopt, 77, /*late=*/true)), now_);
}

// Its session may not take the proof, while other processes of the engine have the former weights.
TEST_F(GenerationsTest, AfterARestartARepetitionOpensOnlyTheSessionThatTakesItsProof) {
  const Registration before = Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  for (const bool other_process_first : {false, true}) {
    Restart();
    RegisterRequest other{.name = name_,
                          .version = {},
                          .engine = "b",
                          .last_incarnation = before.incarnation,
                          .last_generation = before.generation,
                          .holder = {}};
    if (other_process_first) {
      EXPECT_FALSE(Register(other).open);
    }
    EXPECT_EQ(Reset("b", std::nullopt, 77, /*late=*/true), 0U);
    EXPECT_FALSE(Register(other).open);
    RegisterRequest own = other;
    own.last_generation = generations_->BoundTo(name_, "b");
    EXPECT_TRUE(Register(own).open);
    EXPECT_TRUE(Register(other).open) << "the engine has reset";
  }
}

TEST_F(GenerationsTest, AnEngineThatRegistersForASlotsNewLifeMayShareIt) {
  Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  Restart();
  const Generations::Plan plan = generations_->PlanVoid();
  generations_->Void({.high = 2, .low = 2}, plan, Store(plan.changes));
  const ResetRequest again = Request("b", std::nullopt, 77, /*late=*/true);
  EXPECT_EQ(generations_->SharedNs(again), Generations::kUnshared) << "there is none";
  now_ += kSecond;
  EXPECT_TRUE(Register("a", "", /*follow=*/true).open);
  EXPECT_EQ(generations_->SharedNs(again), now_);
}

TEST_F(GenerationsTest, AfterARestartARepetitionDoesNotOpenWhatAResetHasClosedSince) {
  const Registration before = Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  Restart();
  EXPECT_FALSE(Register({.name = name_,
                         .version = {},
                         .engine = "b",
                         .last_incarnation = before.incarnation,
                         .last_generation = before.generation,
                         .holder = {}})
                   .open);
  EXPECT_EQ(Reset("a"), 1U);  // newer weights
  const ResetRequest again = Request("b", std::nullopt, 77, /*late=*/true);
  EXPECT_EQ(generations_->SharedNs(again), Generations::kUnshared);
  EXPECT_EQ(ResetAll({again}), 0U);
  EXPECT_EQ(generations_->BoundTo(name_, "b"), 0U);
  EXPECT_FALSE(Register("b").open);
}

// The session has no generation to show: its reset is proven, and opens nothing.
TEST_F(GenerationsTest, AfterARestartAnEngineThatStaysClosedOpensWithItsNextReset) {
  Register("b");
  EXPECT_EQ(Reset("b", std::nullopt, 77), 1U);
  Restart();
  EXPECT_EQ(Reset("a"), 1U);
  EXPECT_EQ(Reset("b", std::nullopt, 77, /*late=*/true), 0U);
  EXPECT_FALSE(Register("b", "", /*follow=*/false, /*assume=*/true).open);
  EXPECT_EQ(Reset("b"), 0U);
  EXPECT_TRUE(Register("b").open);
}

// ---- weight versions

TEST_F(GenerationsTest, AChangeOfVersionErasesNothing) {
  const Registration one = Register("a", "v1");
  const Registration two = Register("b", "v2");  // b has updated already
  EXPECT_EQ(Reset("a", "v2"), 0U) << "a changes to v2";
  EXPECT_EQ(Register("a", "v1").generation, one.generation);
  EXPECT_EQ(Register("a", "v2").generation, two.generation);
  EXPECT_EQ(Reset("a", "v2"), 1U) << "now it is the current one";
  EXPECT_EQ(Register("a", "v1").generation, one.generation);
}

// A session registers first, but another process of the engine, or one that repeats its
// registrations to a new master, may register for another version before the reset arrives.
TEST_F(GenerationsTest, AResetOfAVersionThatItsEngineHasRegisteredVoidsItWhateverCameBetween) {
  const Registration one = Register("a", "v1");
  const Registration two = Register("a", "v2");
  ResetRequest request = Request("a", "v1", 0, /*late=*/false);
  request.registered = true;
  EXPECT_EQ(ResetAll({request}), 1U);
  EXPECT_EQ(ResetAll({request}), 0U) << "the same id raises at most once";
  EXPECT_NE(Register("a", "v1").generation, one.generation);
  EXPECT_EQ(Register("a", "v2").generation, two.generation);
}

TEST_F(GenerationsTest, AResetWithoutVersionVoidsAllVersions) {
  const Registration one = Register("a", "v1");
  const Registration two = Register("a", "v2");
  EXPECT_EQ(Reset("a"), 2U);
  EXPECT_NE(Register("a", "v1").generation, one.generation);
  EXPECT_NE(Register("a", "v2").generation, two.generation);
}

TEST_F(GenerationsTest, VersionsNeverCloseEachOther) {
  Register("a", "v1");
  Register("b", "v1");
  Reset("a", "v1");
  EXPECT_TRUE(Register("b", "v1").open) << "the version says which weights b has";
}

// ---- numbers and ids

TEST_F(GenerationsTest, NumbersAreNeverUsedTwiceAndTheirCountersGrow) {
  std::set<Generation> seen;
  std::uint64_t counter = 0;
  for (int i = 0; i < 1000; ++i) {
    Register("a");
    ASSERT_EQ(Reset(""), 1U);
    EXPECT_TRUE(seen.insert(Current()).second);
    EXPECT_GT(Generations::CounterOf(Current()), counter);
    counter = Generations::CounterOf(Current());
  }
}

TEST_F(GenerationsTest, MastersThatGiveOneCounterTwiceDoNotGiveOneNumberTwice) {
  Generations other({}, {.high = 1, .low = 1}, 0);
  const auto plan = other.PlanRegister({.name = "model", .engine = "a"}, 0);
  const Generation there = plan->slots[0].fact.generation;
  const Generation here = Register("a").generation;
  EXPECT_EQ(Generations::CounterOf(here), Generations::CounterOf(there));
  EXPECT_NE(here, there);
}

TEST_F(GenerationsTest, ARequestIdRaisesAtMostOnce) {
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, 5), 1U);
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, 5), 0U);
}

TEST_F(GenerationsTest, ResetIdsOfATenantAreBoundedAlsoInTheStore) {
  Register("a");
  for (int i = 0; i < 1000; ++i) Reset("a");
  for (int batch = 0; batch < 50; ++batch) {  // resets that are decided together
    std::vector<ResetRequest> requests;
    for (int i = 0; i < 20; ++i) requests.push_back(Request("a", std::nullopt, 0, false));
    requests.push_back(requests.front());  // also one that came twice
    ResetAll(requests);
  }
  EXPECT_LE(StoredKeys("reset/"), Generations::kResetIdsKept);
  Restart();
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, id_), 0U) << "the latest are remembered";
  EXPECT_LE(StoredKeys("reset/"), Generations::kResetIdsKept);
}

TEST_F(GenerationsTest, ATenantsManyResetsDoNotPushOutAnothers) {
  const std::string mine = QualifiedName("mine", "model");
  const std::string yours = QualifiedName("yours", "model");
  name_ = mine;
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, 5), 1U);
  name_ = yours;
  for (std::size_t i = 0; i < 2 * Generations::kResetIdsKept; ++i) Reset("b");
  name_ = mine;
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, 5), 0U);
  EXPECT_EQ(StoredKeys("reset/mine/"), 1U);
}

// ---- restarts

TEST_F(GenerationsTest, ARestartRestoresGenerationsAndTakesThemForUsed) {
  Register("a");
  Reset("a", std::nullopt, 77);
  const Registration versioned = Register("b", "v1");
  Reset("b", "v2");  // nothing of v2 is there
  const std::uint64_t counter = generations_->counter();
  Restart();
  EXPECT_GE(generations_->counter(), counter);
  EXPECT_EQ(generations_->PublishedOf(versioned.slot).update.generation, versioned.generation);
  EXPECT_EQ(Reset("", std::nullopt, 77), 0U) << "this id has raised before";
  EXPECT_EQ(Reset("", std::nullopt, 78), 2U)
      << "one was unused before the restart, but nobody knows that any more";
  EXPECT_GT(Generations::CounterOf(Current()), counter);
}

TEST_F(GenerationsTest, AReconnectingEngineGoesOnIfNothingChanged) {
  const Registration bound = Register("a");
  Restart();
  RegisterRequest again{.name = "model",
                        .engine = "a",
                        .last_incarnation = bound.incarnation,
                        .last_generation = bound.generation};
  EXPECT_TRUE(Register(again).open);
  again.engine = "b";
  again.last_generation = bound.generation + 1;
  EXPECT_FALSE(Register(again).open);
}

TEST_F(GenerationsTest, AnEngineThatResetBeforeAnythingWasStoredStaysOpenUnderTheNextMaster) {
  EXPECT_EQ(Reset("a"), 0U);
  EXPECT_EQ(Reset("b"), 0U);
  const Generation told = generations_->BoundTo(name_, "a");
  ASSERT_NE(told, 0U);
  Restart();
  RegisterRequest again{.name = "model", .engine = "a"};
  again.last_incarnation = generations_->incarnation();
  again.last_generation = told;
  EXPECT_TRUE(Register(again).open);
  EXPECT_FALSE(Register("new").open);
}

TEST_F(GenerationsTest, ResetsOfSeveralNamespacesAtOnceGiveEachASlotOfItsOwn) {
  ResetRequest first = Request("a", std::nullopt, 0, false);
  ResetRequest again = Request("b", std::nullopt, 0, false);
  ResetRequest second = Request("a", std::nullopt, 0, false);
  second.name = "other";
  EXPECT_EQ(ResetAll({first, again, second}), 0U);
  ASSERT_TRUE(generations_->FindSlot("model", ""));
  ASSERT_TRUE(generations_->FindSlot("other", ""));
  EXPECT_NE(*generations_->FindSlot("model", ""), *generations_->FindSlot("other", ""));
  EXPECT_EQ(generations_->used_slots(), 2U);
}

TEST_F(GenerationsTest, AnEngineStaysOpenWhoeverOfItComesFirstAfterARestart) {
  const Registration before = Register("a");
  Reset("a");
  const Registration bound = Register("a");
  ASSERT_TRUE(bound.open);
  Restart();
  RegisterRequest again{.name = "model", .engine = "a"};
  EXPECT_FALSE(Register(again).open) << "a new process knows nothing";
  again.last_incarnation = bound.incarnation;
  again.last_generation = before.generation;
  EXPECT_FALSE(Register(again).open);
  again.last_generation = bound.generation;
  EXPECT_TRUE(Register(again).open) << "bound to what is current";
}

TEST_F(GenerationsTest, AnEngineThatResetGoesOnAfterARestartAlsoIfItHadNotComeBackYet) {
  Register("a");
  Register("b");
  Reset("a");
  const Generation generation = generations_->BoundTo("model", "a");
  EXPECT_NE(generation, 0U);
  EXPECT_EQ(generations_->BoundTo("model", "b"), 0U) << "closed by the other's reset";
  EXPECT_EQ(generations_->BoundTo("model", "c"), 0U);
  EXPECT_EQ(generations_->BoundTo("another", "a"), 0U);
  const Id128 incarnation = generations_->incarnation();
  Restart();
  RegisterRequest again{.name = "model",
                        .engine = "a",
                        .last_incarnation = incarnation,
                        .last_generation = generation};
  EXPECT_TRUE(Register(again).open);
  Reset("b");
  EXPECT_EQ(generations_->BoundTo("model", "a"), 0U);
  EXPECT_FALSE(Register(again).open);
}

TEST_F(GenerationsTest, ThatAnEngineResetANamespaceOutlivesARestart) {
  Register("a");
  Reset("a");
  Restart();
  EXPECT_FALSE(Register("new").open);
}

}  // namespace
}  // namespace kvcove::master
