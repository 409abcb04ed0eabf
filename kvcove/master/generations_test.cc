// SPDX-License-Identifier: Apache-2.0
#include "kvcove/master/generations.h"

#include <gtest/gtest.h>

namespace kvcove::master {
namespace {

class GenerationsTest : public testing::Test {
 protected:
  Registration Register(const std::string& engine, const std::string& version = "",
                        bool follow = false, bool assume = false) {
    RegisterRequest request{.name = "model",
                            .version = version,
                            .engine = engine,
                            .follow_always = follow,
                            .assume_weights = assume};
    return Register(request);
  }
  Registration Register(const RegisterRequest& request) {
    std::vector<Record> records;
    EXPECT_TRUE(generations_.PrepareRegister(request, records));
    log_.insert(log_.end(), records.begin(), records.end());
    return generations_.FinishRegister(request, records);
  }
  std::size_t Reset(const std::string& engine, std::optional<std::string> version = std::nullopt,
                    std::uint64_t id = 0, bool late = false) {
    const ResetRequest request{.name = "model",
                               .engine = engine,
                               .version = version,
                               .id = {7, id == 0 ? ++id_ : id},
                               .late = late};
    std::vector<Record> records;
    generations_.PrepareReset({request}, records);
    log_.insert(log_.end(), records.begin(), records.end());
    return generations_.FinishReset({request}, records).size();
  }
  Generations generations_{Id128{1, 1}};
  std::vector<Record> log_;
  std::uint64_t id_ = 1000;
};

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

TEST_F(GenerationsTest, ALateResetSharesNoGenerationThatOthersRaised) {
  EXPECT_TRUE(Register("a").open);
  const Generation raised = [&] {
    EXPECT_EQ(Reset("a"), 1U);
    return generations_.last_generation();
  }();
  EXPECT_EQ(Reset("b"), 0U);  // shared
  EXPECT_EQ(Reset("c", std::nullopt, 0, /*late=*/true), 1U);
  EXPECT_NE(generations_.last_generation(), raised);
  EXPECT_EQ(Reset("d"), 1U);
  EXPECT_FALSE(Register("c").open);
  EXPECT_EQ(Reset("c", std::nullopt, 0, /*late=*/true), 1U);
  EXPECT_FALSE(Register("a").open);
  EXPECT_TRUE(Register("c").open);
}

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

TEST_F(GenerationsTest, AChangeOfVersionErasesNothing) {
  const Registration one = Register("a", "v1");
  const Registration two = Register("b", "v2");  // b has updated already
  EXPECT_EQ(Reset("a", "v2"), 0U) << "a changes to v2";
  EXPECT_EQ(Register("a", "v1").generation, one.generation);
  EXPECT_EQ(Register("a", "v2").generation, two.generation);
  EXPECT_EQ(Reset("a", "v2"), 1U) << "now it is the current one";
  EXPECT_EQ(Register("a", "v1").generation, one.generation);
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

TEST_F(GenerationsTest, ARequestIdRaisesAtMostOnce) {
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, 5), 1U);
  Register("a");
  EXPECT_EQ(Reset("a", std::nullopt, 5), 0U);
}

TEST_F(GenerationsTest, UsedIsForEverEvenWhenTheEngineEnds) {
  Register("a");
  generations_.EndEngine("model", "a");
  EXPECT_EQ(Reset(""), 1U);
}

TEST_F(GenerationsTest, NumbersAreNeverUsedTwice) {
  std::set<Generation> seen;
  for (int i = 0; i < 100; ++i) {
    const Generation generation = Register("a", i % 2 == 0 ? "" : "v").generation;
    EXPECT_TRUE(seen.insert(generation).second || i == 0);
    Reset("");
  }
}

TEST_F(GenerationsTest, ARestartRestoresGenerationsAndTakesThemForUsed) {
  Register("a");
  Reset("a", std::nullopt, 77);
  const Registration before = Register("b", "v1");
  const Generation last = generations_.last_generation();
  for (const bool compacted : {false, true}) {
    Generations restored(generations_.incarnation());
    for (const Record& record : compacted ? generations_.Snapshot() : log_)
      restored.Restore(record);
    EXPECT_EQ(restored.last_generation(), last);
    EXPECT_EQ(restored.UpdateOf(before.slot).generation, before.generation);
    std::vector<Record> records;
    restored.PrepareReset({{.name = "model", .engine = "", .version = {}, .id = {7, 77}}}, records);
    EXPECT_TRUE(records.empty()) << "this id has raised before";
    restored.PrepareReset({{.name = "model", .engine = "", .version = {}, .id = {7, 78}}}, records);
    EXPECT_EQ(records.size(), 2U) << "unused before the restart, but nobody knows that any more";
    EXPECT_GT(records[0].generation, last);
  }
}

TEST_F(GenerationsTest, AReconnectingEngineGoesOnIfNothingChanged) {
  const Registration bound = Register("a");
  Generations restored(generations_.incarnation());
  for (const Record& record : log_) restored.Restore(record);
  RegisterRequest again{.name = "model",
                        .engine = "a",
                        .last_incarnation = bound.incarnation,
                        .last_generation = bound.generation};
  EXPECT_TRUE(restored.FinishRegister(again, {}).open);
  again.engine = "b";
  again.last_generation = bound.generation + 1;
  EXPECT_FALSE(restored.FinishRegister(again, {}).open);
}

TEST_F(GenerationsTest, AnEngineStaysOpenWhoeverOfItComesFirstAfterARestart) {
  const Registration before = Register("a");
  Reset("a");
  const Registration bound = Register("a");
  ASSERT_TRUE(bound.open);
  Generations restored(generations_.incarnation());
  for (const Record& record : log_) restored.Restore(record);
  RegisterRequest again{.name = "model", .engine = "a"};
  EXPECT_FALSE(restored.FinishRegister(again, {}).open) << "a new process knows nothing";
  again.last_incarnation = bound.incarnation;
  again.last_generation = before.generation;
  EXPECT_FALSE(restored.FinishRegister(again, {}).open);
  again.last_generation = bound.generation;
  EXPECT_TRUE(restored.FinishRegister(again, {}).open) << "bound to what is current";
}

TEST_F(GenerationsTest, VersionsThatNobodyNamesGiveWay) {
  const Registration old = Register("a", "v1");
  Register("a", "v2");
  EXPECT_TRUE(generations_.UpdateOf(old.slot).named);
  generations_.NameVersions("model", "a", {"v2"});
  EXPECT_FALSE(generations_.UpdateOf(old.slot).named);
}

TEST_F(GenerationsTest, WhenAllSlotsAreTakenUnnamedVersionsAreReplaced) {
  const Generation first = Register("a", "v0").generation;
  for (int i = 1; i < static_cast<int>(kMaxSlots); ++i) Register("a", "v" + std::to_string(i));
  std::vector<Record> records;
  const RegisterRequest one_more{.name = "model", .version = "more", .engine = "a"};
  EXPECT_EQ(generations_.PrepareRegister(one_more, records).error().code, Code::kLimit);
  generations_.NameVersions("model", "a", {"v1"});
  ASSERT_TRUE(generations_.PrepareRegister(one_more, records));
  EXPECT_GT(generations_.FinishRegister(one_more, records).generation, first);
}

}  // namespace
}  // namespace kvcove::master
