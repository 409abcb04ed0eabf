// SPDX-License-Identifier: Apache-2.0
// Weight versions that are declared dead: what is raised, what is refused, and what a later master
// knows of it.
#include <gtest/gtest.h>

#include "kvcove/master/control/generations.h"
#include "kvcove/master/control/generations_fixture.h"

namespace kvcove::master {
namespace {

class PruneTest : public GenerationsFixture {
 protected:
  Result<PruneOutcome> Prune(const std::string& before) {
    const PruneRequest request{.name = name_, .before = before};
    const auto plan = generations_->PlanPrune(request);
    if (!plan) return std::unexpected(plan.error());
    return generations_->Prune(request, *plan, Store(plan->changes));
  }
  Generation GenerationOf(const std::string& version) const {
    return generations_->PublishedOf(*generations_->FindSlot(name_, version)).update.generation;
  }
  Code TryVersion(const std::string& version) {
    const auto registered = TryRegister({.name = name_, .version = version, .engine = "late"});
    return registered ? Code::kOk : registered.error().code;
  }
};

TEST_F(PruneTest, GenerationsOfDeadVersionsEndAndThoseOfOthersStay) {
  Register("e");
  const Generation none = Current();
  for (const char* version : {"v2", "v1", "v3"}) Register("e", version);
  const Generation second = GenerationOf("v2");
  const Generation first = GenerationOf("v1");
  const Generation third = GenerationOf("v3");
  const auto outcome = Prune("v1");
  ASSERT_TRUE(outcome) << outcome.error().ToString();
  EXPECT_EQ(outcome->versions, 1U) << "v2 was named before v1";
  EXPECT_EQ(outcome->raised, 1U);
  EXPECT_NE(GenerationOf("v2"), second);
  EXPECT_EQ(GenerationOf("v1"), first);
  EXPECT_EQ(GenerationOf("v3"), third);
  EXPECT_EQ(Current(), none) << "values without a version belong to none";
}

TEST_F(PruneTest, NobodyRegistersForADeadVersionAnyMore) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  ASSERT_TRUE(Prune("v2"));
  const auto refused = TryRegister({.name = name_, .version = "v1", .engine = "e"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kDenied);
  EXPECT_NE(refused.error().detail.find("'v1' of namespace 'model' is dead"), std::string::npos);
  EXPECT_EQ(generations_->refused().dead, 1U);
  EXPECT_EQ(TryVersion("v2"), Code::kOk);
  EXPECT_EQ(TryVersion("v3"), Code::kOk);
}

TEST_F(PruneTest, ALaterMasterRefusesItToo) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  ASSERT_TRUE(Prune("v2"));
  const Generation raised = GenerationOf("v1");
  Restart();
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
  EXPECT_EQ(TryVersion("v2"), Code::kOk);
  EXPECT_EQ(GenerationOf("v1"), raised);
  EXPECT_EQ(generations_->UnnamedSlots(now_).size(), 1U) << "no engine can come back to it";
}

TEST_F(PruneTest, AVersionThatLostItsSlotIsRefusedToo) {
  options_ = {.max_slots = 2};
  generations_ = std::make_unique<Generations>(options_, Id128{.high = 1, .low = 1}, now_);
  now_ += 2 * Registrations::kAllNamedNs;
  Register("e", "v1");
  Register("e", "v2");
  ASSERT_TRUE(Prune("v2"));
  Register("e",
           "v3");  // takes the slot of v1, although the engine never said that it uses it no more
  EXPECT_FALSE(generations_->FindSlot(name_, "v1"));
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
  Restart();
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
}

// Its slot may be taken and given again: the first registration counts.
TEST_F(PruneTest, TheOrderOutlivesTheSlot) {
  options_ = {.max_slots = 1};
  generations_ = std::make_unique<Generations>(options_, Id128{.high = 1, .low = 1}, now_);
  now_ += 2 * Registrations::kAllNamedNs;
  for (const char* version : {"v1", "v2", "v1"}) {
    Register("e", version);
    generations_->EndEngine(name_, "e", {});
  }
  ASSERT_FALSE(generations_->FindSlot(name_, "v2"));
  const auto outcome = Prune("v2");
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->versions, 1U);
  EXPECT_EQ(outcome->raised, 1U);
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
}

TEST_F(PruneTest, AnUnknownVersionIsRefusedAndNothingDies) {
  Register("e", "v1");
  const auto refused = Prune("v2");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalid);
  EXPECT_NE(refused.error().detail.find("'v2' of namespace 'model'"), std::string::npos);
  EXPECT_EQ(TryVersion("v1"), Code::kOk);
  EXPECT_TRUE(Prune("v1")) << "named by now";
}

TEST_F(PruneTest, ARepetitionRaisesNothing) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  ASSERT_EQ(Prune("v2")->raised, 1U);
  const auto again = Prune("v2");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->raised, 0U);
  EXPECT_EQ(again->versions, 0U);
}

// Generations count as used after a start: a master of an earlier build may have led, and let
// engines register for dead versions.
TEST_F(PruneTest, AtALaterMasterThatOfADeadVersionIsRaisedOnceMore) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  ASSERT_TRUE(Prune("v2"));
  Restart();
  EXPECT_EQ(Prune("v2")->raised, 1U);
  EXPECT_EQ(Prune("v2")->raised, 0U);
}

TEST_F(PruneTest, AnUnusedGenerationIsNotRaised) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  Reset("");
  const auto outcome = Prune("v2");
  EXPECT_EQ(outcome->versions, 1U);
  EXPECT_EQ(outcome->raised, 0U);
}

TEST_F(PruneTest, ADeadVersionIsUnnamedWhateverItsEnginesSay) {
  now_ += 2 * Registrations::kAllNamedNs;
  const Registration one = Register("e", "v1");
  Register("e", "v2");
  EXPECT_TRUE(generations_->UnnamedSlots(now_).empty());
  ASSERT_TRUE(Prune("v2"));
  EXPECT_EQ(generations_->UnnamedSlots(now_), std::vector<SlotId>{one.slot});
  generations_->NameVersions(name_, "e", {"v1", "v2"});
  EXPECT_EQ(generations_->UnnamedSlots(now_), std::vector<SlotId>{one.slot});
  const auto described = generations_->Describe(now_);
  ASSERT_EQ(described.size(), 2U);
  for (const SlotDescription& slot : described) EXPECT_EQ(slot.dead, slot.version == "v1");
}

// Of a dead version nothing is left to void, so the engine's reset is proven; but it is not
// revived.
TEST_F(PruneTest, AResetRevivesNoDeadVersion) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  ASSERT_TRUE(Prune("v2"));
  EXPECT_EQ(Reset("e", "v1"), 0U);
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
  Reset("");
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
}

// A transaction that is too large would be refused at each repetition.
TEST_F(PruneTest, EverySlotCanBeRaisedAtOnceWhateverTheNamesAre) {
  StoredState state;
  name_ = std::string(kMaxNameBytes, 'n');
  for (SlotId number = 0; number < kMaxSlots; ++number) {
    std::string version = std::to_string(number);
    version.resize(kMaxNameBytes, 'v');
    state.slots.push_back(
        {.slot = number,
         .fact = {.generation = (number + 1ULL) << 24, .name = name_, .version = version},
         .revision = 1});
    state.versions.push_back({.number = number + 1ULL, .name = name_, .version = version});
  }
  generations_->Load(state);
  const auto prune =
      generations_->PlanPrune({.name = name_, .before = state.versions.back().version});
  ASSERT_TRUE(prune);
  EXPECT_EQ(prune->slots.size(), kMaxSlots - 1);
  const Status pruned = CheckTransaction(prune->changes);
  EXPECT_TRUE(pruned) << pruned.error().ToString();
  const Status reset = CheckTransaction(
      generations_->PlanReset({Request("e", std::nullopt, 0, /*late=*/false)}, now_).changes);
  EXPECT_TRUE(reset) << reset.error().ToString();
}

// A new incarnation voids every value. Dead versions stay dead.
TEST_F(PruneTest, DeathOutlivesTheIncarnation) {
  for (const char* version : {"v1", "v2"}) Register("e", version);
  ASSERT_TRUE(Prune("v2"));
  const Generations::Plan plan = generations_->PlanVoid();
  generations_->Void({.high = 9}, plan, Store(plan.changes));
  EXPECT_EQ(TryVersion("v1"), Code::kDenied);
  EXPECT_EQ(TryVersion("v2"), Code::kOk);
  EXPECT_TRUE(Prune("v2"));
}

}  // namespace
}  // namespace kvcove::master
